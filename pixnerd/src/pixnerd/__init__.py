"""PixNerd: pixel neural field diffusion.

Read in this order: `flow`, `objective` (what is learned); `layers`, `embeddings`, `neural_field`, `transformer`,
`text_transformer` (what learns it); `scheduler`, `pipeline`, `text_encoder`, `text_pipeline` (how it samples). Then, as
needed, `alignment` and `teacher` (losses on features), `conditioning`, `ema`, `data`, `openmoji`, `photographs`,
`sampling`, `pictures`, `prompt_benchmarks`, `convert`, `remote_code`, `card`, `errors`, `files`. `checkpointing` and
`cli` are the plumbing of the scripts.
"""

from .convert import pipeline_from_official
from .pipeline import PixNerdPipeline
from .scheduler import PixNerdScheduler
from .text_pipeline import PixNerdTextToImagePipeline
from .text_transformer import TEXT_PRESETS, PixNerdTextTransformer2DModel
from .transformer import PRESETS, PixNerdTransformer2DModel, linear_head_baseline

__all__ = [
    "PRESETS",
    "TEXT_PRESETS",
    "PixNerdPipeline",
    "PixNerdScheduler",
    "PixNerdTextToImagePipeline",
    "PixNerdTextTransformer2DModel",
    "PixNerdTransformer2DModel",
    "linear_head_baseline",
    "pipeline_from_official",
]
