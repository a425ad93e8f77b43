"""PixNerd: pixel neural field diffusion.

Read in this order: `flow`, `objective` (what is learned); `layers`, `embeddings`, `transformer`, `neural_field` (what
learns it); `scheduler`, `pipeline` (how it samples). Then, as needed, `alignment` and `teacher` (losses on features),
`ema`, `data`, `openmoji`, `photographs`, `sampling`, `pictures`, `convert`, `remote_code`, `card`, `errors`.
`checkpointing` and `cli` are the plumbing of the scripts.
"""

from .pipeline import PixNerdPipeline
from .scheduler import PixNerdScheduler
from .transformer import PRESETS, PixNerdTransformer2DModel, linear_head_baseline

__all__ = ["PRESETS", "PixNerdPipeline", "PixNerdScheduler", "PixNerdTransformer2DModel", "linear_head_baseline"]
