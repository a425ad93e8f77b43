"""The benchmark's own work, at tiny sizes and in a copy of the project: never a time, only what it says it measures."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .runs import PROJECT, environment

pytest.importorskip("iclr26_tools")
SMALL = dict(rounds=6, warmup=0, threads=1, device="cpu", hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
SMALL |= dict(context=8, batch_size=1, vocab_size=16, generation_context=12, new_tokens=4)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name in ("src", "tests"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "benchmark.py", folder)
    return folder


def benchmark(project: Path, **more) -> subprocess.CompletedProcess:
    options = [part for name, value in (SMALL | more).items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "benchmark.py", *options]
    return subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True)


def tables(project: Path) -> dict[str, list]:
    found = json.loads((project / "results" / "benchmark.json").read_text())["tables"]
    assert all("6 rounds, 1 CPU threads" in t["caption"] for t in found.values())
    return {name: t["rows"] for name, t in found.items()}


def test_tables_are_measured_one_by_one_and_kept(project):
    first = benchmark(project, tables="[step, generation]", memory=False)
    assert first.returncode == 0, first.stderr
    assert tables(project).keys() == {"step", "generation"}
    kept = (project / "results" / "runs" / "benchmark-step.json").read_text()
    second = benchmark(project, tables="[step, gradient]", memory=False)
    assert second.returncode == 0, second.stderr
    found = tables(project)
    assert found.keys() == {"step", "gradient", "generation"}
    assert (project / "results" / "runs" / "benchmark-step.json").read_text() == kept
    assert [row[0] for row in found["step"]][:3] == ["GPT_Rec_parallel", "FF1", "FF2W"]
    relative = {row[0]: row[3] for row in found["step"]}
    assert relative["FF1"] == pytest.approx(1) and relative["FF2W"] > 1.2
    assert abs(relative["GPT of FF2W's FLOPs"] / relative["FF2W"] - 1) < 0.3
    for row in found["step"]:
        assert row[6] == pytest.approx(row[5]["value"] / row[3])
    assert [row[1] for row in found["gradient"]] == ["torch.func.grad", "closed form"] * 4
    assert {row[1] for row in found["generation"]} == {"cache", "recomputed"}


def test_memory_is_measured_in_processes_that_find_the_script(project):
    done = benchmark(project, tables="[step]", models="[FF2W]", hidden_size=64, context=64, batch_size=4)
    assert done.returncode == 0, done.stderr
    assert all(row[-1] > 0.5 for row in tables(project)["step"])  # MiB


def test_wrong_sizes_are_refused(project):
    done = benchmark(project, new_tokens=12)
    assert done.returncode == 2
    assert "new_tokens: expected less than generation_context" in done.stderr and done.stderr.count("\n") == 1
