"""Copied code is identical to its source.

A block under `# Copied from package.module.object` (or `… with Old->New`) equals that function, class, method or
constant, indentation and trailing blanks aside. `src/NAME/checkpointing.py` and `src/NAME/cli.py` are the same file in
every project that has one. Code from outside the repository, or changed on purpose, is marked `# Adapted from`.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

from project import ROOT, TOOLS, Project, projects

MARK = re.compile(r"^\s*# Copied from (?P<source>[\w.]+\w)\.?(?: with (?P<changes>.+))?$")
WHOLE_FILES = ("checkpointing.py", "cli.py")


def check(found: list[Project], root: Path) -> list[str]:
    packages = {package: p.folder / "src" / package for p in found for package in p.packages}
    problems = []
    for project in found:
        for file in project.python_files():
            lines = file.read_text().splitlines()
            marks = [(n, m) for n, line in enumerate(lines, start=1) if (m := MARK.match(line))]
            for number, mark in marks:
                where = f"{file.relative_to(root)}:{number}"
                source = find(mark["source"], packages)
                if source is None:
                    problems.append(f"{where}: copied from {mark['source']}, which does not exist in this repository")
                    continue
                wanted, origin = source
                for change in (mark["changes"] or "").split(","):
                    old, arrow, new = change.strip().partition("->")
                    wanted = wanted.replace(old, new) if arrow else wanted
                if block_after(file, number) != wanted:
                    problems.append(f"{where}: differs from its source {origin.relative_to(root)} ({mark['source']})")
    papers = {package: folder for package, folder in packages.items() if TOOLS not in folder.relative_to(root).parts}
    return problems + [p for name in WHOLE_FILES for p in check_whole(name, papers, root)]


def check_whole(name: str, packages: dict[str, Path], root: Path) -> list[str]:
    copies = [folder / name for folder in packages.values() if (folder / name).exists()]
    problems = []
    for copy in copies[1:]:
        first, other = (c.read_bytes().splitlines(keepends=True) for c in (copies[0], copy))
        if first != other:
            same = next(
                (n for n, (a, b) in enumerate(zip(first, other), start=1) if a != b), min(map(len, (first, other)))
            )
            problems.append(f"{copy.relative_to(root)}:{same}: differs from {copies[0].relative_to(root)}")
    return problems


def find(source: str, packages: dict[str, Path]) -> tuple[str, Path] | None:
    """The text of `package.module.object` and its file."""
    package, *rest = source.split(".")
    if package not in packages:
        return None
    for length in range(len(rest) - 1, -1, -1):  # the longest prefix that is a module
        path = packages[package].joinpath(*rest[:length])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                text = file.read_text()
                node = ast.parse(text)
                for name in rest[length:]:
                    node = next((n for n in getattr(node, "body", []) if name in names(n)), None)
                if node is not None:
                    return block(text, node), file
    return None


def block_after(file: Path, number: int) -> str | None:
    """The statement that begins below line `number`, other comments skipped."""
    text = file.read_text()
    lines = text.splitlines()
    while number < len(lines) and (not lines[number].strip() or lines[number].lstrip().startswith("#")):
        number += 1
    starts = {first_line(n): n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)}
    return block(text, starts[number + 1]) if number + 1 in starts else None


def names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n for n in (getattr(node, "name", None), *(getattr(t, "id", None) for t in targets)) if n]


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def block(text: str, node: ast.stmt) -> str:
    lines = text.splitlines()[first_line(node) - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(line.rstrip() for line in lines))


if __name__ == "__main__":
    problems = check(projects(), ROOT)
    print("\n".join(problems) or "copies are identical to their sources")
    sys.exit(bool(problems))
