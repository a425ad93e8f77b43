"""Loading either pipeline, and many samples, each from a seed of its own."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from .pipeline import PixelPipeline, PixNerdPipeline, to_bytes
from .text_pipeline import PixNerdTextToImagePipeline


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


def load_pipeline(name: str | Path, **options) -> PixelPipeline:
    """The pipeline in a folder or a Hub repository, class-conditional or text-to-image.

    Args:
        options: of `from_pretrained`.

    Raises:
        OSError: nothing there that could be loaded.
    """
    try:
        kind = PixNerdPipeline.load_config(str(name)).get("_class_name")
    except Exception:  # from_pretrained says what is wrong
        kind = None
    text = (kind[-1] if isinstance(kind, list) else kind) == PixNerdTextToImagePipeline.__name__
    return (PixNerdTextToImagePipeline if text else PixNerdPipeline).from_pretrained(name, **options)


def sample_many(
    pipeline: PixelPipeline,
    conditions: Sequence[int | str] | Tensor,
    seed: int,
    batch_size: int,
    progress: bool = True,
    **options,
) -> Tensor:
    """A sample of each condition; number i comes from a generator seeded with `seed` + i, whatever the batch.

    Args:
        conditions: class ids or names; prompts, or their features (prompts, text_length, text_dim).
        options: passed on to the pipeline.

    Returns:
        (items, channels, height, width) uint8, on the CPU.
    """
    device, images = pipeline.device, []
    pipeline.set_progress_bar_config(disable=True)
    starts = range(0, len(conditions), batch_size)
    for start in tqdm(starts, desc=f"sampling {len(conditions)} images", unit="batch", disable=not progress):
        chunk = conditions[start : start + batch_size]
        features = isinstance(chunk, Tensor) and chunk.ndim == 3
        options |= {"prompt_embeds": chunk} if features else {}
        generators = [torch.Generator(device).manual_seed(seed + start + i) for i in range(len(chunk))]
        asked = [] if features else [list(chunk)]
        out = pipeline(*asked, generator=generators, output_type="latent", **options)
        images.append(to_bytes(out.images).cpu())
    return torch.cat(images)
