"""Official state dicts read into our names, and back.

What the official code lacks (low rank, other rates, other norms, tied weights) has no official form.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .configuration_nrgpt import NRGPTConfig
from .presets import preset

FRAME = {
    "token_embedding_table": "model.embed_tokens",
    "position_embedding_table": "model.embed_positions",
    "ln_f": "model.norm",
    "lm_head": "lm_head",
}
ENERGY_BLOCK = {"ffwd.net.0": "feed_forward.first", "ffwd.net.2": "feed_forward.second", "ln": "norm"}
GPT_BLOCK = {
    "sa.proj": "attention.output",
    "ffwd.net.0": "feed_forward.first",
    "ffwd.net.2": "feed_forward.second",
    "ln1": "norm1",
    "ln2": "norm2",
}


def from_official(
    state: Mapping[str, Tensor], steps: int, mask: str, model: str | None = None
) -> tuple[NRGPTConfig, dict[str, Tensor]]:
    """Configuration and weights of `NRGPTForCausalLM` for an official state dict.

    Args:
        state: as `torch.load(..., weights_only=True)` gives it; a compiled model's prefix and the buffers are dropped.
        steps: T; the shapes do not tell it, except for GPT, where it must fit them.
        mask: strict or inclusive, for energy models (a buffer of the official code that carries no shape).
        model: one of `presets.MODELS`. By default read off the names; GPT_Rec and GPT_Rec_parallel have the same names,
            and so must be told apart here.

    Raises:
        ValueError: a name is missing or unknown, or a shape does not fit.
    """
    state = {name.removeprefix("_orig_mod."): tensor for name, tensor in state.items()}
    state = {name: tensor for name, tensor in state.items() if not re.search(r"(^|\.)(tril|pos_idx)$", name)}
    model = model or _model_of(state)
    sizes = _sizes(state, model, steps)
    config = preset(model, num_hidden_layers=steps, mask=mask, **sizes)
    converted = {}
    for name, parts in official_names(config).items():
        missing = [part for part in parts if part not in state]
        if missing:
            raise ValueError(f"state: expected {missing[0]} of {model}, not found")
        tensors = [state.pop(part) for part in parts]
        if name.endswith("attention.H"):
            converted[name] = torch.stack(tensors)
        elif name.endswith("rate.W"):
            converted[name] = tensors[0].unsqueeze(0)
        else:
            converted[name] = torch.cat(tensors)
    if state:
        raise ValueError(f"state: {next(iter(state))} is not a name of {model}")
    return config, converted


def to_official(config: NRGPTConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_official`, without the buffers.

    Raises:
        ValueError: the model has something that the official code does not.
    """
    plain = preset("GPT")  # any: the options of which the official code has one value
    names = ["exact_self", "rank", "beta", "learn_alpha", "eta", "eta_per_step", "norm", "norm_gain"]
    for name in [*names, "activation", "tie_word_embeddings"]:
        if getattr(config, name) != getattr(plain, name):
            raise ValueError(f"{name}: the official code has {getattr(plain, name)} only, got {getattr(config, name)}")
    state = {}
    for name, parts in official_names(config).items():
        pieces = weights[name].unbind() if name.endswith(("attention.H", "rate.W")) else weights[name].chunk(len(parts))
        state |= {part: piece.clone() for part, piece in zip(parts, pieces, strict=True)}
    return state


def official_names(config: NRGPTConfig) -> dict[str, list[str]]:
    """For each of our parameters the official ones that it is put together from."""
    names = {f"{ours}.weight": [f"{theirs}.weight"] for theirs, ours in FRAME.items()}
    names |= {f"{ours}.bias": [f"{theirs}.bias"] for theirs, ours in FRAME.items() if theirs in ("ln_f", "lm_head")}
    heads = range(config.num_attention_heads)
    for i in range(1 if config.share_blocks else config.num_hidden_layers):
        ours, theirs = f"model.blocks.{i}", "blocks" if config.share_blocks else f"blocks.{i}"
        block = dict(ENERGY_BLOCK if config.block == "energy" else GPT_BLOCK)
        if config.energy == "ff1" and config.block == "energy":
            del block["ffwd.net.2"]
        for old, new in block.items():
            names |= {f"{ours}.{new}.{kind}": [f"{theirs}.{old}.{kind}"] for kind in ("weight", "bias")}
        if config.block == "energy":
            names[f"{ours}.attention.H"] = [f"{theirs}.attn.heads.{h}.H.weight" for h in heads]
            names[f"{ours}.rate.W"] = [f"{theirs}.proj.weight"]
            names[f"{ours}.feed_forward_scale"] = [f"{theirs}.scale_ff"]
        else:
            kinds = ("query", "key", "value")
            parts = [f"{theirs}.sa.heads.{h}.{kind}.weight" for kind in kinds for h in heads]
            names[f"{ours}.attention.query_key_value.weight"] = parts
    return names


def _model_of(state: Mapping[str, Tensor]) -> str:
    if "blocks.proj.weight" in state:
        if "blocks.ffwd.net.2.weight" not in state:
            return "NRGPT_H_FF1"
        first = state["blocks.ffwd.net.0.weight"].shape
        return "NRGPT_H_FF2" if first[0] == first[1] else "NRGPT_H_FF2W"
    if "blocks.0.ln1.weight" in state:
        return "GPT"
    if "blocks.ln1.weight" in state:
        raise ValueError("model: expected GPT_Rec or GPT_Rec_parallel, whose names are the same")
    raise ValueError("state: expected the names of an official NRGPT or GPT, found neither block")


def _sizes(state: Mapping[str, Tensor], model: str, steps: int) -> dict[str, int]:
    for name in ("token_embedding_table.weight", "position_embedding_table.weight"):
        if name not in state:
            raise ValueError(f"state: expected {name} of {model}, not found")
    heads = {int(found[1]) for name in state if (found := re.search(r"\.heads\.(\d+)\.", name))}
    blocks = {int(found[1]) for name in state if (found := re.match(r"blocks\.(\d+)\.", name))}
    if blocks and steps != len(blocks):
        raise ValueError(f"steps: expected {len(blocks)}, the number of blocks, got {steps}")
    vocabulary, width = state["token_embedding_table.weight"].shape
    wide = [tensor.shape[0] for name, tensor in state.items() if re.search(r"ffwd\.net\.\d\.bias$", name)]
    return dict(
        vocab_size=vocabulary,
        hidden_size=width,
        num_attention_heads=len(heads),
        intermediate_size=max(wide),
        max_position_embeddings=state["position_embedding_table.weight"].shape[0],
    )
