"""Sheets of images."""

import functools
import importlib.util
import unicodedata
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor


@functools.cache
def font() -> ImageFont.FreeTypeFont | None:
    """Matplotlib's, where it is installed; Pillow's own has no letters beyond ASCII."""
    found = importlib.util.find_spec("matplotlib")
    file = (
        Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf" if found and found.origin else None
    )
    return ImageFont.truetype(str(file), 12) if file and file.is_file() else None


def write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str) -> None:
    """Small black text, its middle on the left at `place`; what the font lacks loses its accents or goes."""
    text = unicodedata.normalize("NFC", text)
    if font() is None:
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        draw.text(place, text, fill="black", anchor="lm", font_size=12)
    else:
        draw.text(place, text, fill="black", anchor="lm", font=font())


def grid(
    images: Tensor, columns: int, *, scale: int = 1, gap: int = 2, row_names: list[str] | None = None
) -> Image.Image:
    """Images side by side, row by row, on white.

    Args:
        images: (items, 3, height, width), uint8.
        columns: images a row.
        scale: whole factor by which small images are enlarged, pixel by pixel.
        gap: pixels between images.
        row_names: written before each row.
    """
    height, width = (side * scale for side in images.shape[-2:])
    rows = -(-len(images) // columns)
    margin = 14 + max(7 * len(name) for name in row_names) if row_names else 0
    sheet = Image.new("RGB", (margin + columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(row_names or []):
        write(draw, (6, gap + row * (height + gap) + height // 2), name)
    for number, array in enumerate(images.permute(0, 2, 3, 1).cpu().numpy()):
        row, column = divmod(number, columns)
        tile = Image.fromarray(array).resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(tile, (margin + gap + column * (width + gap), gap + row * (height + gap)))
    return sheet


def beside(left: Image.Image, right: Image.Image, titles: list[str], space: int = 24) -> Image.Image:
    """Two sheets of the same height with a title above each."""
    head = 24
    both = Image.new("RGB", (left.width + space + right.width, head + max(left.height, right.height)), "white")
    draw = ImageDraw.Draw(both)
    for sheet, x, title in zip((left, right), (0, left.width + space), titles, strict=True):
        both.paste(sheet, (x, head))
        write(draw, (x + 6, head // 2), title)
    return both
