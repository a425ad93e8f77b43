"""The paper's models as configurations, by their names there."""

from .configuration_nrgpt import NRGPTConfig

MODELS = {
    "NRGPT_H_FF1": dict(block="energy", energy="ff1"),
    "NRGPT_H_FF2": dict(block="energy", energy="ff2"),
    "NRGPT_H_FF2W": dict(block="energy", energy="ff2w"),
    "GPT": dict(block="sequential", share_blocks=False),
    "GPT_Rec": dict(block="sequential"),
    "GPT_Rec_parallel": dict(block="parallel"),
}


def preset(model: str, **options) -> NRGPTConfig:
    """Configuration of a model of the paper; `options` of `NRGPTConfig` on top.

    Raises:
        ValueError: no model of that name.
    """
    if model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {model!r}")
    return NRGPTConfig(**(MODELS[model] | options))
