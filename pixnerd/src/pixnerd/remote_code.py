"""Makes a saved model loadable by who does not have this package: each class's code as one file beside its weights."""

import ast
import inspect
from pathlib import Path


def bundle(module_file: Path) -> str:
    """The source of a module with the modules that it imports relatively put in front of it, once each.

    diffusers fetches one file a component from the Hub, so relative imports would not be found there.

    Raises:
        ValueError: a relative import that is not of the form `from .module import name, ...`.
    """
    seen: set[Path] = set()

    def inline(path: Path) -> str:
        seen.add(path)
        source = path.read_text(encoding="utf-8")
        lines, front = source.splitlines(), []
        for node in ast.parse(source).body:
            if not (isinstance(node, ast.ImportFrom) and node.level):
                continue
            if node.level > 1 or not node.module or any(alias.asname for alias in node.names):
                raise ValueError(f"{path.name}:{node.lineno}: expected `from .module import name`")
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
            dependency = path.parent / f"{node.module}.py"
            if dependency not in seen:
                front.append(inline(dependency))
        return "\n\n".join([*front, "\n".join(lines).strip() + "\n"])

    return inline(module_file)


def write_code(cls: type, folder: Path) -> str:
    """Write the code of `cls` into `folder` and return the module's name there."""
    module = "pixnerd_" + cls.__module__.rpartition(".")[2].removeprefix("pixnerd_")
    code = bundle(Path(inspect.getfile(cls)))
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    return module
