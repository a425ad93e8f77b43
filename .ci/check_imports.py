"""Each project imports the standard library, itself and what it declares, and nothing else.

Declared is what stands in its pyproject.toml (dependencies and extras) and requirements-data.txt. Under src/ an extra
is imported only inside a function, under `try` or under `if TYPE_CHECKING`, and so are torchvision and timm. No
project imports another one; the tools may be used by evaluate.py, reproduce.py, benchmark.py and tests.

A pyproject.toml has a section for pytest, which makes its folder pytest's root. Without one the root is the
repository, and then `import pixnerd` in a test finds the folder pixnerd/ in place of the package.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from project import ROOT, TOOLS, TOOLS_SCRIPTS, Project, projects

HEAVY = {"torchvision", "timm"}
# For distributions that are declared but not installed here; what is installed says it itself.
IMPORT_NAMES = {
    "biopython": {"Bio"},
    "beautifulsoup4": {"bs4"},
    "gymnasium": {"gymnasium"},
    "opencv-python": {"cv2"},
    "opencv-python-headless": {"cv2"},
    "pillow": {"PIL"},
    "protobuf": {"google"},
    "python-dateutil": {"dateutil"},
    "pyyaml": {"yaml"},
    "scikit-image": {"skimage"},
    "scikit-learn": {"sklearn"},
}


def check(project: Project, others: list[Project], root: Path, installed: dict[str, list[str]]) -> list[str]:
    """`installed` maps each importable name to its distributions (`importlib.metadata.packages_distributions`)."""
    core, extras = declared(project)
    core_names, extra_names = import_names(core, installed), import_names(extras, installed)
    foreign = {package: p.name for p in others if p.name != project.name for package in p.packages}
    files = list(project.python_files())
    own = set(project.packages)
    beside = own | {f.stem for f in files if "src" not in f.parts} | {"tests"}  # scripts and tests import each other
    problems = []
    if (project.folder / "tests").is_dir() and "pytest" not in project.settings.get("tool", {}):
        problems.append(
            f"{project.name}/pyproject.toml: no section [tool.pytest.ini_options], so tests miss the package"
        )
    for file in files:
        inside = file.relative_to(project.folder)
        in_package = inside.parts[0] == "src"
        may_use_tools = inside.parts[0] == "tests" or str(inside) in TOOLS_SCRIPTS
        for name, line, lazy in imports(ast.parse(file.read_text(), str(file))):
            where = f"{file.relative_to(root)}:{line}: {name}"
            if name in sys.stdlib_module_names or name in (own if in_package else beside):
                continue
            if name in foreign:
                if foreign[name] != TOOLS:
                    problems.append(f"{where} is another project ({foreign[name]})")
                elif not may_use_tools:
                    problems.append(f"{where} is for tests and {', '.join(TOOLS_SCRIPTS)} only")
            elif name not in core_names | extra_names:
                problems.append(f"{where} is not declared in {project.name}/pyproject.toml")
            elif in_package and not lazy and name in HEAVY:
                problems.append(f"{where} may be imported only where it is used (inside a function)")
            elif in_package and not lazy and name not in core_names:
                problems.append(f"{where} is an extra: import it inside the function that needs it")
    return problems


def declared(project: Project) -> tuple[set[str], set[str]]:
    """Distribution names: those always installed, and those of extras and requirements-data.txt."""
    settings = project.settings["project"]
    extras = [r for group in settings.get("optional-dependencies", {}).values() for r in group]
    data = project.folder / "requirements-data.txt"
    extras += data.read_text().splitlines() if data.exists() else []
    return distributions(settings.get("dependencies", [])), distributions(extras)


def distributions(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9][\w.-]*", requirement.strip()) for requirement in requirements)
    return {normal(match[0]) for match in found if match}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def import_names(distributions: set[str], installed: dict[str, list[str]]) -> set[str]:
    names = {name for name, owners in installed.items() if distributions & {normal(owner) for owner in owners}}
    for distribution in distributions:
        names |= IMPORT_NAMES.get(distribution, {distribution.replace("-", "_")})
    return names


def imports(tree: ast.AST, lazy: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Top name, line and whether the import waits (inside a function, `try` or `if TYPE_CHECKING`), of each import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0], node.lineno, lazy
        else:
            waits = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try))
            waits |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, lazy or waits)


def installed_names(project: Project) -> dict[str, list[str]]:
    python = project.environment / "bin" / "python"
    code = "import importlib.metadata as m, json; print(json.dumps(m.packages_distributions()))"
    command = [str(python) if python.exists() else sys.executable, "-c", code]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    found = projects()
    problems = [p for project in projects(sys.argv[1:]) for p in check(project, found, ROOT, installed_names(project))]
    print("\n".join(problems) or "imports are declared and stay inside their project")
    sys.exit(bool(problems))
