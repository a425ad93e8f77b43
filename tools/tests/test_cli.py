import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

from iclr26_tools.cli import main
from iclr26_tools.images import write_npz


@pytest.fixture
def folders(tmp_path):
    """Dark pictures, other dark pictures, and bright ones, of the same names."""
    generator = torch.Generator().manual_seed(0)
    for name, low in (("dark", 0), ("dark2", 0), ("bright", 150)):
        (tmp_path / name).mkdir()
        for i in range(8):
            pixels = torch.randint(low, low + 100, (16, 16, 3), dtype=torch.uint8, generator=generator)
            Image.fromarray(pixels.numpy()).save(tmp_path / name / f"{i}.png")
    return tmp_path


def run(*arguments):
    main([str(a) for a in arguments])


def test_kid_writes_distance_and_floor_with_the_network_name(folders, capsys):
    options = ["--extractor", "efficientnet-lite0@64", "--json", folders / "out.json"]
    run("kid", folders / "bright", folders / "dark", "--floor", folders / "dark2", *options)
    report = json.loads((folders / "out.json").read_text())
    assert report["network"] == "efficientnet-lite0@64" and report["samples"] == 8
    assert report["distance"]["value"] > abs(report["floor"]["value"])
    out = capsys.readouterr().out
    assert "efficientnet-lite0@64" in out and "floor" in out


def test_the_installed_command_runs():
    done = subprocess.run([sys.executable, "-m", "iclr26_tools.cli", "kid", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--floor" in done.stdout


def test_precision_and_recall_of_a_set_with_itself(folders):
    run(
        "pr", folders / "dark", folders / "dark", "--extractor", "efficientnet-lite0@64", "--json", folders / "out.json"
    )
    report = json.loads((folders / "out.json").read_text())
    assert report["precision"] == report["recall"] == 1


def test_the_score_by_another_classifier_carries_its_name(folders):
    options = ["--extractor", "efficientnet-lite0@64", "--splits", "4", "--json", folders / "out.json"]
    run("isc", folders / "bright", folders / "dark", *options)
    report = json.loads((folders / "out.json").read_text())
    assert report["metric"] == "classifier score, 4 splits of 2" and report["network"] == "efficientnet-lite0@64"
    assert 1 <= report["score"]["value"] <= 2 and 1 <= report["real"]["value"] <= 2  # of two samples


def test_fid_refuses_a_small_sample_in_one_line(folders, capsys):
    with pytest.raises(SystemExit) as stop:
        run("fid", folders / "bright", folders / "dark", "--extractor", "efficientnet-lite0@64")
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2 and error.startswith("iclr26-tools: ") and "5 samples per dimension" in error


def test_psnr_and_ssim_of_pairs(folders):
    a = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    write_npz(folders / "a.npz", a)
    write_npz(folders / "b.npz", a + 10)
    run("psnr", folders / "a.npz", folders / "b.npz", "--json", folders / "out.json")
    assert json.loads((folders / "out.json").read_text())["mean"]["value"] == pytest.approx(28.1308, abs=1e-3)
    run("ssim", folders / "dark", folders / "dark", "--json", folders / "out.json")
    assert json.loads((folders / "out.json").read_text())["mean"]["value"] == pytest.approx(1)


def test_pairs_need_partners(folders, capsys):
    (folders / "dark/3.png").rename(folders / "dark/x.png")
    with pytest.raises(SystemExit):
        run("ssim", folders / "dark", folders / "bright")
    assert "3 has no partner" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("kid", "{}/nowhere", "{}/dark"), "no folder or .npz file"),
        (("kid", "{}/dark", "{}/dark", "--extractor", "efficientnet-lite0@1"), "efficientnet-lite0@SIDE"),
        (("kid", "{}/dark", "{}/dark", "--nonsense", "1"), "nonsense"),
        (("kid", "{}/dark", "{}/dark", "--size", "big"), "size"),
        (("psnr", "{}/dark", "{}/dark"), "infinite"),
        (("results", "check", "{}"), "README.md"),
    ],
)
def test_wrong_input_ends_with_status_two(folders, capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        run(*(a.format(folders) for a in arguments))
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_debug_shows_the_traceback(folders):
    with pytest.raises(FileNotFoundError):
        run("kid", folders / "nowhere", folders / "dark", "--debug")


def test_results_are_rendered_and_checked(tmp_path, capsys):
    from iclr26_tools import results

    (tmp_path / "m.py").write_text("x = 1")
    (tmp_path / "README.md").write_text("<!-- results: r -->\n<!-- /results -->\n")
    results.save(tmp_path / "results/r.json", title="t", claim=None, metric="m", arms={}, budget="core", seeds=[0],
                 config={}, verdict=None, tables={"main": results.table("Scores.", ["a"], [[0.5]])},
                 code_paths=["m.py"], environment=results.environment([]))  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        run("results", "check", tmp_path)
    assert stop.value.code == 2
    run("results", "render", tmp_path)
    (tmp_path / "m.py").write_text("x = 2")
    run("results", "check", tmp_path)
    assert "warning:" in (err := capsys.readouterr().err) and "code has changed" in err
