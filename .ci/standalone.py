"""Each project runs when its folder is all there is.

Its files are copied to an empty place, and the commands of `[tool.iclr26] standalone` run there. The other projects
cannot be imported, the tools only by the scripts that measure, and nothing of the repository can be read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from project import TOOLS, TOOLS_SCRIPTS, Project, projects

HOOK = Path(__file__).resolve().parent / "isolation"
LIMIT = 300  # seconds for one command


def check(project: Project, others: list[Project], bin: Path) -> str:
    """Empty when all commands pass, else what failed and the last lines of its output."""
    commands = project.commands("standalone")
    if not commands:
        return "" if project.name == TOOLS else 'no standalone = ["…"] under [tool.iclr26] in its pyproject.toml'
    with tempfile.TemporaryDirectory(prefix=f"standalone-{project.name}-") as temporary:
        copy = Path(temporary).resolve() / project.name
        for file in project.files():
            target = copy / file.relative_to(project.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        for command in commands:
            log = Path(temporary) / "output.log"
            with log.open("w") as out:
                options = {"cwd": copy, "env": isolated(command, project, others, bin, copy)}
                try:
                    code = subprocess.run(
                        command, shell=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=LIMIT, **options
                    ).returncode
                except subprocess.TimeoutExpired:
                    code = f"none after {LIMIT} s"
            if code != 0:
                end = "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-30:])
                return f"$ {command}\n{end}\n    (status {code})"
    return ""


def isolated(command: str, project: Project, others: list[Project], bin: Path, copy: Path) -> dict[str, str]:
    measures = any(script in command for script in TOOLS_SCRIPTS)
    allowed = [p for p in others if p.name == project.name or (p.name == TOOLS and measures)]
    refused = [p for p in others if p not in allowed]
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "ISOLATION_ALLOWED": ",".join(str(p.folder.resolve()) for p in allowed if p.name == TOOLS),
        "ISOLATION_REFUSED": ",".join(package for p in refused for package in p.packages),
        "ISOLATION_ROOT": str(project.folder.parent.resolve()),
        "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(copy / "src")]),
    }


if __name__ == "__main__":
    failed, found = False, projects()
    for project in projects(sys.argv[1:]):
        start = time.monotonic()
        problem = check(project, found, project.environment / "bin")
        failed |= bool(problem)
        print(f"  {project.name}: {problem or 'OK'} ({time.monotonic() - start:.0f} s)", flush=True)
    sys.exit(failed)
