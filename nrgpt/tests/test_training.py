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
from transformers import AutoModelForCausalLM, AutoTokenizer

from nrgpt import NRGPTForCausalLM
from nrgpt.checkpointing import Checkpoints
from nrgpt.cli import as_dict, run

from .runs import PROJECT, call, command, environment, log, options, train

# A run


def test_a_run_leaves_a_model_its_tokenizer_options_a_card_a_log_and_a_picture(tmp_path, capsys):
    out = tmp_path / "out"
    call(options(out, report=True))
    assert [line["step"] for line in log(out)] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in log(out) if "validation" in line] == [3, 6]
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000004", "step-00000006"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer) == 20 and model.config.eos_token_id == 0
    assert yaml.safe_load((out / "training.yaml").read_text())["hidden_size"] == 12
    assert "listops" in (out / "README.md").read_text()
    assert (out / "energies.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "of 20 held-out prompts answered right; always" in printed
    assert printed.count("(right)") + printed.count("(wrong, ") == 4


def test_classic_listops_is_trained_and_reported(tmp_path, capsys):
    call(options(tmp_path / "out", dataset="listops-classic", context=24, report=True))
    assert "of 20 held-out prompts answered right" in capsys.readouterr().out


def test_the_snippet_of_the_card_runs(tmp_path, monkeypatch):
    call(options(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    snippet = card.split("```python\n")[1].split("```")[0]
    scope: dict = {}
    exec(snippet, scope)
    assert scope["inputs"]["input_ids"].shape[0] == 1


def test_the_model_that_is_saved_is_the_one_that_was_trained(tmp_path):
    out = tmp_path / "out"
    call(options(out))
    config = train.TrainConfig(**options(out))
    model = train.build(config, train.load(config))
    optimizer = torch.optim.AdamW(train.parameter_groups(model, 0.0, "all"))
    Checkpoints(out / "checkpoints").load(Checkpoints(out / "checkpoints").all()[-1], model, optimizer)
    saved = NRGPTForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())


CONFIGURATIONS = ["demo", "listops", "listops_deep", "listops_depth2", "shakespeare", "shakespeare_bpe", "openwebtext"]


def test_every_configuration_is_tested():
    assert {file.stem for file in (PROJECT / "configs").glob("*.yaml")} - {"reproduce"} == set(CONFIGURATIONS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_take_two_steps_with_only_size_and_data_replaced(name, tmp_path, hub):
    config = yaml.safe_load((PROJECT / "configs" / f"{name}.yaml").read_text())
    small = dict(
        hidden_size=12,
        num_attention_heads=min(2, config["num_attention_heads"]) if "num_attention_heads" in config else 2,
    )
    small |= dict(batch_size=4, steps=2, threads=1, compile=False, tracker="none", output_dir=str(tmp_path / "out"))
    small |= dict(num_hidden_layers=2, train_samples=300, test_samples=10, validation_windows=2, cache_dir=tmp_path)
    if config.get("dataset", "listops") != "listops":
        text = tmp_path / "text.txt"
        text.write_text("To be, or not to be: that is the question. " * 400)
        small |= dict(dataset=str(text))
        if config["tokenizer"] == "bpe":
            small |= dict(vocab_size=300)
    if config.get("dataset", "").startswith("hf:"):
        small |= dict(dataset=f"hf:{hub}", tokenizer=str(hub / "tokenizer"))
    call(config | small)
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.fixture
def hub(tmp_path) -> Path:
    """A data set and a tokenizer in the Hub's formats, in a folder."""
    from datasets import Dataset

    from nrgpt.tokenization import byte_pair_tokenizer

    texts = [f"Document number {i} says: to be, or not to be, that is the question. " * 90 for i in range(6)]
    folder = tmp_path / "hub"
    folder.mkdir()
    Dataset.from_dict({"text": texts}).to_parquet(folder / "train.parquet")
    byte_pair_tokenizer(texts, 300).save_pretrained(folder / "tokenizer")
    return folder


def test_the_demo_configuration_is_the_default():
    config = yaml.safe_load((PROJECT / "configs" / "demo.yaml").read_text())
    defaults = as_dict(train.TrainConfig())
    assert {name: defaults[name] for name in config} == config


PUBLISHED = {
    "listops": dict(hidden_size=64, num_attention_heads=1, num_hidden_layers=5, context=128, mask="strict", lr=5e-4)
    | dict(min_lr=2e-5, steps=100_000, batch_size=64, functions=["max", "median", "add"], max_depth=2),
    "listops_deep": dict(num_hidden_layers=30, lr=4e-4, min_lr=1e-5, steps=100_000),
    "shakespeare": dict(context=256, batch_size=64, steps=40_001, decay_steps=40_000, warmup=100, dropout=0.1)
    | dict(mask="inclusive", decay="matrices"),
    "openwebtext": dict(hidden_size=768, num_attention_heads=12, num_hidden_layers=12, context=1024, lr=1e-4)
    | dict(min_lr=5e-5, schedule="cosine", warmup=2000, betas=[0.9, 0.99], weight_decay=0.1, batch_size=384),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_configurations_hold_the_published_numbers(name):
    config = as_dict(train.TrainConfig()) | yaml.safe_load((PROJECT / "configs" / f"{name}.yaml").read_text())
    assert {key: config[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    if "listops" in name:  # AdamW's defaults on every parameter, clipped
        assert (config["weight_decay"], config["decay"], config["clip"], config["warmup"]) == (0.01, "all", 1.0, 0)


def test_options_reach_the_model(tmp_path):
    changed = dict(mask="inclusive", exact_self=True, rank=3, beta=0.5, learn_alpha=True, eta="psd", eta_per_step=True)
    changed |= dict(norm="rmsnorm", norm_gain=True, dropout=0.2, tie_word_embeddings=True)
    config = train.TrainConfig(**options(tmp_path, **changed))
    built = train.build(config, train.load(config)).config
    assert {name: getattr(built, name) for name in changed} == changed
    assert built.max_position_embeddings == 12
    config = train.TrainConfig(**options(tmp_path, model="GPT", activation="gelu"))
    assert train.build(config, train.load(config)).config.activation == "gelu"


def test_the_learning_rate_of_each_step_is_the_schedule(tmp_path):
    call(options(tmp_path / "out", lr=1e-2, min_lr=1e-4, steps=4))
    assert [line["lr"] for line in log(tmp_path / "out")] == pytest.approx([1e-2 * 100 ** (-i / 4) for i in range(4)])


# Mistakes


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(model="NRGPT"), "model: expected one of NRGPT_H_FF1"),
        (dict(steps=0), "steps: expected at least 1, got 0"),
        (dict(lr=-1.0), "lr: expected a positive number"),
        (dict(min_lr=1.0), "min_lr: expected at most lr"),
        (dict(dataset="nowhere"), "dataset: expected listops, shakespeare"),
        (dict(context=100_000), "context: expected less than"),
        (dict(functions=["mean"]), "functions: expected some of"),
        (dict(batch_size=3, gradient_accumulation=2), "batch_size: expected a multiple of 2"),
        (dict(eta="diag_pos"), "norm_gain=True"),
        (dict(betas=(0.9, 1.0)), "betas"),
        (dict(push_to_hub=True), "hub_model_id"),
    ],
)
def test_a_mistake_ends_in_one_line_and_status_2(tmp_path, capsys, monkeypatch, changed, message):
    values = options(tmp_path / "out", **changed)
    monkeypatch.setattr(sys, "argv", ["train.py", *command(values)])
    with pytest.raises(SystemExit) as ended:
        run(train.main, train.TrainConfig)
    error = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert len(error) == 1 and error[0].startswith("train.py: error: ") and message in error[0]


def test_a_nan_stops_the_run_before_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="got nan at step 2"):
        call(options(tmp_path / "out", lr=1e30, min_lr=1e30, clip=None))
    assert not Checkpoints(tmp_path / "out" / "checkpoints").all()


# Interruption


@pytest.fixture
def unbroken(tmp_path) -> list[dict]:
    call(options(tmp_path / "unbroken", dropout=0.1))
    return log(tmp_path / "unbroken")


def same_model(a: Path, b: Path) -> bool:
    first, second = (NRGPTForCausalLM.from_pretrained(folder).state_dict() for folder in (a, b))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_sigterm_saves_and_the_resumed_run_has_the_same_losses(tmp_path):
    out = tmp_path / "out"
    values = options(out, steps=100_000, checkpoint_every=100_000, validate_every=100_000, decay_steps=100)
    process = subprocess.Popen(
        [sys.executable, str(PROJECT / "train.py"), *command(values)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.time() + 120
    while not ((out / "log.jsonl").exists() and (out / "log.jsonl").read_text().count("\n") >= 2):
        assert process.poll() is None and time.time() < deadline, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode != 0 and "go on with --resume latest" in stderr
    (checkpoint,) = Checkpoints(out / "checkpoints").all()
    steps = int(checkpoint.name.removeprefix("step-")) + 2
    call(options(out, steps=steps, decay_steps=100, resume="latest"))
    call(options(tmp_path / "longer", steps=steps, decay_steps=100))
    assert [line["loss"] for line in log(out)] == [line["loss"] for line in log(tmp_path / "longer")]
    assert same_model(out, tmp_path / "longer")


def test_dropout_goes_on_where_it_was(tmp_path, unbroken):
    out = tmp_path / "out"
    call(options(out, dropout=0.1, steps=4, decay_steps=6))
    call(options(out, dropout=0.1, resume="latest"))
    assert [line["loss"] for line in log(out)] == [line["loss"] for line in unbroken]


DIES_WHILE_WRITING = """
import os, runpy, signal, sys
import nrgpt.checkpointing as checkpointing
sync = checkpointing._sync
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


def test_sigkill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, unbroken):
    out = tmp_path / "out"
    values = options(out, dropout=0.1)
    arguments = [sys.executable, "-c", DIES_WHILE_WRITING, str(PROJECT / "train.py"), *command(values)]
    finished = subprocess.run(arguments, env=environment(), capture_output=True, text=True)
    assert finished.returncode == -signal.SIGKILL, finished.stderr
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000002"]
    call(options(out, dropout=0.1, resume="latest"))
    assert log(out) == unbroken
    assert same_model(out, tmp_path / "unbroken")


def test_other_options_on_resuming_take_effect_and_are_named(tmp_path, capsys):
    out = tmp_path / "out"
    call(options(out, steps=2))
    call(options(out, steps=4, resume="latest", lr=1e-3, weight_decay=0.1))
    assert "changed since: steps 2 -> 4, lr 0.003 -> 0.001, weight_decay 0.01 -> 0.1" in capsys.readouterr().out
    assert log(out)[-1]["lr"] < 1e-3


def test_a_new_run_does_not_mix_with_the_checkpoints_of_an_earlier_one(tmp_path):
    out = tmp_path / "out"
    call(options(out))
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run; go on with --resume latest"):
        call(options(out))
    with pytest.raises(ValueError, match="steps: .* has done 6 already, more than 4"):
        call(options(out, steps=4, resume="latest"))
    with pytest.raises(OSError, match="damaged or of another model"):
        call(options(out, hidden_size=16, resume="latest"))
    call(options(out, steps=2, overwrite=True))
    assert [p.name for p in Checkpoints(out / "checkpoints").all()] == ["step-00000002"]


# Several processes and parts

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


def test_two_processes_and_two_parts_have_the_gradients_of_one(tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS_GRADIENTS)
    launchers = {"one": [sys.executable], "parts": [sys.executable]}
    launchers["two"] = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    gradients = {}
    for name, launcher in launchers.items():
        values = options(tmp_path / name, steps=1, clip=1e9, gradient_accumulation=2 if name == "parts" else 1)
        arguments = [*launcher, str(tmp_path / "keeps.py"), str(PROJECT / "train.py"), *command(values)]
        more = environment(GRADIENTS=str(tmp_path / f"{name}-"))
        ended = subprocess.run(arguments, env=more, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        gradients[name] = torch.load(tmp_path / f"{name}-0")
    for name in ("parts", "two"):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients["one"], gradients[name], strict=True))
        assert log(tmp_path / name)[0]["loss"] == pytest.approx(log(tmp_path / "one")[0]["loss"], abs=1e-6)


def test_the_launch_configurations_name_the_blocks():
    config = yaml.safe_load((PROJECT / "configs" / "accelerate" / "fsdp.yaml").read_text())
    wrapped = config["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"].split(",")
    assert wrapped == NRGPTForCausalLM._no_split_modules


def test_learns_what_can_be_learned(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh" * 500)
    out = tmp_path / "out"
    call(options(out, dataset=str(text), steps=150, lr=1e-2, min_lr=1e-3, validate_every=150, log_every=50))
    assert log(out)[-1]["validation"] < 0.1
    assert np.isfinite(log(out)[-1]["loss"]) and os.path.isfile(out / "model.safetensors")
