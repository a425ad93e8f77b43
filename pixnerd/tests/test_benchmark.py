"""The benchmark's own work, at tiny sizes and in a copy of the project: never a time, only what it says it measures."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .runs import PROJECT, environment

SMALL = dict(rounds=6, warmup=0, threads=1, head_size='["S/8", 8, 1]', training_sizes='[["S/8", 8, 1]]', device="cpu")
SMALL |= dict(sampling_size='["S/8", 8, 1]', sampling_steps=2, guidance_steps=20, picture_size='["S/8", 16]')
SMALL |= dict(head_memory_images=2, tile_size=1)


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


def rows(project: Path) -> dict[str, list]:
    tables = json.loads((project / "results" / "benchmark.json").read_text())["tables"]
    assert all("6 rounds, 1 CPU threads" in t["caption"] for t in tables.values())
    return {name: t["rows"] for name, t in tables.items()}


def test_tables_are_measured_one_by_one_and_kept(project):
    options = dict(memory=False, variants="[plain, fast, tiled, tiled_checkpointed, linear]")
    first = benchmark(project, tables="[head, guidance]", **options)
    assert first.returncode == 0, first.stderr
    assert "picture: not measured" in first.stdout
    assert rows(project).keys() == {"head", "guidance"}
    kept = (project / "results" / "runs" / "benchmark-head.json").read_text()

    second = benchmark(project, **options)
    assert second.returncode == 0, second.stderr
    found = rows(project)
    assert found.keys() == {"head", "training", "sampling", "guidance", "picture"}
    assert (project / "results" / "runs" / "benchmark-head.json").read_text() == kept
    assert [row[0] for row in found["head"]] == ["plain", "fast", "tiled", "tiled_checkpointed", "linear"]
    assert [row[0] for row in found["sampling"]] == ["plain", "fast", "tiled", "linear"]
    assert all(row[1]["low"] <= row[1]["value"] <= row[1]["high"] for row in found["head"])
    # of 20 Euler steps those at 0, 0.05 and 0.1 are not guided
    assert [row[:2] for row in found["guidance"]] == [["skipped", 37.0], ["evaluated", 40.0]]
    picture = json.loads((project / "results" / "benchmark.json").read_text())["tables"]["picture"]
    assert "89 evaluations of two images and 11 of one, 189 in all" in picture["caption"]
    for name, _, one, two, decode, whole, *_ in picture["rows"]:
        assert (decode == "–") == ("DiT" not in name)
        low, high = (89 * two[end] + 11 * one[end] + (0 if decode == "–" else decode[end]) for end in ("low", "high"))
        assert low <= whole["value"] <= high  # of six rounds the interval is all of them


WHAT_IS_COMPARED = """
import benchmark
from benchmark import BenchmarkConfig, NETWORKS, PRESETS, PlainHead, networks
config = BenchmarkConfig(device="cpu", threads=1, tile_size=3)
names = [name for name in benchmark.ARMS]
for name, network in networks(names, PRESETS["S/8"] | {"num_layers": 1}, 8, config).items():
    head = network.head
    kind = "plain" if isinstance(head, PlainHead) else type(head).__name__
    print(name, kind, getattr(head, "tile_size", None), getattr(head, "gradient_checkpointing", False))
ours, latent = NETWORKS["PixNerd"](PRESETS["S/8"], 16), NETWORKS["DiT"](PRESETS["S/8"], 16)
print(len(ours.blocks) + len(ours.head.blocks), len(latent.transformer_blocks))
"""


def test_versions_are_what_they_are_called(project):
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IS_COMPARED], cwd=project, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *lines, depths = done.stdout.strip().splitlines()
    found = {name: rest for name, *rest in map(str.split, lines)}
    assert found["plain"][0] == found["plain_compiled"][0] == "plain"
    assert found["fast"] == found["compiled"] == ["NeuralFieldHead", "None", "False"]
    assert found["tiled"] == ["NeuralFieldHead", "3", "False"]
    assert found["checkpointed"] == ["NeuralFieldHead", "None", "True"]
    assert found["tiled_checkpointed"] == ["NeuralFieldHead", "3", "True"]
    assert found["linear"][0] == "LinearHead"
    assert len(set(depths.split())) == 1


def test_memory_is_measured_in_processes_that_find_the_script(project):
    done = benchmark(project, tables="[head]", variants="[fast]", head_size='["S/8", 128, 1]')
    assert done.returncode == 0, done.stderr
    assert rows(project)["head"][0][-1] > 1  # MiB


def test_sizes_without_a_network_are_refused(project):
    done = benchmark(project, head_size='["S/9", 8, 1]')
    assert done.returncode == 2
    assert "head_size: expected a preset, one of S/8" in done.stderr and done.stderr.count("\n") == 1
