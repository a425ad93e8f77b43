"""The targets of the Makefile: set up an environment once, then run what a project declares.

A project's pyproject.toml says how it is run:

    [tool.iclr26]
    demo = ["accelerate launch -q train.py", "python evaluate.py", "python sample.py"]
    standalone = ["accelerate launch -q train.py --steps 2"]    # seconds; run on a copy of the folder alone
    train = "accelerate launch -q train.py"                     # the default where there is a train.py
    reproduce = "python reproduce.py"                           # the default where there is a reproduce.py

Commands run in the project's folder, with its environment's bin first on PATH. That environment is `.venv`, or
`PROJECT/.venv` for a project that has a constraints.txt of its own.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; choose one: make PYTHON=python3.11 …")

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from project import ROOT, TOOLS, Project, projects

MAIN = "pixnerd"
CHECKS = ("check_copies", "check_imports", "check_results", "check_readme")


def main(target: str) -> int:
    paper, arguments = os.environ.get("PAPER", ""), os.environ.get("ARGS", "")
    if target == "clean":
        return clean()
    if target in ("demo", "train", "reproduce"):
        return run(target, projects([paper or MAIN])[0], arguments)
    if arguments:
        raise ValueError("ARGS goes with train and reproduce")
    chosen = projects([paper] if paper else None)
    seconds, broken = install(chosen, shared=target == "lint" or not paper)
    print(f"set-up: {seconds:.0f} s", flush=True)
    if target == "install":
        return bool(broken)
    return {"test": test, "lint": lint, "standalone": standalone}[target](chosen, bool(paper), broken)


# ---- the targets


def run(target: str, project: Project, arguments: str) -> int:
    commands = project.commands(target)
    if not commands:
        raise ValueError(f'{project.name} has no {target}: add {target} = ["…"] to [tool.iclr26] in its pyproject.toml')
    if arguments and target == "demo":
        raise ValueError("ARGS goes with train and reproduce; a demo takes none")
    seconds, broken = install([project])
    if broken:
        return 1
    print(f"set-up: {seconds:.0f} s", flush=True)
    interrupts = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))  # a training saves first, then we follow
    start = time.monotonic()
    for command in commands:
        command = f"{command} {arguments}".strip()
        print(f"\n{project.name}$ {command}", flush=True)
        code = subprocess.run(command, shell=True, cwd=project.folder, env=environment(project)).returncode
        if interrupts:
            return 130
        if code:
            print(f"{target} of {project.name}: the last command left with status {code}", file=sys.stderr)
            return code if code > 0 else 128 - code
    print(f"\n{target} of {project.name}: {time.monotonic() - start:.0f} s, after {seconds:.0f} s of set-up")
    return 0


def test(chosen: list[Project], one: bool, broken: set[str]) -> int:
    """One pytest process for each project, so that their scripts and conftests cannot meet."""
    parity = (ROOT.parent / "shared" / "data" / "parity").resolve()
    reference = {"PARITY_DATA": str(parity), "REQUIRE_PARITY": "1"} if parity.is_dir() else {}
    suites = [(p.name, p.folder / "tests", environment(p) | reference, p.name in broken) for p in chosen]
    if not one:
        suites.append((".ci", ROOT / ".ci" / "tests", shared_environment(), False))
    outcome = {}
    for name, folder, env, failed in suites:
        start = time.monotonic()
        print(f"\n{name}$ python -m pytest {folder.relative_to(ROOT)}", flush=True)
        if failed:
            print("not run: its set-up failed")
        elif not folder.is_dir():
            print("it has no tests")
            failed = True
        else:
            pytest = ["python", "-m", "pytest", str(folder.relative_to(ROOT)), "--import-mode=importlib"]
            pytest += [f"--rootdir={folder.parent}"]  # else `import pixnerd` in a test would be the folder pixnerd/
            failed = subprocess.run(pytest, cwd=ROOT, env=env).returncode != 0
        outcome[f"tests of {name}"] = (not failed, time.monotonic() - start)
    start = time.monotonic()
    failed = standalone(chosen, one, broken)
    outcome["standalone"] = (not failed, time.monotonic() - start)
    return summary(outcome)


def standalone(chosen: list[Project], one: bool, broken: set[str]) -> int:
    names = [p.name for p in chosen if p.name not in broken]
    print("\neach project alone", flush=True)
    return subprocess.run([sys.executable, ".ci/standalone.py", *names], cwd=ROOT).returncode if names else 0


def lint(chosen: list[Project], one: bool, broken: set[str]) -> int:
    where = [p.name for p in chosen] if one else ["."]
    checks = [["ruff", "check", *where], ["ruff", "format", "--check", *where]]
    checks += [["python", f".ci/{check}.py", *(where if one else [])] for check in CHECKS]
    outcome = {"set-up": (not broken, 0.0)} if broken else {}
    for command in checks:
        start = time.monotonic()
        print(f"\n$ {' '.join(command)}", flush=True)
        code = subprocess.run(command, cwd=ROOT, env=shared_environment()).returncode
        outcome[" ".join(command[:2])] = (code == 0, time.monotonic() - start)
    return summary(outcome)


def summary(outcome: dict[str, tuple[bool, float]]) -> int:
    print()
    for name, (passed, seconds) in outcome.items():
        print(f"  {'ok    ' if passed else 'FAILED'} {name} ({seconds:.0f} s)")
    return 0 if all(passed for passed, _ in outcome.values()) else 1


def clean() -> int:
    caches = ("__pycache__", ".pytest_cache", ".ruff_cache", "*.egg-info")
    environments = [ROOT / ".venv", *ROOT.glob("*/.venv")]
    for path in environments + [p for cache in caches for p in ROOT.rglob(cache) if ".git" not in p.parts]:
        shutil.rmtree(path, ignore_errors=True)
    return 0


# ---- environments


def environment(project: Project) -> dict[str, str]:
    return _variables(project.environment)


def shared_environment() -> dict[str, str]:
    return _variables(ROOT / ".venv")


def _variables(venv: Path) -> dict[str, str]:
    path = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return {k: v for k, v in os.environ.items() if k != "PYTHONHOME"} | {"VIRTUAL_ENV": str(venv), "PATH": path}


def install(chosen: list[Project], shared: bool = False) -> tuple[float, set[str]]:
    """Set up what the projects need, each once; returns the seconds and the names of those that failed."""
    start, broken = time.monotonic(), set()
    tools = [p for p in projects() if p.name == TOOLS]
    if shared or not all(p.own_environment for p in chosen):
        prepare(ROOT / ".venv", ROOT / "constraints.txt")
    for project in dict.fromkeys([*(tools if shared else []), *chosen]):  # make lint runs the tools themselves
        venv, constraints = project.environment, project.constraints
        try:
            if project.own_environment:
                prepare(venv, constraints)
            for part in dict.fromkeys([*tools, project]):  # the scripts that measure use the tools
                data, manifest = part.folder / "requirements-data.txt", part.folder / "pyproject.toml"
                extras = part.settings["project"].get("optional-dependencies", {})
                wanted = [extra for extra in ("eval", "dev") if extra in extras]
                editable = f"{part.folder}[{','.join(wanted)}]" if wanted else str(part.folder)
                steps = [["-c", str(constraints), "-e", editable]]
                if data.exists():
                    steps.append(["--no-deps", "-r", str(data)])
                once(venv, part.name, [constraints, manifest, data], steps)
        except ChildProcessError as error:
            print(error, file=sys.stderr)
            broken.add(project.name)
    return time.monotonic() - start, broken


def prepare(venv: Path, constraints: Path) -> None:
    """The environment itself with PyTorch, before any project, so that no project brings another build of it."""
    here, stamp = str(venv), venv / ".installed-python"
    moved = stamp.exists() and stamp.read_text() != here
    if moved or not (venv / "bin" / "python").exists():
        print(f"  {venv.relative_to(ROOT)}: new environment of Python {sys.version.split()[0]}", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)]).returncode:
            raise OSError("python -m venv failed; on Debian and Ubuntu: apt install python3-venv")
        stamp.write_text(here)
    pin = re.search(r"^torch==[^\s;]+", constraints.read_text(), re.M)
    if not pin:
        raise ValueError(f"{constraints.relative_to(ROOT)} must have a line torch==VERSION")
    once(venv, "torch", [constraints], [["-c", str(constraints), pin[0]]])
    tools = ["pytest", "pytest-xdist"] + (["ruff"] if venv.parent == ROOT else [])
    once(venv, "pytest", [constraints], [["-c", str(constraints), *tools]])


def once(venv: Path, name: str, files: list[Path], steps: list[list[str]]) -> None:
    """Run the pip steps unless they have run with the same files before."""
    key = hashlib.sha256(repr(steps).encode())
    for file in files:
        key.update(file.read_bytes() if file.exists() else b"none")
    stamp = venv / f".installed-{name}"
    if stamp.exists() and stamp.read_text() == key.hexdigest():
        return
    stamp.unlink(missing_ok=True)
    start = time.monotonic()
    print(f"  {venv.relative_to(ROOT)}: installing {name}", flush=True)
    for step in steps:
        pip(venv, step)
    print(f"  {venv.relative_to(ROOT)}: {name} is there ({time.monotonic() - start:.0f} s)", flush=True)
    stamp.write_text(key.hexdigest())


def pip(venv: Path, arguments: list[str]) -> None:
    """pip with its output in a file; every 15 seconds its last line is shown, and all of the end when it fails."""
    log, start = venv / "pip.log", time.monotonic()
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    with log.open("w") as out:
        process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    while process.poll() is None:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            last = (log.read_text(errors="replace").split("\n") or [""])[-2:]
            print(f"    {time.monotonic() - start:.0f} s: {' '.join(last).strip()[:100]}", flush=True)
    if process.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise ChildProcessError(f"{end}\n\npip install {' '.join(arguments)} failed; what it said is above")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except (ValueError, OSError) as error:
        print(f"make: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
