"""What a project of this repository is: a folder at the top with a pyproject.toml and code under src/."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]

REPOSITORY = "https://github.com/iclr26/papers"
"""The address in every `pip install "… @ git+…"` of a README; `make lint` compares them with this line."""

TOOLS = "tools"
"""The one project that others may use, and only in these scripts and in tests."""
TOOLS_SCRIPTS = ("evaluate.py", "reproduce.py", "benchmark.py")

NOT_SOURCE = {"__pycache__", "build", "dist", "outputs", "venv", "wandb"}


@dataclass(frozen=True)
class Project:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def settings(self) -> dict:
        file = self.folder / "pyproject.toml"
        try:
            return tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{file}: {error}") from None

    @cached_property
    def packages(self) -> list[str]:
        """Names one can import once the project is installed."""
        return sorted(p.name for p in (self.folder / "src").glob("*") if any(p.glob("*.py")))

    @property
    def own_environment(self) -> bool:
        """A project whose versions clash with the others' has a constraints.txt, and so a .venv, of its own."""
        return (self.folder / "constraints.txt").exists()

    @property
    def environment(self) -> Path:
        return (self.folder if self.own_environment else self.folder.parent) / ".venv"

    @property
    def constraints(self) -> Path:
        return (self.folder if self.own_environment else self.folder.parent) / "constraints.txt"

    def commands(self, kind: str) -> list[str]:
        """The commands under `[tool.iclr26]` for `kind` (demo, train, reproduce, standalone), in order."""
        own = self.settings.get("tool", {}).get("iclr26", {}).get(kind, [])
        if not own and kind == "train" and (self.folder / "train.py").exists():
            own = "accelerate launch -q train.py"
        if not own and kind == "reproduce" and (self.folder / "reproduce.py").exists():
            own = "python reproduce.py"
        return [own] if isinstance(own, str) else list(own)

    def python_files(self) -> Iterator[Path]:
        return (path for path in self.files() if path.suffix == ".py")

    def files(self) -> Iterator[Path]:
        """Files that belong to the project: those that git does not ignore, or without git all but the usual output."""
        git = ["git", "-C", str(self.folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "."]
        listed = subprocess.run(git, capture_output=True, text=True)
        if listed.returncode == 0 and listed.stdout:
            paths = (self.folder / name for name in listed.stdout.split("\0") if name)
        else:
            paths = (p for p in self.folder.rglob("*") if not _is_output(p.relative_to(self.folder)))
        return (path for path in sorted(set(paths)) if path.is_file())


def _is_output(path: Path) -> bool:
    return any(part in NOT_SOURCE or part.startswith(".") or part.endswith(".egg-info") for part in path.parts)


def projects(names: list[str] | None = None, root: Path = ROOT) -> list[Project]:
    """The projects that have code, the tools first; or those named.

    Raises:
        ValueError: for a name that is none of them; the message lists those that exist.
    """
    found = {}
    for file in sorted(root.glob("*/pyproject.toml"), key=lambda f: (f.parent.name != TOOLS, f.parent.name)):
        project = Project(file.parent)
        if project.packages:
            found[project.name] = project
    for name in names or []:
        if name not in found:
            raise ValueError(f"no project {name!r} with code here; there is: {', '.join(found) or 'none yet'}")
    return [found[name] for name in names] if names else list(found.values())
