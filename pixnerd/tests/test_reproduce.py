"""The experiment of reproduce.py: its list of runs from end to end, and its arithmetic on curves with known answers."""

import importlib.util
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from iclr26_tools import results
from iclr26_tools.statistics import detectable_effect, t_interval
from pixnerd import PixNerdTransformer2DModel, photographs
from pixnerd.flow import draw

from .runs import PROJECT, script

reproduce = script("reproduce")
CONFIG = yaml.safe_load((PROJECT / "configs" / "reproduce.yaml").read_text())


class StandInExtractor:
    """The mean colours of a picture and of its halves."""

    name, dim = "means", 9

    def __call__(self, images):
        parts = [images, images[:, :, :8], images[..., :8]]
        return torch.cat([part.float().mean((2, 3)) / 128 for part in parts], dim=1)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(reproduce, "load_extractor", lambda spec: StandInExtractor())
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", photographs.PHOTOGRAPHS[:1])  # scikit-learn's


@pytest.fixture
def data(tmp_path) -> Path:
    """Small images in three classes, of which about a tenth is held out."""
    file = tmp_path / "data.npz"
    images = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    np.savez(file, images=images, labels=np.arange(120) % 3, class_names=["a", "b", "c"])
    return file


def config(data: Path, tmp_path: Path, **more):
    """The experiment in seconds: its arms on a few small images."""
    values = CONFIG | dict(resolution=16, width=24, heads=2, blocks=1, field_blocks=1, head_channels=4, batch_size=4)
    values |= dict(steps=2, tuning_steps=2, error_at=[1, 2], samples_at=[1, 2], samples=4, solver_steps=2)
    values |= dict(learning_rates=[1e-3, 1e-2], seeds=[1, 2], full_seeds=[1, 2], timing_rounds=6, timing_threads=1)
    values |= dict(threads=1, output=tmp_path / "results") | more
    for budget in ("core", "full"):
        values[budget] = {name: {"dataset": str(data)} | arm for name, arm in values[budget].items()}
    return reproduce.ReproduceConfig(**values)


def some(*names: str) -> dict:
    return {name: (CONFIG["core"] | CONFIG["full"])[name] for name in names}


def written(tmp_path: Path) -> dict:
    return results.load(tmp_path / "results" / "reproduce.json")


def files(tmp_path: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "results" / "runs").iterdir()}


# The list


def test_core_in_two_shards_with_timing_apart_resumes_and_shows_what_is_missing(data, tmp_path, monkeypatch):
    options, judged, verdict = config(data, tmp_path), [], results.verdict
    monkeypatch.setattr(results, "verdict", lambda *args, **more: (judged.append(more), verdict(*args, **more))[1])
    reproduce.main(replace(options, report=True))
    empty = written(tmp_path)
    assert empty["verdict"] == {"verdict": "inconclusive", "reason": "runs are missing"}
    assert {cell for row in empty["tables"]["gain"]["rows"] for cell in row[2:]} == {None}
    (tmp_path / "results" / "reproduce.json").unlink()
    for shard in ("1/2", "2/2"):
        reproduce.main(replace(options, shard=shard))
    assert not (tmp_path / "results" / "reproduce.json").exists()
    arms = list(CONFIG["core"])
    expected = {f"{arm}-{seed}.json" for arm in arms for seed in (1, 2)} | {"floor-data.json"}
    expected |= {f"{arm}-tune-{lr}.json" for arm in arms for lr in ("0.001", "0.01")}
    assert files(tmp_path).keys() == expected

    reproduce.main(replace(options, report=True))
    before = written(tmp_path)
    gains = before["tables"]["gain"]["rows"]
    assert [row[1] for row in gains] == ["equal steps"] * 4 + ["equal seconds"] * 4
    assert all(cell is not None for row in gains[:4] for cell in row)
    assert all(cell is None for row in gains[4:] for cell in row[2:])  # the timing is missing

    network = json.loads((tmp_path / "results" / "runs" / "field-8-1.json").read_text())["options"]["network"]
    assert (network["hidden_size"], network["num_attention_heads"], network["head_channels"]) == (24, 2, 4)
    times = files(tmp_path)
    reproduce.main(replace(options, only="timing"))
    assert files(tmp_path).keys() - times.keys() == {"timing.json"}
    (tmp_path / "results" / "runs" / "skip-4-2.json").unlink()
    reproduce.main(replace(options, report=True))
    rows = written(tmp_path)["tables"]["gain"]["rows"]
    assert rows[0] == gains[0] and rows[4][2] is not None  # neural field over linear head
    assert rows[1][2] is None and rows[1][3] is not None and rows[1][-1] is None  # with skip, patch 4

    reproduce.main(options)  # what is missing, and the report
    after = files(tmp_path)
    assert {name for name in after if after[name] != times.get(name)} == {"skip-4-2.json", "timing.json"}
    end = written(tmp_path)
    assert end["tables"]["gain"]["rows"][:4] == gains[:4] and end["seeds"] == [1, 2] and end["budget"] == "core"
    assert end["claim"] == CONFIG["claim"] and "output" not in end["config"]
    assert [more["equal_budgets"] for more in judged] == [False, True, True, True]
    assert (tmp_path / "results" / "reproduce.png").stat().st_size > 10_000
    control = end["tables"]["control"]["rows"]
    assert 0.99 < control[1][2] < 2  # the linear head over its bound, 24 of 768 dimensions
    parameters = {row[0]: row[1] for row in end["tables"]["arms"]["rows"]}
    shape = json.loads((tmp_path / "results/runs/skip-8-1.json").read_text())["options"]["network"]
    assert parameters["skip-8"] == sum(
        p.numel() for p in PixNerdTransformer2DModel(sample_size=16, num_classes=3, **shape).parameters()
    )


def test_full_runs_every_arm_that_it_adds(data, tmp_path):
    full = {name: arm for name, arm in CONFIG["full"].items() if "photo" not in name or name.endswith("-4")}
    options = config(data, tmp_path, budget="full", full=full, learning_rates=[1e-3])
    reproduce.main(options)
    end = written(tmp_path)
    tables = end["tables"]
    assert {"gain", "gain-photographs", "gain-sample", "samples-sample", "arms-photographs"} <= tables.keys()
    assert [c["name"] for c in tables["gain"]["columns"][2:]] == [
        *(f"patch {p}" for p in (2, 4, 8, 16)),
        "patch 16 − patch 4",
    ]
    shown = [row for name in ("arms", "arms-photographs", "arms-sample") for row in tables[name]["rows"]]
    assert {row[0] for row in shown} >= CONFIG["core"].keys() | full.keys()
    assert None not in [cell for row in shown for cell in row]
    assert all(cell is not None for row in tables["gain-sample"]["rows"] for cell in row)
    assert all(row[-1] is None for row in tables["gain-photographs"]["rows"])  # patch 16 was left out
    runs = tmp_path / "results" / "runs"
    assert json.loads((runs / "sine-8-1.json").read_text())["options"]["network"]["head_code"] == "sine"
    assert json.loads((runs / "timing-full.json").read_text())["result"]["ratios"].keys() > {"field-2", "sine-8"}


def test_all_arms_of_a_seed_see_the_same_samples_times_noise_and_labels(data, tmp_path, monkeypatch):
    seen, forward = [], reproduce.Objective.forward
    monkeypatch.setattr(
        reproduce.Objective, "forward", lambda self, *batch: (seen.append(batch), forward(self, *batch))[1]
    )
    options = config(data, tmp_path, label_drop=0.5)
    arms = reproduce.read_arms(options)
    rates, parts = dict.fromkeys(arms, 0.001), reproduce.Parts(options, str(data))
    for run in reproduce.training_runs(options, arms, rates):
        list(reproduce.training(run, parts.train, torch.device("cpu")))
    by_seed = [seen[: 2 * len(arms)], seen[2 * len(arms) :]]
    for batches in by_seed:
        for i, batch in enumerate(batches):
            assert all(torch.equal(a, b) for a, b in zip(batch, batches[i % 2]))
    assert not torch.equal(by_seed[0][0][3], by_seed[1][0][3])
    chance = draw(1, 0, range(4), (3, 16, 16), torch.device("cpu"))
    assert torch.equal(seen[0][2], chance["t"]) and torch.equal(seen[0][3], chance["noise"])
    assert torch.equal(seen[0][1] == 3, chance["drop"] < 0.5) and len(seen[0][1].unique()) > 1


def test_what_is_measured_is_the_average_of_the_weights_at_that_step(data, tmp_path, monkeypatch):
    options = config(data, tmp_path, error_at=[1, 3], samples_at=[3], steps=3)
    run = reproduce.training_runs(options, reproduce.read_arms(options), {"field-4": 1e-2})[0]
    parts, device = reproduce.Parts(options, str(data)), torch.device("cpu")
    averages = [
        {name: tensor.clone() for name, tensor in ema.shadow.items()}
        for _, _, ema in reproduce.training(run, parts.train, device)
    ]
    measured, measure = [], reproduce.velocity_errors
    groups, adam = [], torch.optim.AdamW

    def spy(network, part, *rest):
        assert part is parts.held_out
        measured.append({name: p.detach().clone() for name, p in network.named_parameters()})
        return measure(network, part, *rest)

    monkeypatch.setattr(reproduce, "velocity_errors", spy)
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **more: (groups.append(more), adam(*args, **more))[1])
    out = reproduce.train_and_measure(run, parts, device)
    assert [at for at, _ in out["error"]] == [1, 3] and [at for at, _ in out["kid"]] == [3]
    assert out["error"][-1][1] == pytest.approx(np.mean(out["error_by_time"]))
    for weights, average in zip(measured, (averages[0], averages[2]), strict=True):
        assert all(torch.equal(weights[name], average[name]) for name in average)
    assert groups == [{"lr": 1e-2, "weight_decay": 0.0}]


def test_samples_start_from_the_same_noise_and_have_the_classes_of_held_out_images(data, tmp_path, monkeypatch):
    options = config(data, tmp_path)
    arms = reproduce.read_arms(options)
    parts, asked, predict = reproduce.Parts(options, str(data)), [], PixNerdTransformer2DModel.forward

    def spy(self, x, t, labels, *rest, **more):
        asked.append((t[0].item(), labels.tolist()))
        return predict(self, x, t, labels, *rest, **more)

    monkeypatch.setattr(PixNerdTransformer2DModel, "forward", spy)
    sets = []
    for run in reproduce.training_runs(options, arms, dict.fromkeys(arms, 1e-3))[: len(arms)]:
        network = PixNerdTransformer2DModel(sample_size=16, num_classes=3, **run["network"])
        sets.append(reproduce.sample(network, parts, run))
    assert sets[0].shape == (4, 3, 16, 16) and len(sets[0].unique()) > 100
    assert all(torch.equal(one, sets[0]) for one in sets)  # at first every network answers zero: the noise stays
    classes = parts.held_out.labels[:4].tolist()
    assert asked == [(0.0, classes), (0.5, classes)] * len(arms)  # two steps, and no guidance


def test_real_images_are_as_many_of_each_class_as_the_samples(data, tmp_path, monkeypatch):
    options = config(data, tmp_path)
    parts, seen = reproduce.Parts(options, str(data)), []
    monkeypatch.setattr(parts, "distances", lambda images: (seen.append(images), (0.0, 0.0))[1])
    out = reproduce.measure_real(reproduce.floor_runs(options, reproduce.read_arms(options))[0], parts)
    assert out["images"] == 4 and list(out["rank_bound"]) == [2, 4, 8, 16]
    known = parts.train.all_images()
    labels = [parts.train.labels[(known == image).all((1, 2, 3))].item() for image in seen[0]]
    assert Counter(labels) == Counter(parts.held_out.labels[:4].tolist())


def made_of(labels, **more) -> reproduce.LabelledImages:
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 16, 16, 3), dtype=np.uint8)
    names = [str(label) for label in range(max(labels) + 1)]
    return reproduce.LabelledImages(images, np.array(labels), names, 16, **more)


def test_the_first_held_out_images_are_a_sample_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "load_images", lambda *_: made_of(range(60)))
    options = config(Path("somewhere"), tmp_path, held_out_images=20)
    first, again = (reproduce.Parts(options, "somewhere").held_out.labels.tolist() for _ in range(2))
    assert first == again and len(set(first)) == 20
    assert max(first) > 40 and first != sorted(first)


def test_distances_are_to_the_images_that_are_held_out(data, tmp_path):
    parts = reproduce.Parts(config(data, tmp_path), str(data))
    images, real = parts.train.all_images()[:9], parts.held_out.all_images()
    kid, spectrum = parts.distances(images)
    network = StandInExtractor()
    assert kid.value == pytest.approx(reproduce.kernel_distance(network(images), network(real)).value)
    assert spectrum == pytest.approx(reproduce.spectrum_distance(images, real))


def test_classes_are_trained_on_equally_often(data, tmp_path, monkeypatch):
    seen, forward = [], reproduce.Objective.forward
    monkeypatch.setattr(
        reproduce.Objective, "forward", lambda self, *batch: (seen.append(batch[1]), forward(self, *batch))[1]
    )
    options = config(data, tmp_path, batch_size=40, label_drop=0.0, steps=1, error_at=[1], samples_at=[1])
    run = reproduce.training_runs(options, reproduce.read_arms(options), {"linear-8": 1e-3})[0]
    list(reproduce.training(run, made_of([0] * 70 + [1] * 10), torch.device("cpu")))
    assert 15 <= seen[0].sum() <= 25


def test_a_step_is_timed_with_the_threads_of_the_run(monkeypatch):
    seen = []

    def interleaved(steps, rounds, progress):
        seen.append((list(steps), rounds, torch.get_num_threads()))
        return SimpleNamespace(seconds=dict(a=1.0), ratios=dict(a=1.0), device="cpu")

    monkeypatch.setattr(reproduce, "interleaved", interleaved)
    run = dict(groups=[["a"]], arms={"a": {"dataset": "x", "network": {}}}, rounds=6, threads=2)
    found = reproduce.time_steps(run, lambda dataset: SimpleNamespace(train=None), torch.device("cpu"))
    assert seen == [(["a"], 6, 2)] and found["threads"] == 2 and torch.get_num_threads() == 1


def test_the_velocity_error_of_nothing_is_that_of_the_velocity_and_of_the_truth_zero(data, tmp_path):
    options = config(data, tmp_path)
    run = reproduce.training_runs(options, reproduce.read_arms(options), {"field-4": 1e-2})[0]
    held_out = reproduce.Parts(options, str(data)).held_out
    images, seed = held_out.all_images(), run["evaluation_seed"]
    noise = draw(seed, 0, range(len(images)), (3, 16, 16), torch.device("cpu"))["noise"]
    velocity = images / 127.5 - 1 - noise

    class Network:
        def __init__(self, share):
            self.share = share

        def __call__(self, x_t, t, labels):
            assert torch.allclose(x_t + (1 - t.view(-1, 1, 1, 1)) * velocity, images / 127.5 - 1, atol=1e-5)
            assert labels.tolist() == held_out.labels.tolist()
            return type("Output", (), {"sample": self.share * velocity})

    whole = velocity.square().mean().item()
    for share, expected in ((0.0, whole), (1.0, 0.0), (0.5, whole / 4)):
        errors = reproduce.velocity_errors(Network(share), held_out, images, run, torch.device("cpu"))
        assert errors == pytest.approx([expected] * 5, abs=1e-6)

    def knows_the_image(x_t, t, labels):
        return type("Output", (), {"sample": images / 127.5 - 1})

    sample = run | {"prediction_type": "sample"}
    errors = reproduce.velocity_errors(knows_the_image, held_out, images, sample, torch.device("cpu"))
    assert errors == pytest.approx([0.0] * 5, abs=1e-6)


def test_a_run_that_diverges_ends_the_curve_and_is_not_chosen(data, tmp_path):
    core = some(*(f"{head}-{patch}" for head in ("field", "linear", "skip") for patch in (8, 16)))
    options = config(data, tmp_path, core=core, claim_patches=(8, 16))
    reproduce.main(replace(options, learning_rates=[1e-3, 1e30]))
    runs = tmp_path / "results" / "runs"
    assert json.loads((runs / "field-8-tune-1e+30.json").read_text())["result"]["validation_error"] is None
    assert {row[-1] for row in written(tmp_path)["tables"]["tuning"]["rows"]} == {"0.001 (edge of the grid)"}
    with pytest.raises(ValueError, match="field-8 diverged with each of 1e[+]30, 1e[+]31"):
        reproduce.main(replace(options, learning_rates=[1e30, 1e31]))
    run = reproduce.training_runs(options, reproduce.read_arms(options), {"field-8": 1e30})[0]
    out = reproduce.train_and_measure(run, reproduce.Parts(options, str(data)), torch.device("cpu"))
    assert out["steps"] == 1 and out["error"][1][0] == 2 and math.isnan(out["error"][1][1])


# The choice of the learning rate


def test_tuning_splits_groups_of_training_images_and_reads_nothing_held_out(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    train = reproduce.LabelledImages(
        rng.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8), np.arange(60) % 3, list("abc"), 16, np.arange(60) // 2
    )

    def load(source, resolution, split, cache_dir):
        assert split == "train", "tuning read what is held out"
        return train

    monkeypatch.setattr(reproduce, "load_images", load)
    options = config(Path("somewhere"), tmp_path, validation_share=0.2)
    parts = reproduce.Parts(options, "somewhere")
    fit, validation = parts.tuning
    assert len(fit) + len(validation) == 60 and len(validation) == 12
    assert not set(fit.groups) & set(validation.groups)
    run = reproduce.tuning_runs(options, reproduce.read_arms(options))[0]
    assert run["seed"] not in options.seeds + options.full_seeds
    out = reproduce.tune(run, parts, torch.device("cpu"))
    assert out["images"] == 12 and math.isfinite(out["validation_error"])
    seen, training = [], reproduce.training
    monkeypatch.setattr(
        reproduce, "training", lambda run, data, device: (seen.append(data), training(run, data, device))[1]
    )
    reproduce.tune(run, parts, torch.device("cpu"))
    assert seen == [fit]


def test_the_least_validation_error_is_chosen():
    assert reproduce.choose({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.45}, "a") == 3e-3
    assert reproduce.choose({1e-3: 0.5, 3e-3: None}, "a") == 1e-3
    assert reproduce.with_edge(3e-3, [1e-3, 3e-3, 1e-2]) == "0.003"
    assert reproduce.with_edge(1e-2, [1e-3, 3e-3, 1e-2]) == "0.01 (edge of the grid)"
    assert reproduce.with_edge(None, [1e-3]) is None


# The arithmetic


def test_a_curve_between_its_points_is_linear_and_nothing_outside():
    curve = [[100, 1.0], [200, 0.5], [400, 0.1], [600, None]]
    expected = {100: 1.0, 150: 0.75, 200: 0.5, 250: 0.4, 400: 0.1}
    assert {step: reproduce.value_at(curve, step) for step in expected} == pytest.approx(expected)
    assert [reproduce.value_at(curve, step) for step in (99, 500, 600, 601)] == [None] * 4
    assert reproduce.value_at([], 1) is None


def test_at_equal_seconds_a_slower_arm_is_read_earlier_and_a_faster_one_at_its_end():
    assert [reproduce.step_in_time(800, ratio) for ratio in (1.0, 1.6, 2.0, 0.8)] == [800, 500, 400, 800]


def made_up(monkeypatch, error, bound=0.75, ratio=2.0):
    """Runs that return numbers: error(head, patch, seed, step)."""

    def head(run):
        return run["network"].get("head_type", "neural_field"), run["network"]["patch_size"]

    def train_and_measure(run, parts, device):
        curve = [[at, error(*head(run), run["seed"], at)] for at in run["error_at"]]
        few = [[at, error(*head(run), run["seed"], at)] for at in run["samples_at"]]
        return {
            "parameters": 5,
            "steps": run["steps"],
            "threads": 1,
            "error": curve,
            "kid": few,
            "spectrum": few,
            "error_by_time": [],
        }

    def measure_real(run, parts):
        one = {"value": 0.1, "low": 0.0, "high": 0.2, "n": 9}
        return {"images": 9, "held_out": 9, "kid": one, "spectrum": 0.05, "rank_bound": {"4": 0.0, "16": bound}}

    def time_steps(run, parts, device):
        names = [name for group in run["groups"] for name in group]
        speed = {n: ratio if head(run["arms"][n])[0] == "neural_field" else 1.0 for n in names}
        spans = {n: {"value": v, "low": v, "high": v, "n": 9} for n, v in speed.items()}
        return {"seconds": spans, "ratios": spans}

    monkeypatch.setattr(reproduce, "tune", lambda run, *_: {"validation_error": abs(math.log(run["lr"] / 1e-2))})
    for function in (train_and_measure, measure_real, time_steps):
        monkeypatch.setattr(reproduce, function.__name__, function)


def paper_like(head, patch, seed, step):
    """The linear head loses exp(0.1) at patch 4 and exp(0.9) at 16, where the skip gains exp(0.6) of that; seeds differ
    by a factor that pairs share, and by 0.01 in the gain of patch 16."""
    gain = {4: 0.1, 8: 0.3, 16: 0.9 + 0.01 * (seed - 2)}[patch]
    lost = {"neural_field": 0.0, "linear": gain, "linear_skip": gain - 0.6 if patch == 16 else gain}[head]
    return 0.4 * math.exp(lost + 0.5 * seed - 1) * (1 + (800 - step) / 1000)


def test_gains_of_made_up_curves(data, tmp_path, monkeypatch):
    made_up(monkeypatch, paper_like, bound=0.5)
    options = config(data, tmp_path, steps=800, error_at=[400, 600, 800], samples_at=[400, 800], seeds=[1, 2, 3])
    reproduce.main(options)
    end = written(tmp_path)
    rows = {(row[0], row[1]): row[2:] for row in end["tables"]["gain"]["rows"]}
    first = rows["neural field over linear head", "equal steps"]
    assert [cell["value"] for cell in first] == pytest.approx([0.1, 0.3, 0.9, 0.8])
    assert first[0]["high"] - first[0]["low"] < 1e-9  # pairs share what seeds differ in
    textbook = t_interval([0.79, 0.80, 0.81])
    assert (first[3]["low"], first[3]["high"]) == pytest.approx((textbook.low, textbook.high))
    assert [cell["value"] for cell in rows["linear head with skip over linear head", "equal steps"]] == pytest.approx(
        [0, 0, 0.6, 0.6], abs=1e-9
    )
    assert [cell["value"] for cell in rows["neural field over linear head with skip", "equal steps"]] == pytest.approx(
        [0.1, 0.3, 0.3, 0.2]
    )
    assert rows["share of the first that the skip alone gains", "equal steps"] == ["0 %", "0 %", "67 %", "75 %"]
    later = math.log(1.4)  # the neural field is read at step 400, half of the time gone
    seconds = rows["neural field over linear head", "equal seconds"]
    assert [cell["value"] for cell in seconds] == pytest.approx([0.1 - later, 0.3 - later, 0.9 - later, 0.8])
    kid = [row for row in end["tables"]["samples"]["rows"] if row[0] == "KID"]
    assert kid[0][3:] == rows["neural field over linear head", "equal steps"]
    assert end["verdict"]["verdict"] == "shown"
    assert {row[-1] for row in end["tables"]["tuning"]["rows"]} == {"0.01 (edge of the grid)"}
    run = json.loads((tmp_path / "results" / "runs" / "linear-8-3.json").read_text())
    assert run["options"]["lr"] == 1e-2


def test_where_both_timings_have_an_arm_that_of_core_counts(data, tmp_path):
    def timing(**seconds):
        ratios = {name: {"value": value} for name, value in seconds.items()}
        return {"result": {"seconds": seconds, "ratios": ratios}}

    runs = {"timing": timing(a=1.0), "timing-full": timing(a=2.0, b=3.0)}
    training, timed = (SimpleNamespace(finished=lambda found=found: found) for found in ({}, runs))
    evidence = reproduce.gather(config(data, tmp_path), {}, training, timed)
    assert evidence.seconds == evidence.ratios == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize(
    ("linear", "skip", "fired"),
    [
        ([0.8, 0.8, 0.8], [0.74, 0.74, 0.74], True),
        ([0.8, 0.8, 0.74], [0.3, 0.3, 0.3], False),  # one seed is better than a linear head can be
        ([0.8, 0.8, 0.8], [0.74, 0.74, 0.751], False),  # one stays above the bound
        ([0.8, 0.8, 0.8], [0.3, 0.3, None], False),
    ],
)
def test_the_control_fires_only_where_every_seed_is_on_its_side_of_the_bound(data, tmp_path, linear, skip, fired):
    arms = reproduce.read_arms(config(data, tmp_path))
    errors = {"linear-16": linear, "skip-16": skip}
    trained = {arm: {i: {"error": [[2, v]]} for i, v in enumerate(values)} for arm, values in errors.items()}
    evidence = reproduce.Evidence(arms, [0, 1, 2], 2, (4, 16), trained, {}, {})
    table, found = reproduce.control(evidence, arms["linear-16"].group, 0.75)
    assert found == fired and table["caption"].endswith("yes" if fired else "no")


FLAT = {"neural_field": 0.3, "linear": 0.8, "linear_skip": 0.3}


@pytest.mark.parametrize(
    ("bound", "improving", "verdict", "reason"),
    [
        (0.75, None, "absent", f"an effect of {detectable_effect([-0.01, 0.0, 0.01]):.4g} would have been seen"),
        (0.75, "linear_skip", "inconclusive", "not every arm has stopped improving"),  # the other two have
        (0.25, None, "inconclusive", "no positive control fired"),  # the skip stays above
        (0.9, None, "inconclusive", "no positive control fired"),  # the linear head is better than it can be
    ],
)
def test_a_claim_that_does_not_show_is_absent_only_where_it_could_have_shown(
    data, tmp_path, monkeypatch, bound, improving, verdict, reason
):
    def error(head, patch, seed, step):
        wobble = 0.01 * (seed - 2) * (patch == 16) * (head == "neural_field")
        return FLAT[head] * math.exp(wobble) * (1 + 1e-4 * (head == improving) * (800 - step))

    made_up(monkeypatch, error, bound)
    options = config(data, tmp_path, steps=800, error_at=[600, 800], samples_at=[800], seeds=[1, 2, 3])
    reproduce.main(options)
    end = written(tmp_path)
    assert end["verdict"]["verdict"] == verdict and reason in end["verdict"]["reason"]
    fired = end["tables"]["control"]["caption"].endswith("yes")
    assert fired == (bound == 0.75)


# The bound of the positive control


def test_a_linear_head_answers_in_a_space_of_its_width():
    network = PixNerdTransformer2DModel(
        sample_size=16,
        patch_size=8,
        hidden_size=24,
        num_attention_heads=2,
        num_layers=1,
        head_type="linear",
        num_classes=3,
    )
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.2 * torch.randn_like(p))
        x, t = torch.randn(200, 3, 16, 16), torch.rand(200)
        out = network.double()(x.double(), t.double(), torch.arange(200) % 4).sample
    patches = reproduce.patchify(out, (8, 8)).flatten(-2).flatten(0, 1)
    assert patches.shape == (800, 192)
    assert torch.linalg.matrix_rank(patches - patches.mean(0)) <= 24


def test_the_bound_is_what_the_best_space_misses_and_any_other_misses_more():
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(300, 3, 8, 8, generator=generator).cumsum(2).cumsum(3)
    images = (128 + 10 * smooth).clamp(0, 255).to(torch.uint8)
    clean = reproduce.patchify(images / 127.5 - 1, (4, 4)).flatten(-2).flatten(0, 1).double()  # (1200, 48)
    bound = reproduce.rank_bound(images, 4, 20)

    def missed(directions):  # by the projection to them through the mean, over many draws of the noise
        total = 0.0
        for _ in range(40):
            velocity = clean - torch.randn(clean.shape, generator=generator, dtype=torch.float64) - clean.mean(0)
            total += (velocity - velocity @ directions @ directions.T).square().mean().item()
        return total / 40

    leading = torch.linalg.eigh(torch.cov(clean.T)).eigenvectors[:, -20:]
    other = torch.linalg.qr(torch.randn(48, 20, generator=generator, dtype=torch.float64)).Q
    assert missed(leading) == pytest.approx(bound, rel=5e-3)
    assert missed(other) > 1.02 * bound
    flat = torch.full((4, 3, 8, 8), 7, dtype=torch.uint8)
    assert reproduce.rank_bound(flat, 4, 20) == pytest.approx(28 / 48)  # the noise alone
    assert reproduce.rank_bound(images, 4, 48) == reproduce.rank_bound(images, 2, 48) == 0


# The configuration


def test_arms_of_a_patch_have_about_as_many_parameters_and_both_sides_of_the_width_are_there():
    options = reproduce.ReproduceConfig(**CONFIG)
    arms = reproduce.read_arms(options)
    runs = reproduce.training_runs(options, arms, dict.fromkeys(arms, 1e-3))
    assert len(runs) == 27 and Counter(run["arm"] for run in runs) == dict.fromkeys(arms, 3)
    differing = {key for run in runs for key in run if run[key] != runs[0][key]}
    assert differing == {"arm", "seed", "network"}
    numbers: dict[int, list[int]] = {}
    for run in runs[:9]:
        with torch.device("meta"):
            network = PixNerdTransformer2DModel(sample_size=32, num_classes=12, **run["network"])
        numbers.setdefault(run["network"]["patch_size"], []).append(network.num_parameters())
    assert [3 * p**2 - 192 for p in sorted(numbers)] == [-144, 0, 576]
    assert all(max(counts) < 1.04 * min(counts) for counts in numbers.values())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (dict(seeds=[1]), "seeds: expected two or more"),
        (dict(seeds=[0, 1]), "seeds: expected .* not tuning_seed 0"),
        (dict(error_at=[1, 3]), "error_at: expected growing steps up to 2"),
        (dict(samples_at=[2, 1]), "samples_at: expected growing"),
        (dict(learning_rates=[0.0]), "learning_rates: expected positive"),
        (dict(validation_share=1.0), "validation_share: expected"),
        (dict(claim_patches=(16, 4)), "claim_patches: expected the smaller"),
        (dict(shard="3/2"), "shard: expected i/n"),
        (dict(timing_rounds=5), "timing_rounds: expected at least 6"),
        (dict(core=some("field-4")), "core: expected an arm with the head neural_field at patch 16"),
        (dict(core={"a": {"head": "square", "patch": 4}}), "a: expected head .one of neural_field"),
        (dict(core={"a": {"head": "linear", "patch": 4, "colour": 1}}), "a: expected head"),
        (dict(only="nothing-*"), "only: expected names of runs, such as field-4-tune-0.001, .* got nothing-[*]"),
        (dict(only=["field-4-1"]), "only: field-4-1 needs the learning rate"),
    ],
)
def test_mistakes_are_named(data, tmp_path, more, words):
    with pytest.raises(ValueError, match=words):
        reproduce.main(config(data, tmp_path, **more))


def test_core_has_one_data_set(data, tmp_path):
    core = CONFIG["core"] | some("photo-field-4")
    with pytest.raises(ValueError, match="core: expected arms of one data set"):
        reproduce.main(config(data, tmp_path, core=core))


def test_the_command_line_reads_the_fixed_experiment(monkeypatch, capsys):
    arguments = ["--config", str(PROJECT / "configs/reproduce.yaml"), "--only", "x", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["reproduce.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        reproduce.cli.run(reproduce.main, reproduce.ReproduceConfig)
    assert (
        stop.value.code == 2 and "only: expected names of runs, such as field-4-tune-0.0003" in capsys.readouterr().err
    )


# Photographs


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_photographs_are_cut_left_and_right_of_a_border_and_overlap_in_tiles_only():
    train, held_out = (photographs.crops(16, split) for split in ("train", "test"))
    assert train.class_names == held_out.class_names == ["china", "flower"]
    assert len(train) == 25 * len(np.unique(train.groups)) and set(train.labels) == set(held_out.labels) == {0, 1}
    whole = np.asarray(photographs.read_image(photographs.files()[1]).reduce(2))
    border = whole.shape[1] * 3 // 4
    first = {split.groups[split.labels == 1][0]: split for split in (train, held_out)}
    for left, split in zip((0, border), first.values(), strict=True):
        one = split.subset(np.flatnonzero(split.labels == 1)[[0, 24]])
        assert np.array_equal(one[0]["image"].permute(1, 2, 0), whole[:16, left : left + 16])
        assert np.array_equal(one[1]["image"].permute(1, 2, 0), whole[16:32, left + 16 : left + 32])


def test_photographs_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", (("no_such_module", "no-such-package", ("a.png",)),))
    with pytest.raises(OSError, match="no-such-package is missing; pip install .*photographs"):
        photographs.crops(16, "train")
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", (("numpy", "numpy", ("a.png",)),))
    with pytest.raises(OSError, match="a.png; install another version"):
        photographs.crops(16, "train")
