"""Parameters and FLOPs of a configuration, and baselines of equal size: same width is not the same cost."""

from collections.abc import Callable

import torch

from .configuration_nrgpt import NRGPTConfig
from .modeling_nrgpt import NRGPTForCausalLM


def count_parameters(config: NRGPTConfig) -> int:
    """All parameters, the held gain of the block's norm included (official counts)."""
    with torch.device("meta"):
        return sum(p.numel() for p in NRGPTForCausalLM(config).parameters())


def forward_flops(config: NRGPTConfig, length: int) -> int:
    """Floating point operations of the matrix products of a forward pass, for each token of a text of `length`.

    A multiplication and an addition are two; attention is counted in full, as if every token saw every other; norms and
    activations are left out. A training step takes three times as many.
    """
    d, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    if config.block != "energy":
        inner = d // heads * heads
        block = 4 * d * inner + 2 * length * inner + 2 * d * hidden
    else:
        if config.rank is None:
            attention = heads * d * d + 2 * length * heads * d
        else:
            attention = 3 * heads * config.rank * d + 2 * length * heads * config.rank
        feed_forward = {"ff1": 2 * d * hidden, "ff2": 2 * d * d + 2 * d * hidden, "ff2w": 4 * d * hidden}[config.energy]
        rate = {"full": 1, "dual": 2, "psd": 2, "psd_skew": 3}.get(config.eta, 0) * d * d
        block = attention + feed_forward + rate
    return 2 * (config.num_hidden_layers * block + d * config.vocab_size)


def match(config: NRGPTConfig, size: Callable[[NRGPTConfig], int], target: int) -> NRGPTConfig:
    """`config` with the width, a multiple of its heads, whose `size` comes nearest to `target`.

    The feed-forward width stays the same multiple of it, a rank of d // heads stays that.
    """
    heads, factor = config.num_attention_heads, config.intermediate_size / config.hidden_size
    divided = config.rank is not None and config.rank == config.hidden_size // heads

    def of_width(width: int) -> NRGPTConfig:
        change = dict(hidden_size=width, intermediate_size=round(factor * width))
        if divided:
            change["rank"] = width // heads
        return NRGPTConfig(**(config.to_dict() | change))

    low, high = 1, 1
    while size(of_width(high * heads)) < target:
        high *= 2
    while low < high:  # the least that is not below
        middle = (low + high) // 2
        low, high = (middle + 1, high) if size(of_width(middle * heads)) < target else (low, middle)
    near = [of_width(n * heads) for n in (low - 1, low) if n > 0]
    return min(near, key=lambda found: abs(size(found) - target))
