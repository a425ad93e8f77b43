"""Many samples, each from a seed of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from .pipeline import PixNerdPipeline, to_bytes


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


def sample_many(
    pipeline: PixNerdPipeline, labels: Sequence[int | str], seed: int, batch_size: int, progress: bool = True, **options
) -> Tensor:
    """A sample of each label; number i comes from a generator seeded with `seed` + i, whatever the batch.

    Args:
        labels: class ids or names.
        options: passed on to the pipeline.

    Returns:
        (items, channels, height, width) uint8, on the CPU.
    """
    device, images = pipeline.device, []
    pipeline.set_progress_bar_config(disable=True)
    starts = range(0, len(labels), batch_size)
    for start in tqdm(starts, desc=f"sampling {len(labels)} images", unit="batch", disable=not progress):
        chunk = list(labels[start : start + batch_size])
        generators = [torch.Generator(device).manual_seed(seed + start + i) for i in range(len(chunk))]
        images.append(to_bytes(pipeline(chunk, generator=generators, output_type="latent", **options).images).cpu())
    return torch.cat(images)
