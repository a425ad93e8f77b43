"""Official checkpoints: their names and ours, in both directions, and reading their files without running them."""

import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file
from torch import Tensor

from .errors import first_line
from .files import replacing
from .pipeline import PixelPipeline, PixNerdPipeline
from .scheduler import PixNerdScheduler
from .text_pipeline import PixNerdTextToImagePipeline
from .text_transformer import PixNerdTextTransformer2DModel
from .transformer import PixelTransformer, PixNerdTransformer2DModel

# official name, with {i} a transformer block and {r} a neural field block, and ours
_BOTH = (
    ("s_embedder.proj", "patch_embed"),
    ("t_embedder.mlp", "time_embed.mlp"),
    ("x_embedder.embedder.0", "head.pixel_embed"),
    ("final_layer.linear", "head.proj"),
    ("blocks.{i}.adaLN_modulation.0", "blocks.{i}.adaln"),
    ("blocks.{r}.param_generator1.0", "head.blocks.{r}.generator"),
    ("blocks.{r}.norm", "head.blocks.{r}.norm"),
)
_CLASS_CONDITIONAL = (
    *_BOTH,
    ("y_embedder.embedding_table", "class_embed"),
    ("final_layer.norm", "head.norm"),
)
_TEXT_TO_IMAGE = (
    *_BOTH,
    ("y_embedder.proj", "text_embed"),
    ("y_embedder.norm", "text_norm"),
    ("y_pos_embedding", "text_positions"),
    ("blocks.{i}.attn.qkv_x", "blocks.{i}.attn.qkv"),
    ("blocks.{i}.attn.kv_y", "blocks.{i}.attn.text_kv"),
    ("blocks.{i}.mlp.w3", "blocks.{i}.mlp.w2"),
    ("text_refine_blocks.{i}.adaLN_modulation.0", "text_blocks.{i}.adaln"),
    ("text_refine_blocks.{i}.mlp.w3", "text_blocks.{i}.mlp.w2"),
    ("text_refine_blocks.{i}", "text_blocks.{i}"),
)
PREFIXES = ("ema_denoiser.", "denoiser.", "")
"""Where the network's weights may stand in a checkpoint, the averaged ones first."""


def from_official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Official names (without a prefix such as `ema_denoiser.`) → names of our transformers.

    The official model counts its neural field blocks on from its transformer blocks; the text-to-image one holds two
    matrices of the MLP in one, w12, and calls the third w3.
    """
    depth = _depth(state)
    pairs = _TEXT_TO_IMAGE if "y_pos_embedding" in state else _CLASS_CONDITIONAL
    ours = {}
    for key, tensor in state.items():
        if match := re.fullmatch(r"(text_refine_)?blocks\.(\d+)\.mlp\.w12\.weight", key):
            block = f"{'text_blocks' if match[1] else 'blocks'}.{match[2]}.mlp"
            ours[f"{block}.w1.weight"], ours[f"{block}.w3.weight"] = (half.clone() for half in tensor.chunk(2))
        else:
            ours[_rename(key, pairs, depth)] = tensor
    return ours


def to_official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_official`."""
    depth = _depth(state)
    text = "text_positions" in state
    pairs = [(ours, official) for official, ours in (_TEXT_TO_IMAGE if text else _CLASS_CONDITIONAL)]
    official = {}
    for key, tensor in state.items():
        if text and key.endswith("mlp.w1.weight"):
            block = key.removesuffix("w1.weight").replace("text_blocks.", "text_refine_blocks.")
            official[f"{block}w12.weight"] = torch.cat([tensor, state[key.replace("mlp.w1.", "mlp.w3.")]])
        elif not (text and key.endswith("mlp.w3.weight")):
            official[_rename(key, pairs, depth)] = tensor
    return official


def _depth(state: dict[str, Tensor]) -> int:
    """Number of transformer blocks of the image, in either kind of names."""
    return sum(re.fullmatch(r"blocks\.\d+\.attn\.proj\.weight", key) is not None for key in state)


def _rename(key: str, pairs, depth: int) -> str:
    """One name by the first pair that fits; {r} is counted on from `depth` on the official side."""
    for source, target in pairs:
        pattern = re.escape(source).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{r\}", r"(?P<r>\d+)")
        match = re.match(rf"{pattern}(?=\.|$)", key)
        if not match:
            continue
        number = {name: int(value) for name, value in match.groupdict().items()}
        if "r" in number and source.startswith("blocks."):
            if number["r"] < depth:
                continue
            number["r"] -= depth
        elif "r" in number:
            number["r"] += depth
        return target.format(**number) + key[match.end() :]
    return key


def config_of(state: dict[str, Tensor], sample_size: int) -> dict[str, int]:
    """The options of our network, read off the shapes of an official state.

    Args:
        state: official names, without a prefix.
        sample_size: side of the images that it was trained on, which no shape tells.

    Raises:
        ValueError: a tensor is missing that every such network has.
    """
    depth = _depth(state)
    try:
        hidden_size, patch_numbers = state["s_embedder.proj.weight"].shape
        in_channels, head_channels = state["final_layer.linear.weight"].shape
        generated = len(state[f"blocks.{depth}.param_generator1.0.bias"])
        config = dict(
            sample_size=sample_size,
            patch_size=math.isqrt(patch_numbers // in_channels),
            in_channels=in_channels,
            hidden_size=hidden_size,
            num_attention_heads=hidden_size // len(state["blocks.0.attn.q_norm.weight"]),
            num_layers=depth,
            head_layers=sum(key.endswith("param_generator1.0.bias") for key in state),
            head_channels=head_channels,
            head_mlp_ratio=generated // (2 * head_channels**2),
            head_frequencies=math.isqrt(state["x_embedder.embedder.0.weight"].shape[1] - in_channels),
        )
        if "y_pos_embedding" not in state:
            return config | dict(num_classes=len(state["y_embedder.embedding_table.weight"]) - 1)
        return config | dict(
            text_layers=sum(re.fullmatch(r"text_refine_blocks\.\d+\.norm1\.weight", key) is not None for key in state),
            text_dim=state["y_embedder.proj.weight"].shape[1],
            text_length=state["y_pos_embedding"].shape[1],
        )
    except KeyError as error:
        raise ValueError(f"checkpoint: expected the tensors of an official PixNerd, {error} is missing") from error


def transformer_from_official(state: dict[str, Tensor], sample_size: int) -> PixelTransformer:
    """The network of an official state, class-conditional or text-to-image.

    Args:
        state: official names, without a prefix.
        sample_size: side of the images that it was trained on.

    Raises:
        ValueError: tensors missing or too many, by name.
    """
    transformer = _network_of(state, sample_size)
    weights = from_official(state)
    wanted = transformer.state_dict()
    for word, keys in {"missing": wanted.keys() - weights.keys(), "unknown": weights.keys() - wanted.keys()}.items():
        if keys:
            raise ValueError(f"checkpoint: {len(keys)} tensors are {word}, the first is {min(keys)}")
    for key, tensor in weights.items():
        if tensor.shape != wanted[key].shape:
            raise ValueError(f"checkpoint: {key}: expected {tuple(wanted[key].shape)}, got {tuple(tensor.shape)}")
    transformer.load_state_dict(weights, assign=True)
    return transformer.eval().requires_grad_(True)


def _network_of(state: dict[str, Tensor], sample_size: int) -> PixelTransformer:
    """The network that an official state is of, without its weights."""
    kind = PixNerdTextTransformer2DModel if "y_pos_embedding" in state else PixNerdTransformer2DModel
    with torch.device("meta"):
        return kind(**config_of(state, sample_size))


def pipeline_from_official(
    file: str | Path, sample_size: int | None = None, id2label: dict[int, str] | None = None
) -> PixelPipeline:
    """A pipeline with the weights of an official file and the paper's sampler.

    Args:
        file: as in `read_official`.
        sample_size: side of the images that it was trained on, 256 or 512; the file does not tell. By default 512 for
            text to image, in which the published model ends.
        id2label: class names by id, of a class-conditional model.

    Raises:
        OSError, ValueError: as `read_official` and `transformer_from_official`; no size for a class-conditional model.
    """
    state = read_official(file)
    if sample_size is None and "y_pos_embedding" not in state:
        raise ValueError("sample_size: expected 256 or 512, the file does not tell")
    transformer = transformer_from_official(state, sample_size or 512)
    if isinstance(transformer, PixNerdTextTransformer2DModel):
        scheduler = PixNerdScheduler(solver="adams", solver_order=2, shift=3.0, guidance_interval=(0.0, 1.0))
        return PixNerdTextToImagePipeline(transformer, scheduler, text_encoder_name="Qwen/Qwen3-1.7B")
    return PixNerdPipeline(transformer, PixNerdScheduler(), id2label=id2label)


class _Inert:
    """Stands for a class or function of a checkpoint that we do not know: takes anything and does nothing."""

    stands_for: type | None = None  # a container, where the file puts items into it

    def __new__(cls, *args, **kwargs):
        return cls.stands_for() if cls.stands_for else super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __setstate__(self, state) -> None:
        pass


def _load_inert(file: Path) -> dict:
    """A file of torch.save by `weights_only=True`, in which stand-ins take the place of what this does not know."""
    unknown = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    stubs = {name: type(f"Inert{number}", (_Inert,), {}) for number, name in enumerate(unknown)}
    while True:
        try:
            with torch.serialization.safe_globals([(stub, name) for name, stub in stubs.items()]):
                return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:  # it says which stand-in should have been a container
            refused = re.search(r"Can only (\w+) .*\.(Inert\d+)'>", str(error))
            stub = next((s for s in stubs.values() if refused and s.__name__ == refused[2]), None)
            if stub is None or stub.stands_for:
                raise
            stub.stands_for = OrderedDict if refused[1].startswith("SETITEM") else list


def read_official(file: str | Path) -> dict[str, Tensor]:
    """The network's weights from an official file, the averaged ones if it has them, without their prefix.

    Lightning checkpoints are read with `weights_only=True`; globals that this refuses become inert stand-ins, so that
    nothing in the file is run. The file is mapped, not read: only the tensors that are used take memory.

    Args:
        file: `.ckpt`, `.pt` or `.safetensors`; hf:USER/NAME/FILE for one on the Hub.

    Raises:
        OSError: no such file, or it is broken.
        ValueError: it holds no PixNerd.
    """
    if str(file).startswith("hf:"):
        file = _fetch(str(file).removeprefix("hf:"))
    file = Path(file)
    if not file.is_file():
        raise OSError(f"checkpoint: no file {file}")
    try:
        loaded = load_file(file) if file.suffix == ".safetensors" else _load_inert(file)
    except Exception as error:  # zip, pickle and format errors, each of its own kind
        raise OSError(
            f"checkpoint: {file} cannot be read; fetch it again if it is not whole ({first_line(error)})"
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    state = {str(key).replace("_orig_mod.", ""): tensor for key, tensor in state.items()}  # torch.compile's wrapper
    for prefix in PREFIXES:
        if f"{prefix}s_embedder.proj.weight" in state:
            return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
    raise ValueError(f"checkpoint: {file} has no tensor s_embedder.proj.weight; it holds no official PixNerd")


def _fetch(name: str) -> str:
    """Path of a file of the Hub, given as USER/NAME/FILE."""
    user, _, rest = name.partition("/")
    repository, _, file = rest.partition("/")
    if not file:
        raise ValueError(f"checkpoint: expected hf:USER/NAME/FILE, got hf:{name}")
    try:
        return hf_hub_download(f"{user}/{repository}", file)
    except Exception as error:  # of the network, of access, of names: each has its own kind
        raise OSError(f"checkpoint: cannot fetch hf:{name} ({type(error).__name__}: {first_line(error)})") from error


def write_official(pipeline: PixelPipeline, file: str | Path) -> None:
    """Write the weights of a pipeline's network as a checkpoint that the official code reads, under `ema_denoiser.`.

    Raises:
        ValueError: the official code has no such network, or would take its answer for a velocity.
    """
    if pipeline.scheduler.config.prediction_type != "velocity":
        raise ValueError(
            "pipeline: expected a network that predicts the velocity, this one predicts the clean image, as the demos "
            "do; train with --prediction_type velocity"
        )
    transformer = pipeline.transformer
    official = to_official(transformer.state_dict())
    if transformer.config.get("head_type", "neural_field") != "neural_field":
        raise ValueError("pipeline: expected a neural field, the official code has no network with a linear head")
    expected = _network_of(official, transformer.config.sample_size).config
    for name, value in expected.items():
        if not name.startswith("_") and transformer.config[name] != value:
            raise ValueError(f"pipeline: the official code has no network with {name} {transformer.config[name]!r}")
    state = {f"ema_denoiser.{key}": tensor for key, tensor in official.items()}
    with replacing(Path(file)) as partial:
        torch.save({"state_dict": state}, partial)
