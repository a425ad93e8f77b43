"""Sheets of images."""

import unicodedata

from PIL import Image, ImageDraw
from torch import Tensor


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
    margin = 8 + max(7 * len(name) for name in row_names) if row_names else 0
    sheet = Image.new("RGB", (margin + columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(row_names or []):
        name = unicodedata.normalize("NFC", name)
        draw.text((6, gap + row * (height + gap) + height // 2), name, fill="black", anchor="lm", font_size=12)
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
        draw.text((x + 6, head // 2), title, fill="black", anchor="lm", font_size=12)
    return both
