import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nrgpt import NRGPTConfig, NRGPTForCausalLM
from nrgpt.cli import run
from nrgpt.evaluation import (
    answer_listops,
    bits_per_character,
    energy_statistics,
    majority_answer,
    next_token_loss,
    rate_parts,
    stream_losses,
)
from nrgpt.listops import VOCABULARY, ListOps, prompt_of
from tests.conftest import random_ids, random_model

from .runs import call, command, options, script


def listops_model() -> NRGPTForCausalLM:
    return random_model(vocab_size=20, max_position_embeddings=40, dtype=torch.float32)


class Scripted:
    """Stands in for a model whose answers are known: writes what the script says after a prompt."""

    config = NRGPTConfig(vocab_size=20, max_position_embeddings=64)
    device = torch.device("cpu")

    def __init__(self, samples: list[list[str]], wrong: set[int]) -> None:
        self.texts = {tuple(prompt_of(s)): s[len(prompt_of(s)) :] for s in samples}
        for i in wrong:
            key = tuple(prompt_of(samples[i]))
            *steps, value, end = self.texts[key]
            self.texts[key] = [*steps, str((int(value) + 1) % 10), end]

    def generate(self, ids, attention_mask, max_new_tokens, eos_token_id, **rest):
        rows = []
        for row, seen in zip(ids.tolist(), attention_mask.bool().tolist()):
            prompt = tuple(VOCABULARY[n] for n, keep in zip(row, seen) if keep)
            new = [VOCABULARY.index(t) for t in self.texts[prompt]] + [5] * max_new_tokens  # goes on after the end
            rows.append(row + new[:max_new_tokens])
        return torch.tensor(rows)


def test_answers_are_read_before_the_end_and_counted():
    generator = ListOps(functions=["max", "add"], seed=3)
    samples = [generator.draw() for _ in range(30)]
    samples = list({tuple(prompt_of(s)): s for s in samples}.values())
    answers = answer_listops(Scripted(samples, {0, 4}), samples, batch_size=7)
    assert [answer.prompt for answer in answers] == [prompt_of(sample) for sample in samples]
    assert [i for i, answer in enumerate(answers) if not answer.correct] == [0, 4]
    assert all(answer.written[-1] == "<eos>" for answer in answers)


def test_answers_do_not_depend_on_the_batch():
    model, generator = listops_model(), ListOps(seed=4)
    samples = [generator.draw() for _ in range(12)]
    alone = [answer_listops(model, [sample], new_tokens=12)[0].written for sample in samples]
    assert [answer.written for answer in answer_listops(model, samples, new_tokens=12, batch_size=5)] == alone


def test_sampled_answers_are_drawn_from_the_whole_distribution():
    """At temperature 1 without the first fifty only: the first token of many draws has the model's frequencies."""
    model = listops_model()
    sample = ["max_10", "(", "1", "2", ")", "=", "2", "<eos>"]
    torch.manual_seed(0)
    first = [answer.written[0] for answer in answer_listops(model, [sample] * 3000, False, 1, batch_size=3000)]
    ids = torch.tensor([[VOCABULARY.index(t) for t in prompt_of(sample)]])
    chances = model(ids).logits[0, -1].softmax(-1).detach().numpy()
    found = np.array([first.count(token) for token in VOCABULARY]) / 3000
    assert np.abs(found - chances).max() < 0.04
    torch.manual_seed(0)
    again = [answer.written[0] for answer in answer_listops(model, [sample] * 3000, False, 1, batch_size=3000)]
    assert again == first


def test_a_prompt_longer_than_the_context_is_refused():
    model = random_model(vocab_size=20, dtype=torch.float32)
    with pytest.raises(ValueError, match="shorter than the context"):
        answer_listops(model, [["max_10", "(", *"1234567", ")", "=", "7", "<eos>"]])


def test_majority_answer():
    samples = [["max_10", "(", "9", "1", ")", "=", value, "<eos>"] for value in ("9", "3", "9", "2")]
    assert majority_answer(samples) == ("9", 0.5)


def test_loss_is_the_mean_cross_entropy_and_agrees_with_labels():
    model, ids = random_model(), random_ids()
    loss = next_token_loss(model, ids[:, :-1], ids[:, 1:])
    assert loss.item() == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-6)


def test_losses_of_a_stream_are_those_of_its_windows():
    model = random_model()
    stream = random_ids(1, 200)[0].numpy().astype(np.uint16)
    per_window, per_position = stream_losses(model, stream, 7, 5, batch_size=2)
    for number, start in enumerate([0, 48, 96, 144, 192]):
        ids = torch.from_numpy(stream[start : start + 8].astype(np.int64))
        expected = F.cross_entropy(model(ids[None, :-1]).logits[0], ids[1:])
        assert per_window[number] == pytest.approx(expected.item(), rel=1e-5)
    assert per_position.shape == (7,) and per_position.mean() == pytest.approx(per_window.mean())
    assert len(stream_losses(model, stream, 7, 1000)[0]) == 28  # no more than there are


def test_bits_per_character():
    assert bits_per_character(math.log(2), 100, 400) == pytest.approx(0.25)


def test_energy_statistics_of_a_descent():
    """eta = c I with small c: energies fall, and a step points along the steepest descent of the normalised state."""
    model = random_model(eta="pos_scalar")
    with torch.no_grad():
        model.model.blocks[0].rate.a.fill_(0.05)
    found = energy_statistics(model, random_ids(3, 1), num_steps=20)
    assert found["energy"].shape == (3, 21, 1) and found["falling"].eq(1).all()
    assert (found["cosine"] > 0).all()
    ids = random_ids(1, 4)
    out = model(ids, output_energies=True, output_hidden_states=True)
    x, block = out.hidden_states[0][0], model.model.blocks[0]
    own = x[-1].detach().clone().requires_grad_()
    u = block.norm(torch.cat([x[:-1].detach(), own[None]]))[None]
    energy = block.attention.energy(*block.attention.project(u))[0, -1]
    energy = energy + (block.feed_forward_scale * block.feed_forward.energy(u)[0, -1]).squeeze()
    descent = -torch.autograd.grad(energy, own)[0]
    expected = F.cosine_similarity(out.hidden_states[1][0, -1] - x[-1], descent, dim=0)
    assert energy_statistics(model, ids)["cosine"][0, 0, -1].item() == pytest.approx(expected.item(), abs=1e-10)


def test_parts_of_the_rate():
    model = random_model()
    with torch.no_grad():
        model.model.blocks[0].rate.W.copy_(2 * torch.eye(12)[None])
        model.model.blocks[0].rate.W[0, 0, 1], model.model.blocks[0].rate.W[0, 1, 0] = 3.0, -3.0
    parts = rate_parts(model)
    assert parts["symmetric"] == pytest.approx(2 * 12**0.5) and parts["antisymmetric"] == pytest.approx(18**0.5)
    assert parts["least_eigenvalue"] == pytest.approx(2)


# The scripts


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    call(options(out, context=24))
    return out


def from_command_line(name: str, values: dict, monkeypatch) -> None:
    module = script(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *command(values)])
    run(module.main, getattr(module, f"{name.capitalize()}Config"))


def test_generation_from_the_command_line(trained, tmp_path, monkeypatch, capsys):
    output, picture = tmp_path / "new folder" / "texts.json", tmp_path / "energies.png"
    values = dict(model=trained, prompts='["max_10(3 9 1) =", "max_10(0 0) ="]', new_tokens=5, greedy="true")
    from_command_line("generate", values | dict(output=output, energies=picture), monkeypatch)
    texts = json.loads(output.read_text())
    assert texts[0]["text"].startswith("max_10 ( 3 9 1 ) =") and texts[0]["text"] in capsys.readouterr().out
    assert picture.stat().st_size > 10_000
    asked, generate = {}, NRGPTForCausalLM.generate
    monkeypatch.setattr(
        NRGPTForCausalLM, "generate", lambda *args, **more: asked.update(more) or generate(*args, **more)
    )
    drawn = dict(greedy="false", temperature=0.7, top_k=3, num_steps=4, stop_tol=0.1)
    from_command_line("generate", values | drawn, monkeypatch)
    expected = dict(do_sample=True, temperature=0.7, top_k=3, top_p=1.0, num_steps=4, stop_tol=0.1, sliding=False)
    assert {name: asked[name] for name in expected} == expected


def test_a_long_text_needs_sliding(trained, tmp_path, monkeypatch):
    values = dict(model=trained, prompts="max_10(3 9 1) =", new_tokens=40, output=tmp_path / "a.json")
    from_command_line("generate", values | dict(sliding="true", seed=3), monkeypatch)
    assert json.loads((tmp_path / "a.json").read_text())


@pytest.mark.parametrize(
    "name, changed, message",
    [
        ("generate", dict(model="nowhere"), "expected a saved NRGPT or a Hub id, got nowhere"),
        ("generate", dict(prompts="max_11 (1)"), "'max_11' is not in the model's vocabulary"),
        ("generate", dict(prompts="[]"), "prompts: expected at least one"),
        ("generate", dict(temperature=0), "temperature: expected a positive"),
        ("generate", dict(device="tpu"), "device: expected"),
        ("generate", dict(prompts="max_10(" + "1 " * 30 + ") ="), "sliding true"),
        ("evaluate", dict(windows=1), "windows: expected at least 2"),
        ("evaluate", dict(dataset="nowhere"), "dataset: expected listops"),
        ("evaluate", dict(steps="[0]"), "num_steps: expected 1"),
    ],
)
def test_a_mistake_ends_in_one_line(trained, monkeypatch, capsys, name, changed, message):
    if name == "evaluate":
        pytest.importorskip("iclr26_tools")
    with pytest.raises(SystemExit) as ended:
        from_command_line(name, dict(model=trained) | changed, monkeypatch)
    error = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and len(error) == 1 and message in error[0], error


@pytest.mark.parametrize("kind", ["listops", "text", "baseline"])
def test_evaluation_from_the_command_line(kind, trained, tmp_path, monkeypatch, capsys):
    pytest.importorskip("iclr26_tools")
    out = trained
    if kind != "listops":
        text = tmp_path / "text.txt"
        text.write_text("to be or not to be, that is the question. " * 100)
        out = tmp_path / "out"
        call(options(out, dataset=str(text), model="GPT" if kind == "baseline" else "NRGPT_H_FF1"))
    values = dict(model=out, windows=10, prompts=12)
    from_command_line("evaluate", values, monkeypatch)
    report = json.loads((out / "evaluation.json").read_text())
    rows = dict(report["rows"])
    assert rows["gap"] == pytest.approx(
        rows["validation loss, nats a token"]["value"] - rows["training loss, nats a token"]["value"]
    )
    assert ("validation, bits a character" in rows) == (kind != "listops")
    assert ("held-out prompts: right, greedy" in rows) == (kind == "listops")
    assert any("a token's energy falls" in name for name in rows) == (kind != "baseline")
    assert (out / "energies.png").is_file() == (kind != "baseline")
    if kind == "listops":
        trained_steps = "validation loss after 2 steps (trained: 2)"
        assert rows[trained_steps]["value"] == pytest.approx(rows["validation loss, nats a token"]["value"])
        assert rows["held-out prompts: right, greedy"]["n"] == 12
