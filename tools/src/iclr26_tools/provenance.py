"""Where a result comes from: the machine, the versions, the commit, and a hash of the code that made it."""

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch
import yaml


def environment(packages: Iterable[str], seconds: float | None = None, folder: str | Path = ".") -> dict:
    """Python, versions, machine and commit, without host name or paths.

    Args:
        packages: distribution names, such as "torch"; None stands for one that is not installed.
        seconds: wall time of all runs together.
        folder: the project; its commit and whether it holds changes (results and README aside, which the
            scripts write) are recorded, None outside a git checkout.
    """
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "machine": {
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": _memory_gib(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
        },
        "seconds": None if seconds is None else round(float(seconds), 1),
        "commit": _git(folder, "rev-parse", "HEAD"),
        "dirty": _dirty(folder),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git(folder: str | Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _dirty(folder: str | Path) -> bool | None:
    changes = _git(folder, "status", "--porcelain", "--", ".", ":(exclude)results", ":(exclude)README.md")
    return None if changes is None else bool(changes)


def code_hash(paths: Iterable[str | Path], root: str | Path = ".") -> str:
    """Hash of what code and configs mean: unchanged by comments, docstrings, formatting and key order.

    Python files enter as syntax trees without docstrings, YAML and JSON files as their parsed content, other
    files as bytes.

    Args:
        paths: files and folders, relative to `root`; of a folder, all .py, .yaml and .yml files below it.
        root: the project; file names enter the hash relative to it.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: a file that does not parse.
    """
    root, files = Path(root).resolve(), set()
    for path in paths:
        path = root / path
        if not path.exists():
            raise FileNotFoundError(f"code_hash: no file or folder {path}")
        found = path.rglob("*") if path.is_dir() else [path]
        files |= {p for p in found if p.is_file() and (p == path or p.suffix in {".py", ".yaml", ".yml"})}
    digest = hashlib.sha256()
    for name, path in sorted((os.path.relpath(path, root).replace(os.sep, "/"), path) for path in files):
        digest.update(json.dumps([name, _meaning(path)]).encode())
    return digest.hexdigest()[:16]


def _meaning(path: Path) -> str:
    try:
        if path.suffix == ".py":
            return _tree(ast.parse(path.read_text(encoding="utf-8")))
        if path.suffix in {".yaml", ".yml", ".json"}:
            return json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")), sort_keys=True, default=str)
    except (SyntaxError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} does not parse: {error}") from error
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tree(node) -> str:
    """Like `ast.dump`, whose output changes between Python versions, without strings that stand as statements."""
    if isinstance(node, list):
        return "[" + ",".join(_tree(item) for item in node if not _is_idle(item)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name != "kind" and value not in (None, []))
    return f"{type(node).__name__}({','.join(f'{name}={_tree(value)}' for name, value in fields)})"


def _is_idle(node) -> bool:
    string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return string or isinstance(node, ast.Pass)
