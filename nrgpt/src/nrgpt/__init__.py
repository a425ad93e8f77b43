"""NRGPT: a GPT whose forward pass is a walk on an energy.

Read in this order: `energy` (the two terms and their gradients), `inference_rate` (eta), `blocks` (a step, and the
baselines'), `modeling_nrgpt` (the language model), `configuration_nrgpt`, `presets`. Then, as needed, `listops`,
`text`, `tokenization`, `data` (what is learned), `optimization`, `evaluation`, `sizes`, `convert`, `loading`,
`reports`, `pictures`, `card`, `errors`. `checkpointing` and `cli` are the plumbing of the scripts.
"""

from .configuration_nrgpt import NRGPTConfig
from .modeling_nrgpt import NRGPTForCausalLM, NRGPTModel
from .presets import MODELS, preset

__all__ = ["MODELS", "NRGPTConfig", "NRGPTForCausalLM", "NRGPTModel", "preset"]
