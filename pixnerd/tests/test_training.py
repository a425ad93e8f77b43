import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from pixnerd import PRESETS, TEXT_PRESETS, PixNerdPipeline
from pixnerd.checkpointing import Checkpoints
from pixnerd.cli import as_dict, run
from pixnerd.conditioning import Labels
from pixnerd.sampling import load_pipeline

from .conftest import SAVED_FILES, NoFloat64, path_without_this_package, random_transformer
from .hub_stand_in import hub_stand_in
from .runs import PROJECT, SMALL, call, command, environment, losses, options, script, train

# A run


def test_a_run_leaves_a_model_its_options_a_card_and_a_log(data, tmp_path):
    out = tmp_path / "out"
    call(
        options(data, out, preview_every=3, prediction_type="sample", flip=True, dispersive_weight=0.5, feature_layer=1)
    )
    assert [line["step"] for line in losses(out)] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(line["loss"]) and "dispersive" in line for line in losses(out))
    assert sorted(p.name for p in (out / "previews").iterdir()) == ["step-000003.png", "step-000006.png"]
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000004", "step-00000006"]
    pipeline = PixNerdPipeline.from_pretrained(out)
    assert pipeline.labels == {"a": 0, "b": 1, "c": 2}
    assert pipeline.scheduler.config.prediction_type == "sample"
    saved = yaml.safe_load((out / "training.yaml").read_text())
    assert saved["hidden_size"] == 24 and saved["flip"] is True
    assert "a, b, c" in (out / "README.md").read_text()


def test_training_makes_no_float64(data, tmp_path):
    values = options(data, tmp_path / "out", steps=2, time="uniform", shift=2.0, loss_weight="snr", clip=1.0)
    with NoFloat64():
        call(values | dict(prediction_type="velocity", dispersive_weight=0.5, feature_layer=1, preview_every=2))


@pytest.mark.parametrize("name", ["multi_gpu", "fsdp"])
def test_the_launch_configurations_are_accelerates(name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(PROJECT / "configs" / "accelerate" / f"{name}.yaml"))
    assert config.num_processes == 8 and config.mixed_precision == "bf16"
    assert str(config.distributed_type.value) == ("FSDP" if name == "fsdp" else "MULTI_GPU")
    if name == "fsdp":
        wrapped = config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"].split(",")
        assert set(wrapped) <= {type(module).__name__ for module in random_transformer().modules()}
        assert wrapped == random_transformer()._no_split_modules


def test_the_saved_model_is_the_average_and_not_the_last_weights(data, tmp_path):
    out = tmp_path / "out"
    call(options(data, out, ema_decay=0.9, ema_warmup=False))
    pipeline, checkpoint = PixNerdPipeline.from_pretrained(out), Checkpoints(out / "checkpoints").all()[-1]
    values = options(data, out)
    objective = train.Objective(train.build_transformer(train.TrainConfig(**values), Labels(3)))
    ema = train.EMA(objective.transformer)
    Checkpoints(out / "checkpoints").load(checkpoint, objective, torch.optim.AdamW(objective.parameters()), ema=ema)
    saved = pipeline.transformer.state_dict()
    assert all(torch.equal(saved[name], ema.shadow[name]) for name in saved)
    assert not torch.equal(saved["head.proj.weight"], objective.transformer.head.proj.weight)


def test_the_loss_falls_on_what_can_be_learned(tmp_path):
    file = tmp_path / "flat.npz"
    images = np.stack([np.full((16, 16, 3), value, np.uint8) for value in [0, 255] * 20])
    np.savez(file, images=images, labels=[0, 1] * 20)
    call(options(file, tmp_path / "out", steps=120, lr=3e-3, checkpoint_every=1000))
    curve = [line["loss"] for line in losses(tmp_path / "out")]
    assert np.mean(curve[-20:]) < 0.6 * np.mean(curve[:5])


CONFIGURATIONS = ["demo", "imagenet256_l", "imagenet256_xl", "imagenet512_xl", "cifar10", "t2i_demo", "t2i_256"]
CONFIGURATIONS += ["t2i_512", "t2i_512_sft"]


def test_every_configuration_is_tested():
    assert {file.stem for file in (PROJECT / "configs").glob("*.yaml")} - {"reproduce"} == set(CONFIGURATIONS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_take_two_steps_with_only_size_and_data_replaced(name, tmp_path, language_model):
    file, teacher = tmp_path / "data.npz", tmp_path / "teacher"
    config = yaml.safe_load((PROJECT / "configs" / f"{name}.yaml").read_text())
    side = config["resolution"]
    rest = dict(labels=np.arange(30) % 2, captions=["a red square"] * 30)
    np.savez(file, images=np.zeros((30, side, side, 3), np.uint8), **rest)
    small = SMALL | dict(dataset=str(file), batch_size=2, steps=2, output_dir=str(tmp_path / "out"), workers=0)
    small |= dict(
        tracker="none", compile=False, preset=config["preset"], num_layers=max(1, config.get("feature_layer", 1))
    )
    if "text_encoder" in config:
        small |= dict(text_encoder=language_model, text_length=config["text_length"], text_layers=1)
        small |= dict(cache_dir=str(tmp_path / "cache"))
    if config.get("teacher"):
        transformers = pytest.importorskip("transformers")
        tiny = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
        transformers.Dinov2Model(transformers.Dinov2Config(**tiny)).save_pretrained(teacher)
        small["teacher"] = str(teacher)
    if "init_from" in config:
        np.savez(tmp_path / "256.npz", images=np.zeros((30, 256, 256, 3), np.uint8), **rest)
        before = small | dict(
            prediction_type="velocity",
            feature_layer=config["feature_layer"],
            dataset=str(tmp_path / "256.npz"),
            resolution=256,
            batch_size=1,
            steps=1,
            preview_every=0,
        )
        call(before | dict(output_dir=str(tmp_path / "before")))
        small["init_from"] = str(tmp_path / "before")
    arguments = ["--config", str(PROJECT / "configs" / f"{name}.yaml"), *command(small)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *arguments])
        run(train.main, train.TrainConfig)
    saved = yaml.safe_load((tmp_path / "out" / "training.yaml").read_text())
    assert all(saved[key] == value for key, value in config.items() if key not in small)
    pipeline = load_pipeline(tmp_path / "out")
    presets = TEXT_PRESETS if "text_encoder" in config else PRESETS
    assert pipeline.transformer.config.patch_size == presets[config["preset"]]["patch_size"]
    assert pipeline.transformer.config.sample_size == side
    assert pipeline.scheduler.config.shift == config.get("sample_shift", 1.0)


def test_the_demo_configuration_is_the_default():
    config = yaml.safe_load((PROJECT / "configs" / "demo.yaml").read_text())
    default = as_dict(train.TrainConfig())
    assert {key: default[key] for key in config} == config


def test_a_512_run_starts_from_the_weights_it_is_given(data, tmp_path):
    call(options(data, tmp_path / "first", steps=2))
    first = PixNerdPipeline.from_pretrained(tmp_path / "first").transformer
    config = train.TrainConfig(**options(data, tmp_path / "second", resolution=32, init_from=str(tmp_path / "first")))
    second = train.build_transformer(config, Labels(3))
    train.start_from(config, second)
    assert second.config.sample_size == 32
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with pytest.raises(ValueError, match="init_from: .* is another network: num_classes 3, not 4"):
        train.start_from(config, train.build_transformer(config, Labels(4)))
    config.prediction_type = "velocity"
    with pytest.raises(ValueError, match="init_from: .* predicts the sample, prediction_type is velocity"):
        train.start_from(config, second)


# Errors of the user


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": "no/such/folder"}, "'no/such/folder' is none of them"),
        ({"dataset": ""}, "dataset: expected openmoji, a folder, an .npz file or hf:ID, got an empty name"),
        ({"steps": -5}, "steps: expected at least 1, got -5"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"gradient_accumulation": -1}, "gradient_accumulation: expected at least 1, got -1"),
        ({"checkpoint_every": 0}, "checkpoint_every: expected at least 1, got 0"),
        ({"threads": -1}, "threads: expected at least 1, got -1"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
        ({"lr": 0}, "lr: expected a positive number, got 0"),
        ({"clip": -1}, "clip: expected a positive number, got -1"),
        ({"label_drop": 2}, "label_drop: expected a share from 0 to 1, got 2"),
        ({"ema_decay": 1.0}, "ema_decay: expected 0 <= value < 1, got 1.0"),
        ({"head_layers": 0}, "head_layers: expected at least 1, got 0"),
        ({"tracker": "trackio"}, "tracker: trackio is not installed"),
        ({"resolution": 12}, "images: expected (items, 12, 12, 3), got (40, 16, 16, 3)"),
        ({"dataset": "openmoji", "resolution": 20}, "sample_size: expected a multiple of patch_size = 8, got 20"),
        ({"preset": "XS/1"}, "preset: expected one of S/8"),
        ({"batch_size": 5, "gradient_accumulation": 2}, "batch_size: expected a multiple of processes x gradient_acc"),
        ({"resume": "no/such/checkpoint"}, "resume: expected latest or a folder step-"),
        ({"teacher": "nobody/nothing"}, "teacher: cannot load nobody/nothing"),
        ({"init_from": "no/such/model"}, "no/such/model: no such folder, and not a Hub repository"),
        ({"text_encoder": "x"}, "dataset: "),
        ({"push_to_hub": "true"}, "hub_model_id: expected user/name with push_to_hub"),
        ({"lr": 1e30, "steps": 50}, "loss: expected a finite number, got"),
    ],
)
def test_a_mistake_ends_in_one_line_and_status_2(data, tmp_path, capsys, monkeypatch, changed, message):
    values = options(data, tmp_path / "out", cache_dir=tmp_path / "cache") | changed
    monkeypatch.setattr(sys, "argv", ["train.py", *command(values)])
    with pytest.raises(SystemExit) as ended:
        run(train.main, train.TrainConfig)
    assert ended.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("train.py: error: ") and message in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lerning_rate", "1"], "lerning_rate"),
        (["--steps", "many"], "steps"),
        (["--head_type", "cubic"], "head_type"),
        (["--config", "no/such.yaml"], "no/such.yaml"),
    ],
)
def test_a_wrong_option_is_named(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(train.main, train.TrainConfig)
    assert ended.value.code == 2
    shown = capsys.readouterr().err.strip()
    assert message in shown and "\n" not in shown


def test_an_unknown_key_of_a_configuration_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "c.yaml").write_text("lerning_rate: 1\n")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(tmp_path / "c.yaml")])
    with pytest.raises(SystemExit):
        run(train.main, train.TrainConfig)
    assert "lerning_rate" in capsys.readouterr().err


def test_every_option_is_explained_in_the_help(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        run(train.main, train.TrainConfig)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Learning rate of AdamW, constant (paper: 1e-4; text to image 2e-4, 1e-4, 1e-5 by stage)." in shown
    for field in train.TrainConfig.__dataclass_fields__:
        assert f"--{field}" in shown


def test_a_nan_in_the_network_stops_the_run_before_a_checkpoint(data, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "to_float", lambda images: images.float() * float("nan"))
        with pytest.raises(ValueError, match="got nan at step 1"):
            call(options(data, tmp_path / "out"))
    assert not Checkpoints(tmp_path / "out" / "checkpoints").all()


# Interruption


@pytest.fixture
def unbroken(data, tmp_path) -> list[dict]:
    call(options(data, tmp_path / "unbroken"))
    return losses(tmp_path / "unbroken")


def weights(out: Path) -> dict[str, torch.Tensor]:
    return PixNerdPipeline.from_pretrained(out).transformer.state_dict()


def same_model(a: Path, b: Path) -> bool:
    a, b = weights(a), weights(b)
    return all(torch.equal(a[name], b[name]) for name in a)


def start_and_wait_for_steps(arguments: list[str], out: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        arguments,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.time() + 120
    while not ((out / "log.jsonl").exists() and (out / "log.jsonl").read_text().count("\n") >= 2):
        assert process.poll() is None and time.time() < deadline, process.communicate()[1]
        time.sleep(0.01)
    return process


def check_resumed(data: Path, out: Path, unbroken: list[dict], longer: Path) -> None:
    """Two more steps from where it stopped equal those of a run that was never stopped."""
    (checkpoint,) = Checkpoints(out / "checkpoints").all()
    stopped = int(checkpoint.name.removeprefix("step-"))
    call(options(data, out, steps=stopped + 2, resume="latest"))
    call(options(data, longer, steps=stopped + 2))
    assert losses(out) == losses(longer)
    assert losses(out)[: len(unbroken)] == unbroken[: len(losses(out))]
    assert same_model(out, longer)


def test_sigterm_saves_and_the_resumed_run_has_the_same_losses(data, tmp_path, unbroken):
    out = tmp_path / "out"
    values = options(data, out, steps=100_000, checkpoint_every=100_000)
    process = start_and_wait_for_steps([sys.executable, str(PROJECT / "train.py"), *command(values)], out)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode != 0 and "go on with --resume latest" in stderr
    check_resumed(data, out, unbroken, tmp_path / "longer")


def test_ctrl_c_under_accelerate_launch_saves_with_data_workers_too(data, tmp_path, unbroken):
    out = tmp_path / "out"
    values = options(data, out, steps=100_000, checkpoint_every=100_000, workers=1)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "-q", str(PROJECT / "train.py")]
    process = start_and_wait_for_steps([*launch, *command(values)], out)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    process.communicate(timeout=120)  # returns when the last of the group has closed stderr
    check_resumed(data, out, unbroken, tmp_path / "longer")


def test_other_options_on_resuming_take_effect_and_are_named(data, tmp_path, capsys):
    out = tmp_path / "out"
    call(options(data, out, steps=2))
    call(options(data, out, steps=4, resume="latest", lr=1e-5, weight_decay=0.1))
    printed = capsys.readouterr().out
    assert "changed since: lr 0.001 -> 1e-05, weight_decay 0.0 -> 0.1" in printed
    objective = train.Objective(train.build_transformer(train.TrainConfig(**options(data, out)), Labels(3)))
    optimizer, ema = torch.optim.AdamW(objective.parameters()), train.EMA(objective.transformer)
    checkpoints = Checkpoints(out / "checkpoints")
    checkpoints.load(checkpoints.all()[-1], objective, optimizer, ema=ema)
    assert optimizer.param_groups[0]["lr"] == 1e-5


def test_going_on_from_an_older_checkpoint_removes_the_later_ones(data, tmp_path, unbroken):
    out = tmp_path / "out"
    call(options(data, out, keep_checkpoints=3))
    call(options(data, out, steps=5, checkpoint_every=3, resume=str(out / "checkpoints" / "step-00000002")))
    names = [p.name for p in Checkpoints(out / "checkpoints").all()]
    assert names == ["step-00000003", "step-00000005"]
    assert losses(out) == unbroken[:5]


def test_a_new_run_does_not_mix_with_the_checkpoints_of_an_earlier_one(data, tmp_path):
    out = tmp_path / "out"
    call(options(data, out))
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run; go on with --resume latest"):
        call(options(data, out))
    call(options(data, out, steps=2, overwrite=True))
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000002"]
    assert len(losses(out)) == 2


DIES_WHILE_WRITING = """
import os, runpy, signal, sys
import pixnerd.checkpointing as checkpointing
sync, calls = checkpointing._sync, []
def die(path):
    if "step-00000004" in str(path) and path.suffix == ".distcp":
        with open(path, "r+b") as file:
            file.truncate(100)
        os.kill(os.getpid(), signal.SIGKILL)
    sync(path)
checkpointing._sync = die
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_sigkill_while_a_checkpoint_is_written_leaves_the_one_before(data, tmp_path, unbroken):
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", DIES_WHILE_WRITING, str(PROJECT / "train.py"), *command(options(data, out))]
    finished = subprocess.run(arguments, env=environment(), capture_output=True, text=True)
    assert finished.returncode == -signal.SIGKILL, finished.stderr
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000002"]
    call(options(data, out, resume="latest"))
    assert losses(out) == unbroken
    assert same_model(out, tmp_path / "unbroken")
    assert not list((out / "checkpoints").glob(".writing-step-00000004"))


def test_fewer_steps_than_the_checkpoint_has_are_refused(data, tmp_path):
    call(options(data, tmp_path / "out"))
    with pytest.raises(ValueError, match="steps: .* has done 6 already, more than 4"):
        call(options(data, tmp_path / "out", steps=4, resume="latest"))


def test_an_error_in_a_data_worker_ends_the_run(tmp_path):
    for i in range(12):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        (tmp_path / "pictures" / f"{i}.png").write_bytes(b"no picture")
    arguments = [sys.executable, str(PROJECT / "train.py"), *command(options(tmp_path / "pictures", tmp_path / "out"))]
    ended = subprocess.run(
        [*arguments, "--workers", "2"], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "not readable as an image" in ended.stderr.strip().splitlines()[-1]


def test_resume_latest_without_a_checkpoint_starts_anew(data, tmp_path, unbroken):
    call(options(data, tmp_path / "out", resume="latest"))
    assert losses(tmp_path / "out") == unbroken


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_or_foreign_checkpoint_is_refused(data, tmp_path, damage):
    out = tmp_path / "out"
    call(options(data, out, steps=2))
    values = options(data, out, resume="latest")
    if damage == "cut":
        (file,) = (out / "checkpoints" / "step-00000002").glob("*.distcp")
        file.write_bytes(file.read_bytes()[:1000])
    else:
        values["hidden_size"] = 32
    with pytest.raises(OSError, match="resume: .*step-00000002 is damaged or of another model"):
        call(values)


# Several processes

KEEPS_GRADIENTS = """
import os, runpy, sys, torch
step = torch.optim.AdamW.step
def keep(self, *args, **kwargs):
    gradients = [p.grad.clone() for group in self.param_groups for p in group["params"]]
    torch.save(gradients, os.environ["GRADIENTS"] + os.environ.get("RANK", "0"))
    return step(self, *args, **kwargs)
torch.optim.AdamW.step = keep
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_two_processes_have_the_gradients_and_losses_of_one(data, tmp_path):
    keeper = tmp_path / "keeper.py"
    keeper.write_text(KEEPS_GRADIENTS)
    launch = {
        "one": [sys.executable],
        "two": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    }
    for name, start in launch.items():
        values = options(data, tmp_path / name, steps=3, gradient_accumulation=2)
        arguments = [*start, str(keeper), str(PROJECT / "train.py"), *command(values)]
        finished = subprocess.run(
            arguments, env=environment(GRADIENTS=str(tmp_path / f"{name}-")), capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
    one, first, second = (torch.load(tmp_path / name) for name in ("one-0", "two-0", "two-1"))
    for a, b, c in zip(one, first, second, strict=True):
        assert torch.equal(b, c)
        assert (a - b).abs().max() <= 1e-5 * a.abs().max().clamp(min=1e-6)
    for a, b in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    # and what two processes saved, one goes on from
    call(options(data, tmp_path / "two", steps=5, resume="latest"))
    call(options(data, tmp_path / "one", steps=5, resume="latest"))
    for a, b in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def test_shards_are_saved_loaded_averaged_and_resumed(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launch, str(PROJECT / "tests" / "sharded_run.py"), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert (tmp_path / "passed-0").exists() and (tmp_path / "passed-1").exists()


# The Hub


def test_what_is_uploaded_is_the_model_without_the_checkpoints(data, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("huggingface_hub.create_repo", lambda *args, **kwargs: calls.append(("create", args)))
    monkeypatch.setattr("huggingface_hub.upload_folder", lambda **kwargs: calls.append(("upload", kwargs)))
    call(options(data, tmp_path / "out", steps=1, push_to_hub=True, hub_model_id="user/name"))
    assert [name for name, _ in calls] == ["create", "upload"]
    upload = calls[1][1]
    from huggingface_hub.utils import filter_repo_objects

    files = [str(p.relative_to(upload["folder_path"])) for p in upload["folder_path"].rglob("*") if p.is_file()]
    kept = set(filter_repo_objects(files, ignore_patterns=upload["ignore_patterns"]))
    assert kept == SAVED_FILES


LOADS_FROM_THE_HUB = """
from diffusers import DiffusionPipeline
pipeline = DiffusionPipeline.from_pretrained("user/name", trust_remote_code=True)
assert type(pipeline).__module__.startswith("diffusers_modules")
images = pipeline(["a"], num_inference_steps=2).images
assert images[0].size == (16, 16)
"""


def test_a_model_that_was_uploaded_loads_from_the_hub_where_this_package_is_not(data, tmp_path):
    with hub_stand_in() as (address, files, requests):
        home = dict(HF_ENDPOINT=address, HF_TOKEN="hf_none", HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1")
        home |= dict(HF_HOME=str(tmp_path / "home"), HF_HUB_DISABLE_TELEMETRY="1")
        values = options(data, tmp_path / "out", steps=1, push_to_hub="true", hub_model_id="user/name")
        arguments = [sys.executable, str(PROJECT / "train.py"), *command(values)]
        uploaded = subprocess.run(arguments, env=environment(**home), capture_output=True, text=True)
        assert uploaded.returncode == 0, uploaded.stderr[-3000:]
        posts = [request for request in requests if request.startswith("POST")]
        assert posts[0] == "POST /api/repos/create" and posts[-1].startswith("POST /api/models/user/name/commit/")
        assert "transformer/diffusion_pytorch_model.safetensors" in files
        loaded = subprocess.run(
            [sys.executable, "-c", LOADS_FROM_THE_HUB],
            env=environment(**home) | {"PYTHONPATH": path_without_this_package(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert loaded.returncode == 0, loaded.stderr[-3000:]


def test_sampling_from_the_command_line(data, tmp_path, monkeypatch, capsys):
    call(options(data, tmp_path / "out", steps=1))
    sample = script("sample")
    arguments = ["--model", str(tmp_path / "out"), "--per_class", "2", "--steps", "2", "--device", "cpu"]
    monkeypatch.setattr(
        sys, "argv", ["sample.py", *arguments, "--classes", "[c, 0]", "--output", str(tmp_path / "many")]
    )
    run(sample.main, sample.SampleConfig)
    assert len(list((tmp_path / "many").glob("0000*.png"))) == 4 and (tmp_path / "many" / "sheet.png").exists()
    for wrong, message in [
        (["--model", str(tmp_path / "nothing here")], "nothing here"),
        (["--classes", "[zebra]"], "got 'zebra'"),
        (["--classes", "zebra"], "got 'zebra'"),
        (["--negative_prompt", "a"], "expected classes instead"),
        (["--per_class", "0"], "per_class, batch_size: expected at least 1, got 0, 64"),
        (["--height", "17"], "height: expected a multiple of the patch size 8, got 17"),
    ]:
        monkeypatch.setattr(sys, "argv", ["sample.py", *arguments, *wrong])
        with pytest.raises(SystemExit) as ended:
            run(sample.main, sample.SampleConfig)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
