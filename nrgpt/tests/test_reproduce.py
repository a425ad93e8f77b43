"""The experiments of reproduce.py: the list of runs from end to end, and the arithmetic of the report."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

from nrgpt.sizes import count_parameters, forward_flops

from .runs import PROJECT, script

results = pytest.importorskip("iclr26_tools.results")
reproduce = script("reproduce")
CONFIG = yaml.safe_load((PROJECT / "configs" / "reproduce.yaml").read_text())


def parsed(values: dict):
    parser = ArgumentParser()
    parser.add_class_arguments(reproduce.ReproduceConfig, as_group=False)
    found = parser.instantiate_classes(parser.parse_object(copy.deepcopy(values)))  # it changes what it is given
    return reproduce.ReproduceConfig(**vars(found))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The experiments in seconds, in a copy of the project's layout."""
    (tmp_path / "src").mkdir()
    shutil.copy(PROJECT / "reproduce.py", tmp_path)
    monkeypatch.setattr(reproduce, "PROJECT", tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} of the text, to be or not to be.\n" for i in range(200)))
    data = dict(dataset="listops", functions=["max"], max_depth=1, train_samples=300, test_samples=20)
    small = dict(seconds=0.15, tuning_seconds=0.05, seeds=[1, 2], batch_size=4)
    listops = CONFIG["experiments"]["listops"] | small | dict(data=data)
    listops |= dict(compare=[["a", "b"]], full={}, options=listops["options"] | dict(context=16))
    listops["core"] = {
        "a": dict(model="NRGPT_H_FF2W", hidden_size=8),
        "b": dict(model="GPT_Rec_parallel", hidden_size=8),
    }
    gap = CONFIG["experiments"]["overfit"] | small | dict(data=dict(dataset=str(text), tokenizer="characters"))
    gap |= dict(core={n: arm | dict(hidden_size=8) for n, arm in gap["core"].items()}, full={})
    gap |= dict(options=gap["options"] | dict(context=16, num_hidden_layers=2))
    descent = CONFIG["descent"] | dict(hidden_size=8, tokens=3, steps=60, seeds=[0, 1])
    values = CONFIG | dict(experiments={"listops": listops, "overfit": gap}, windows=4, prompts=10, timing_rounds=6)
    values |= dict(descent=descent)
    return parsed(values | dict(output=str(tmp_path / "results"), learning_rates=[1e-3, 1e-2]))


def names(config) -> set[str]:
    return {path.stem for path in (config.output / "runs").glob("*.json")}


def test_experiments_in_two_shards_resume_and_end_in_a_report(tiny, capsys):
    reproduce.main(replace(tiny, report=True))
    assert results.load(tiny.output / "listops.json")["verdict"]["reason"] == "runs are missing"
    with pytest.raises(ValueError, match="run with --only timing first"):
        reproduce.main(replace(tiny, shard="1/2"))
    reproduce.main(replace(tiny, only="timing"))
    assert names(tiny) == {"timing-listops", "timing-overfit"}
    for shard in ("1/2", "2/2"):
        reproduce.main(replace(tiny, shard=shard))
    arms = [("listops", "a"), ("listops", "b"), ("overfit", "ff2w"), ("overfit", "gpt")]
    expected = {f"{e}-{arm}-{last}" for e, arm in arms for last in ("1", "2", "tune-0.001", "tune-0.01")}
    assert names(tiny) == expected | {"timing-listops", "timing-overfit"}
    reproduce.main(replace(tiny, only="descent"))
    before = {path.name: path.stat().st_mtime_ns for path in (tiny.output / "runs").iterdir()}
    (tiny.output / "runs" / "listops-a-2.json").unlink()
    reproduce.main(tiny)
    after = {path.name: path.stat().st_mtime_ns for path in (tiny.output / "runs").iterdir()}
    assert {name for name in after if before[name] != after[name]} == {"listops-a-2.json"}

    found = results.load(tiny.output / "listops.json")
    runs = {
        n: json.loads((tiny.output / "runs" / f"listops-{n}.json").read_text()) for n in ("a-1", "a-2", "b-1", "b-2")
    }
    difference = [runs[f"a-{s}"]["result"]["accuracy"] - runs[f"b-{s}"]["result"]["accuracy"] for s in (1, 2)]
    assert found["tables"]["effect"]["rows"][0][0]["value"] == pytest.approx(sum(difference) / 2)
    tuned = {
        lr: json.loads((tiny.output / "runs" / f"listops-a-tune-{lr}.json").read_text()) for lr in ("0.001", "0.01")
    }
    best = min(tuned, key=lambda lr: tuned[lr]["result"]["loss"])
    assert runs["a-1"]["options"]["lr"] == float(best)
    timing = json.loads((tiny.output / "runs" / "timing-listops.json").read_text())["result"]
    assert runs["a-1"]["options"]["steps"] == round(0.15 / timing["a"])
    curve = runs["a-1"]["result"]["curve"]
    assert curve[-1]["step"] == runs["a-1"]["options"]["steps"]
    assert curve[-1]["gap"] == pytest.approx(curve[-1]["loss"] - curve[-1]["training_loss"])
    assert (tiny.output / "overfit.png").is_file() and (tiny.output / "descent.png").is_file()
    rows = results.load(tiny.output / "descent.json")["tables"]["descent"]["rows"]
    assert [row[3]["value"] for row in rows if "Proposition" in row[1]] == [
        1,
        1,
    ]  # the first token's energy never rises
    assert "answering always" in capsys.readouterr().out


def test_a_run_is_the_same_again(tiny):
    options = reproduce.run_of(tiny, "overfit", "gpt", 3, 1e-2, 5, False)
    first, second = reproduce.train(tiny, options), reproduce.train(tiny, options)
    assert first == second
    assert reproduce.train(tiny, options | dict(seed=4))["loss"] != first["loss"]


def test_tuning_reads_the_end_of_the_training_text_only(tiny, monkeypatch):
    seen = {}
    monkeypatch.setattr(reproduce, "step_once", lambda m, o, stream, *rest: seen.update(train=stream) or 1.0)
    monkeypatch.setattr(
        reproduce, "stream_losses", lambda m, stream, *r: seen.update(tune=stream) or (stream * 0.0, None)
    )
    options = reproduce.run_of(tiny, "overfit", "gpt", 0, 1e-2, 1, True)
    reproduce.train(tiny, options)
    corpus = reproduce.load(tiny, tiny.experiments["overfit"])
    assert len(seen["train"]) + len(seen["tune"]) == len(corpus.train)
    assert (seen["tune"] == corpus.train[len(seen["train"]) :]).all()
    assert len(seen["tune"]) == int(0.05 * len(corpus.train))


def test_a_run_that_diverges_is_not_chosen(tiny, monkeypatch):
    monkeypatch.setattr(reproduce, "step_once", lambda *rest: float("nan"))
    options = reproduce.run_of(tiny, "overfit", "gpt", 0, 1e-2, 3, True)
    assert reproduce.train(tiny, options) == {"loss": None, "diverged_at": 1}


@pytest.mark.parametrize(
    "measure, margin, method, baseline, verdict",
    [
        ("accuracy", 0.1, [0.9, 0.92], [0.91, 0.92], "shown"),
        ("accuracy", 0.0, [0.9, 0.92], [0.91, 0.92], "inconclusive"),
        ("loss", 0.05, [1.50, 1.51], [1.40, 1.41], "inconclusive"),
        ("gap", 0.0, [0.10, 0.11], [0.50, 0.51], "shown"),
    ],
)
def test_effects_point_the_right_way(measure, margin, method, baseline, verdict):
    experiment = SimpleNamespace(measure=measure, seeds=[1, 2], compare=[["m", "b"]])
    found = {
        arm: SimpleNamespace(runs=[{measure: value} for value in values])
        for arm, values in {"m": method, "b": baseline}.items()
    }
    effects = reproduce.effects_of(experiment, found)
    sign = 1 if measure == "accuracy" else -1
    assert effects == pytest.approx([sign * (m - b) for m, b in zip(method, baseline)])
    interval = reproduce.t_interval(effects)
    judged = results.verdict((interval.low + margin, interval.high + margin), "higher")
    assert judged["verdict"] == verdict
    found["m"].runs[1] = None
    assert reproduce.effects_of(experiment, found) == []


def test_the_real_configuration_matches_sizes_and_fits_the_budget():
    config = parsed(CONFIG)
    reproduce.check(config)
    assert set(reproduce.experiments(config)) == {"listops", "shakespeare", "overfit", "bpe"}
    seconds = 0.0
    for experiment in config.experiments.values():
        rates = len(config.learning_rates)
        each = rates * experiment.tuning_seconds + len(experiment.seeds) * experiment.seconds
        seconds += len(experiment.core) * each
    assert seconds == 9660
    experiment = config.experiments["listops"]
    for arm, options in experiment.core.items():
        assert reproduce.shape_of(config, experiment, options).hidden_size == int(arm.split("-")[-1])
    assert set(config.experiments["listops"].seeds) & {config.tuning_seed} == set()


def test_matched_arms_have_the_size_of_their_reference(tiny):
    experiment = tiny.experiments["overfit"]
    reference, matched = (reproduce.shape_of(tiny, experiment, experiment.core[arm]) for arm in ("ff2w", "gpt"))
    assert count_parameters(matched) == pytest.approx(count_parameters(reference), rel=0.5)
    flops = reproduce.shape_of(tiny, experiment, experiment.core["gpt"] | dict(match={"flops": "ff2w"}))
    assert forward_flops(flops, 16) == pytest.approx(forward_flops(reference, 16), rel=0.5)


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(learning_rates=[]), "learning_rates"),
        (dict(measured_at=[0.5]), "measured_at"),
        (dict(shard="3/2"), "shard"),
        (dict(min_share=0.0), "min_share"),
        (dict(windows=1), "windows"),
    ],
)
def test_wrong_values_are_named(tiny, changed, message):
    with pytest.raises(ValueError, match=message):
        reproduce.main(replace(tiny, **changed))


def test_a_comparison_of_arms_that_are_not_there_is_refused(tiny):
    experiment = replace(tiny.experiments["listops"], compare=[["a", "c"]])
    with pytest.raises(ValueError, match="compare: expected pairs of arms"):
        reproduce.main(replace(tiny, experiments={"listops": experiment}))


def test_threads_are_one(tiny):
    reproduce.main(replace(tiny, only="nothing"))
    assert torch.get_num_threads() == 1 and not Path(tiny.output / "runs").exists()
