"""Images for metrics: from a folder, an .npz of the ADM evaluator, or a tensor, to uint8 (N, 3, height, width)."""

import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


def check_images(images: Tensor, name: str = "images") -> None:
    """Raise a ValueError unless `images` is uint8 (N, 3, height, width) with N >= 1."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        kind = f"{images.dtype} tensor" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"{name}: expected a uint8 tensor, got {kind}")
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise ValueError(f"{name}: expected shape (N, 3, height, width), got {tuple(images.shape)}")


def load_images(source: str | Path | Tensor, size: int | tuple[int, int] | None = None) -> Tensor:
    """Read images.

    Args:
        source: a folder (every picture below it, in the order of `image_files`), an .npz with uint8 `arr_0`
            (N, height, width, 3), or a uint8 tensor (N, 3, height, width). Transparent pictures are laid on white.
        size: side, or (height, width), to which each image is resized, aspect ratio ignored (bicubic,
            antialiased). None: all must have the same size.

    Returns:
        uint8, (N, 3, height, width).

    Raises:
        ValueError: a file that cannot be read (named), differing sizes, no pictures.
        FileNotFoundError: no such file or folder.
    """
    if isinstance(source, Tensor):
        check_images(source, "source")
        return resize(source, size) if size else source
    path = Path(source)
    if path.suffix == ".npz":
        images = _read_npz(path)
        return resize(images, size) if size else images
    files = image_files(path)
    images = [_read(file) for file in files]
    if size:
        images = [resize(image, size) for image in images]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            (h, w), (h0, w0) = image.shape[-2:], images[0].shape[-2:]
            raise ValueError(f"{file} is {w} x {h} pixels, {files[0]} is {w0} x {h0}; give a size to resize to")
    return torch.cat(images)


def image_files(folder: str | Path) -> list[Path]:
    """The pictures below a folder, sorted by relative path; a warning counts visible files of other kinds."""
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"no folder or .npz file {folder}")
    if not folder.is_dir():
        raise ValueError(f"source: expected a folder or an .npz file, got {folder}")
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    pictures = [p for p in files if p.suffix.lower() in SUFFIXES]
    if not pictures:
        raise ValueError(f"no pictures ({', '.join(sorted(SUFFIXES))}) below {folder}")
    if len(pictures) < len(files):
        other = next(p for p in files if p.suffix.lower() not in SUFFIXES)
        warnings.warn(
            f"{folder}: {len(files) - len(pictures)} files are not pictures, such as {other.name}", stacklevel=2
        )
    return pictures


def write_npz(path: str | Path, images: Tensor) -> None:
    """Write uint8 images (N, 3, height, width) as `arr_0`, (N, height, width, 3): the format of the ADM evaluator."""
    check_images(images)
    with open(path, "wb") as file:  # np.savez would append .npz to another suffix
        np.savez(file, arr_0=images.permute(0, 2, 3, 1).cpu().numpy())


def resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Resize uint8 images (N, 3, height, width) by antialiased bicubic interpolation."""
    check_images(images)
    size = (size, size) if isinstance(size, int) else tuple(size)
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size: expected a positive side or (height, width), got {size}")
    if images.shape[-2:] == size:
        return images
    resized = F.interpolate(images.float(), size, mode="bicubic", antialias=True, align_corners=False)
    return resized.round().clamp(0, 255).to(torch.uint8)


def _read(file: Path) -> Tensor:
    try:
        with Image.open(file) as picture:
            picture = ImageOps.exif_transpose(picture)
            if "A" in picture.getbands() or "transparency" in picture.info:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            pixels = np.array(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what Pillow raises
        raise ValueError(f"cannot read the picture {file}: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)[None]


def _read_npz(path: Path) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "arr_0" not in archive:
                raise ValueError(f"expected an array arr_0, got {sorted(archive)}")
            array = archive["arr_0"]
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise ValueError(f"cannot read {path}: {error}") from error
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        raise ValueError(f"{path}: expected arr_0 uint8 (N, height, width, 3), got {array.dtype} {array.shape}")
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()
