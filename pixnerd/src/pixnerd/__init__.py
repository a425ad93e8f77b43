"""PixNerd: pixel neural field diffusion.

Read in this order: `flow` (what is learned), `transformer` and `neural_field` (what learns it), `scheduler` and
`pipeline` (how it samples); then, as needed, `embeddings`, `alignment`, `ema`, `data`, `openmoji`, `convert`,
`remote_code`. `checkpointing` and `cli` are the plumbing of the scripts.
"""

from .pipeline import PixNerdPipeline
from .scheduler import PixNerdScheduler
from .transformer import PRESETS, PixNerdTransformer2DModel, linear_head_baseline

__all__ = ["PRESETS", "PixNerdPipeline", "PixNerdScheduler", "PixNerdTransformer2DModel", "linear_head_baseline"]
