import json

import numpy as np
import pytest
import torch

from iclr26_tools.runs import RunList, share
from iclr26_tools.statistics import Interval, t_interval

RUNS = [{"arm": arm, "seed": seed, "steps": 10} for arm in ("ours", "plain") for seed in range(3)]


def score(run):
    return {"score": np.float32(run["seed"] + (run["arm"] == "ours")), "curve": torch.arange(2)}


def test_each_run_leaves_its_file(tmp_path):
    runs = RunList(tmp_path / "runs", RUNS, "h")
    assert len(runs.pending()) == 6 and runs.result("ours-2") is None
    runs.execute(score, progress=False)
    assert runs.pending() == [] and list(runs.finished()) == [f"{r['arm']}-{r['seed']}" for r in RUNS]
    record = json.loads((tmp_path / "runs/ours-2.json").read_text())
    assert record["options"] == RUNS[2] and record["code_hash"] == "h" and record["seconds"] >= 0
    assert runs.result("ours-2") == {"score": 3.0, "curve": [0, 1]}


def test_a_run_may_return_an_interval(tmp_path):
    runs = RunList(tmp_path, RUNS[:1], "h")
    runs.execute(lambda run: t_interval([1.0, 2.0, 3.0]), progress=False)
    assert Interval(**runs.result("ours-0")) == t_interval([1.0, 2.0, 3.0])


def test_an_interrupted_list_resumes_with_the_rest_only(tmp_path):
    seen = []

    def interrupted(run):
        seen.append((run["arm"], run["seed"]))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return score(run)

    with pytest.raises(KeyboardInterrupt):
        RunList(tmp_path, RUNS, "h").execute(interrupted, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours-0.json", "ours-1.json"]
    RunList(tmp_path, RUNS, "h").execute(interrupted, progress=False)
    assert seen[3:] == [("ours", 2), ("plain", 0), ("plain", 1), ("plain", 2)]


def test_shards_cover_the_list_once(tmp_path):
    runs = RunList(tmp_path, RUNS, "h")
    parts = [runs.pending(f"{i}/4") for i in range(1, 5)]
    assert sorted(sum(parts, [])) == sorted(runs.runs) and len(parts[3]) == 1
    runs.execute(score, shard="2/4", progress=False)
    assert len(runs.finished()) == 2
    assert runs.pending("1/4") == parts[0]  # what others finish does not move the shares
    assert [share("abcde", f"{i}/2") for i in (1, 2)] == ["ace", "bd"]
    for bad in ("0/4", "5/4", "1", "a/b"):
        with pytest.raises(ValueError, match="shard: expected"):
            runs.pending(bad)


def test_a_result_of_other_code_is_reported_and_run_again_unless_kept(tmp_path):
    RunList(tmp_path, RUNS[:1], "old").execute(score, progress=False)
    assert RunList(tmp_path, RUNS[:1], "new", keep_stale=True).pending() == []
    runs = RunList(tmp_path, RUNS[:1], "new")
    assert runs.finished() == {} and "other code (old)" in runs.stale()["ours-0"]
    with pytest.warns(UserWarning, match="ours-0.json: comes from other code .*run again"):
        runs.execute(lambda run: "fresh", progress=False)
    assert runs.result("ours-0") == "fresh" and runs.stale() == {}


def test_a_result_of_other_options_is_another_run_even_if_stale_ones_are_kept(tmp_path):
    RunList(tmp_path, RUNS[:1], "h").execute(score, progress=False)
    runs = RunList(tmp_path, [RUNS[0] | {"steps": 20}], "h", keep_stale=True)
    assert runs.pending() == ["ours-0"] and "steps: 10, now 20" in runs.stale()["ours-0"]


def test_a_diverged_run_is_recorded_without_its_numbers(tmp_path):
    runs = RunList(tmp_path, RUNS[:1], "h")
    runs.execute(lambda run: {"loss": [1.0, float("nan")], "fine": 2}, progress=False)
    assert runs.result("ours-0") == {"loss": [1.0, None], "fine": 2}
    assert runs.record("ours-0")["non_finite"] == ["loss[1]"]


def test_a_broken_file_is_named(tmp_path):
    runs = RunList(tmp_path, RUNS, "h")
    runs.execute(score, progress=False)
    (tmp_path / "plain-1.json").write_text((tmp_path / "plain-1.json").read_text()[:40])
    with pytest.raises(ValueError, match="plain-1.json is not valid JSON"):
        runs.pending()
    (tmp_path / "plain-1.json").write_text("[]")
    with pytest.raises(ValueError, match="plain-1.json: expected an object"):
        runs.pending()


def test_bad_lists_are_named(tmp_path):
    with pytest.raises(ValueError, match="expected arm and seed"):
        RunList(tmp_path, [{"arm": "a"}], "h")
    with pytest.raises(ValueError, match="'ours-0' twice"):
        RunList(tmp_path, [RUNS[0], RUNS[0] | {"steps": 1}], "h")
    with pytest.raises(ValueError, match="name that can be a file's"):
        RunList(tmp_path, [{"arm": "a/b", "seed": 0}], "h")
    assert list(RunList(tmp_path, [RUNS[0] | {"name": "other"}], "h").runs) == ["other"]
    with pytest.raises(ValueError, match="ours-0.json: .*not JSON serializable"):
        RunList(tmp_path, RUNS, "h").execute(lambda run: object(), progress=False)
