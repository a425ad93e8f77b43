"""Images for metrics: from a folder, an .npz of the ADM evaluator, or a tensor, to uint8 (N, 3, height, width)."""

import json
import os
import warnings
import zipfile
from collections.abc import Iterable
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
            (N, height, width, 3), held in memory twice while it is read, or a uint8 tensor (N, 3, height, width).
            Transparent pictures are laid on white.
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
    """Write uint8 images (N, 3, height, width) as `arr_0`, (N, height, width, 3): the format of the ADM evaluator.

    Readers see the old file or the whole new one. `NpzWriter` takes more images than the memory holds.
    """
    check_images(images)
    count, _, height, width = images.shape
    _save_npz(Path(path), (count, height, width), map(_bytes, images.split(64)))


class NpzWriter:
    """Writes the .npz of the ADM evaluator batch by batch, in the memory of a batch, and goes on where it was left.

    The images lie in PATH.partial until `finish` copies them into the .npz. The disk must hold both, 2 x 9.8 GB for
    50,000 images of 256 pixels a side.

    Args:
        path: of the .npz.
        shape: number of images, height, width.
        settings: plain data that fixes the images.

    Raises:
        ValueError: PATH.partial was begun with another shape or other settings.
    """

    def __init__(self, path: str | Path, shape: tuple[int, int, int], settings: dict) -> None:
        self.path, self.shape = Path(path), tuple(shape)
        self.partial = self.path.with_name(f"{self.path.name}.partial")
        head = json.dumps({"shape": list(shape), "settings": settings}, sort_keys=True).encode() + b"\n"
        self._head, self._size = len(head), 3 * shape[1] * shape[2]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.partial, "ab+") as file:
            file.seek(0)
            found = file.readline()
            if not found.endswith(b"\n"):  # new, or left before its first line was whole
                file.truncate(0)
                file.write(head)
                found = head
            if found != head:
                began, asked = (line.decode(errors="replace").strip() for line in (found, head))
                raise ValueError(f"{self.partial}: expected a file of {asked}, got one of {began}; delete or rename it")
            self.done = (file.seek(0, os.SEEK_END) - self._head) // self._size
            file.truncate(self._head + self.done * self._size)  # an image that was cut off

    def append(self, images: Tensor) -> None:
        """Add uint8 images (n, 3, height, width); `done` counts those that are there."""
        check_images(images)
        if images.shape[2:] != self.shape[1:] or self.done + len(images) > self.shape[0]:
            left = (self.shape[0] - self.done, 3, *self.shape[1:])
            raise ValueError(f"images: expected at most {left}, got {tuple(images.shape)}")
        with open(self.partial, "ab") as file:
            file.write(_bytes(images))
        self.done += len(images)

    def finish(self) -> None:
        """Make the .npz of all images and remove the partial file."""
        if self.done != self.shape[0]:
            raise ValueError(f"finish: expected {self.shape[0]} images, got {self.done}")
        with open(self.partial, "rb") as file:
            file.seek(self._head)
            _save_npz(self.path, self.shape, iter(lambda: file.read(1 << 24), b""))
        self.partial.unlink()


def _bytes(images: Tensor) -> bytes:
    return images.permute(0, 2, 3, 1).cpu().contiguous().numpy().tobytes()


def _save_npz(path: Path, shape: tuple[int, int, int], chunks: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive, archive.open("arr_0.npy", "w", force_zip64=True) as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (*shape, 3)}
                np.lib.format.write_array_header_1_0(member, header)
                for chunk in chunks:
                    member.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
