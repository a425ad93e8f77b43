"""Names of the official checkpoint's tensors, and ours."""

import re

from torch import Tensor

# official name, with {i} a transformer block and {r} a neural field block, → ours
CLASS_CONDITIONAL_KEYS = {
    "s_embedder.proj": "patch_embed",
    "t_embedder.mlp": "time_embed.mlp",
    "y_embedder.embedding_table": "class_embed",
    "x_embedder.embedder.0": "head.pixel_embed",
    "final_layer.norm": "head.norm",
    "final_layer.linear": "head.proj",
    "blocks.{i}.adaLN_modulation.0": "blocks.{i}.adaln",
    "blocks.{r}.param_generator1.0": "head.blocks.{r}.generator",
    "blocks.{r}.norm": "head.blocks.{r}.norm",
}


def from_official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Official class-conditional names (without a prefix such as `ema_denoiser.`) → names of our transformer.

    The official model counts its neural field blocks on from its transformer blocks.
    """
    depth = 1 + max(int(m[1]) for key in state if (m := re.match(r"blocks\.(\d+)\.attn\.", key)))
    return {_rename(key, depth): tensor for key, tensor in state.items()}


def _rename(key: str, depth: int) -> str:
    block = re.match(r"blocks\.(\d+)\.", key)
    number = int(block[1]) if block else None
    pattern = key if block is None else key.replace(block[0], f"blocks.{{{'i' if number < depth else 'r'}}}.", 1)
    for official, ours in CLASS_CONDITIONAL_KEYS.items():
        if pattern.startswith(official + "."):
            pattern = ours + pattern.removeprefix(official)
            break
    return pattern.format(i=number, r=None if number is None else number - depth)
