"""A saved model and its tokenizer, on a device."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from .errors import first_line
from .modeling_nrgpt import NRGPTForCausalLM


def load_model(name: str, device: str = "cpu") -> tuple[NRGPTForCausalLM, PreTrainedTokenizerFast]:
    """From a folder or the Hub; no code from there is run.

    Raises:
        OSError: there is none, or it is of another kind.
    """
    try:
        if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
            raise OSError("no config.json in it; train one with `accelerate launch -q train.py`")
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # of weights that load in no time
        model = NRGPTForCausalLM.from_pretrained(name)
        if shown:
            logging.enable_progress_bar()
        if model.config.model_type != "nrgpt":
            raise OSError(f"a {model.config.model_type}")
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of the Hub, of safetensors, of the configuration: each has its own kind
        raise OSError(f"model: expected a saved NRGPT or a Hub id, got {name} ({first_line(error)})") from error
    return model.eval().to(device), tokenizer


# Copied from pixnerd.sampling.choose_device
def choose_device(name: str | None) -> str:
    """`name` if there is such a device, and the best one for None.

    Raises:
        ValueError: there is none.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return next(kind for kind, available in there.items() if available)
    if not there.get(name.partition(":")[0]):
        raise ValueError(f"device: expected {', '.join(k for k, v in there.items() if v)}, got {name!r}")
    return name
