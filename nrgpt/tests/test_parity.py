"""Numbers of the official code on random weights, where they are at hand (reference numbers, not distributed)."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from nrgpt import NRGPTForCausalLM, preset
from nrgpt.convert import from_official, official_names, to_official
from nrgpt.listops import FUNCTIONS, VOCABULARY, ListOps, answer_of, apply, prompt_of
from nrgpt.optimization import learning_rate, parameter_groups

PRECISIONS = {"out": torch.float32, "out64": torch.float64}
OFFICIAL = {"FF1": "NRGPT_H_FF1", "FF2": "NRGPT_H_FF2", "FF2W": "NRGPT_H_FF2W"}


def files() -> dict[str, Path]:
    folder = os.environ.get("PARITY_DATA")
    return {file.stem: file for file in sorted((Path(folder) / "nrgpt").glob("*.json"))} if folder else {}


def read(name: str):
    if name not in files():
        pytest.skip("no reference numbers here")
    return json.loads(files()[name].read_text())


def cases(kind: str) -> list:
    named = {name: file for name, file in files().items() if file.with_suffix(".safetensors").exists()}
    return [pytest.param(f, id=n) for n, f in named.items() if n.startswith("train_") == (kind == "training")]


class Case:
    """One case, with the model that its weights make in our code."""

    def __init__(self, file: Path, precision: str) -> None:
        self.config = json.loads(file.read_text())["config"]
        self.tensors = load_file(file.with_suffix(".safetensors"))
        self.precision, self.dtype = precision, PRECISIONS[precision]
        self.rebuilt = any(name.startswith(("in.eta_", "in.W_", "in.J")) for name in self.tensors)
        weights = {n.removeprefix("weights."): t for n, t in self.tensors.items() if n.startswith("weights.")}
        self.model = self._model(weights).to(self.dtype).eval()

    def _model(self, weights: dict) -> NRGPTForCausalLM:
        name = OFFICIAL.get(self.config["model"], self.config["model"])
        steps = self.config.get("steps_T") or self.config["layers"]
        config, converted = from_official(weights, steps, self.config["mask"], name)
        assert (config.hidden_size, config.vocab_size) == (self.config["d"], self.config["vocab_size"])
        eta = self.config.get("eta", "full")
        options = {"eta": eta, "norm_gain": "with gain" in self.config.get("ln", "")}
        block = "model.blocks.0"
        given = {name.removeprefix("in."): tensor for name, tensor in self.tensors.items() if name.startswith("in.")}
        if eta != "full":
            del converted[f"{block}.rate.W"]
        if eta in ("pos_scalar", "diag_pos"):
            converted[f"{block}.rate.a"] = given["eta_a"] if eta == "pos_scalar" else given["eta_c"].double().sqrt()
        if eta in ("psd", "psd_skew"):
            converted[f"{block}.rate.L"] = given["eta_L"].unsqueeze(0)
        if eta == "psd_skew":
            converted[f"{block}.rate.A"] = given["eta_A"].unsqueeze(0)
        if "W_Q" in given:
            options["rank"] = given["W_Q"].shape[1]
            del converted[f"{block}.attention.H"]
            converted |= {f"{block}.attention.query": given["W_Q"], f"{block}.attention.key": given["W_K"]}
        if "J" in given:
            options |= {"beta": given["beta"].item(), "learn_alpha": True}
            converted[f"{block}.attention.H"] = given["J"].transpose(1, 2)
            raw = torch.log(torch.expm1(given["beta"].double()))  # the inverse of softplus
            converted[f"{block}.attention.raw_alpha"] = raw.expand(config.num_attention_heads)
        if config.block != "energy":
            options = {}
        model = NRGPTForCausalLM(type(config)(**(config.to_dict() | options))).double()
        model.load_state_dict(converted)
        return model

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def check(self, name: str, ours: torch.Tensor) -> None:
        """Compare with `out.NAME`, `mid.NAME` or `grad.NAME` of this precision, if the case has it."""
        reference = self.tensors.get(name)
        if self.precision == "out64":
            reference = self.tensors.get(f"out64.{name.removeprefix('out.')}", self.tensors.get(f"out64.{name}"))
        if reference is None:
            return
        size = reference.double().abs().max().item()
        error = (ours.detach().double().reshape(reference.shape) - reference.double()).abs().max().item()
        if self.dtype == torch.float64:
            tolerance = 1e-6 * size if self.rebuilt else 1e-10 * max(size, 1)
        else:
            tolerance = max(1e-5, 1e-6 * size)
        assert error <= tolerance, f"{name}: {error:.3g} > {tolerance:.3g}"
        self.compared = getattr(self, "compared", 0) + 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("file", cases("model"))
def test_models(file, precision):
    case = Case(file, precision)
    model, ids, targets = case.model, case["in.ids"], case["in.targets"]
    energies = model.config.block == "energy"
    embedded = model.get_input_embeddings()(ids) + model.model.embed_positions.weight[: ids.shape[1]]
    out = model(ids, output_hidden_states=True, output_energies=energies, use_cache=False)
    loss = F.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
    case.check("out.logits", out.logits)
    case.check("out.loss", loss)
    states = torch.stack(out.hidden_states)
    case.check("mid.x", states)
    assert torch.equal(states[0], embedded)
    if energies:
        block = model.model.blocks[0]
        u = block.norm(states)
        case.check("mid.u", u)
        case.check("mid.energy_attn", out.attention_energy.transpose(0, 1))
        case.check("mid.energy_ff", out.feed_forward_energy.transpose(0, 1) / block.feed_forward_scale)
        projected = [block.attention.project(part) for part in u]
        case.check("mid.attn", torch.stack([block.attention.gradient(q, k) for q, k in projected[:-1]]))
        weights = torch.stack([block.attention.weights(q, k) for q, k in projected[:-1]]).transpose(1, 2)
        case.check("mid.attn_prob", weights)
        case.check("mid.ff", block.feed_forward.gradient(u[:-1]))
        if model.config.mask == "inclusive":
            block.attention.exact_self = True
        exact = torch.stack([block.attention.gradient(q, k) for q, k in projected])
        block.attention.exact_self = False
        reference = case.tensors.get("mid.attn_energy_grad")
        case.check("mid.attn_energy_grad", exact[: len(reference)])
    check_gradients(case, model, loss, out.hidden_states[0])
    if "out.logits_2T" in case.tensors:
        case.check("out.logits_2T", model(ids, num_steps=2 * model.config.num_hidden_layers).logits)
    if "out.greedy" in case.tensors:
        prompt, expected = case["in.prompt"], case["out.greedy"]
        new = expected.shape[1] - prompt.shape[1]
        greedy = model.generate(prompt, max_new_tokens=new, do_sample=False, sliding=True)
        assert torch.equal(greedy, expected)
        within = min(expected.shape[1], model.config.max_position_embeddings) - prompt.shape[1]
        cached = model.generate(prompt, max_new_tokens=within, do_sample=False)
        assert torch.equal(cached, expected[:, : prompt.shape[1] + within])
    assert case.compared >= (3 if precision == "out64" else 5)


def check_gradients(case: Case, model: NRGPTForCausalLM, loss: torch.Tensor, x0: torch.Tensor) -> None:
    """Gradients of the loss; those of factors by the chain rule from the stored ones of eta and H."""
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, [x0, *names.values()])
    case.check("grad.x0", found[0])
    gradients = dict(zip(names, found[1:], strict=True))
    plain = type(model.config)(**(model.config.to_dict() | dict(rank=None, eta="full", learn_alpha=False)))
    for ours, parts in official_names(plain).items():
        if ours in gradients:
            pieces = gradients[ours]
            pieces = pieces.unbind() if ours.endswith(("attention.H", "rate.W")) else pieces.chunk(len(parts))
            for name, piece in zip(parts, pieces, strict=True):
                if "J" not in {n.removeprefix("in.") for n in case.tensors} or not name.endswith("H.weight"):
                    case.check(f"grad.{name}", piece)
    block = "model.blocks.0"
    stored = {n: t.double() for n, t in case.tensors.items() if n.startswith("grad.blocks")}
    G, H = stored.get("grad.blocks.proj.weight"), stored.get("grad.blocks.attn.heads.0.H.weight")
    given = {n.removeprefix("in."): t.double() for n, t in case.tensors.items() if n.startswith("in.")}
    chain = {}
    if "eta_a" in given:
        chain[f"{block}.rate.a"] = 2 * given["eta_a"] * G.trace()
    if "eta_c" in given:
        chain[f"{block}.rate.a"] = 2 * given["eta_c"].sqrt() * (G.diagonal() * case["weights.blocks.ln.weight"]).sum()
    if "eta_L" in given:
        chain[f"{block}.rate.L"] = (G + G.T) @ given["eta_L"]
    if "eta_A" in given:
        chain[f"{block}.rate.A"] = G - G.T
    if "W_Q" in given:
        chain[f"{block}.attention.query"] = given["W_K"][0] @ H.T
        chain[f"{block}.attention.key"] = given["W_Q"][0] @ H
    if "J" in given:
        chain[f"{block}.attention.H"] = given["beta"] * H
    for name, expected in chain.items():
        ours = gradients[name].double()
        ours = ours[0] if ours.shape != expected.shape else ours
        assert torch.allclose(ours, expected, atol=1e-5, rtol=1e-4), name
    missing = [n for n in gradients if n.startswith(f"{block}.rate") and not n.endswith(".W")]
    assert all(name in chain for name in missing), missing


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("file", cases("training"))
def test_training_loops(file, precision):
    case = Case(file, precision)
    language = file.stem == "train_lm_ff2w"
    groups = parameter_groups(case.model, 0.1, "matrices") if language else parameter_groups(case.model, 0.01, "all")
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95 if language else 0.999))
    losses, norms = [], []
    for step, (ids, targets) in enumerate(zip(case["in.ids"], case["in.targets"], strict=True)):
        rate = learning_rate(step, 6e-3, 6e-4, 8, 2) if language else learning_rate(step, 5e-3, 2e-4, 6)
        assert rate == pytest.approx(case["in.lr"][step].item(), rel=1e-6)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(case.model(ids).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(case.model.parameters(), 1.0))
        optimizer.step()
        losses.append(loss)
    case.check("out.losses", torch.stack(losses))
    case.check("out.grad_norms", torch.stack(norms))
    for name, tensor in to_official(case.model.config, case.model.state_dict()).items():
        case.check(f"out.after.{name}", tensor)
    assert case.compared > 10


def test_which_parameters_decay():
    for model, expected in read("optimizer_groups")["language_models"].items():
        shape = expected["config"]
        config = preset(
            OFFICIAL.get(model, model),
            vocab_size=shape["vocab"],
            max_position_embeddings=shape["context"],
            hidden_size=shape["d"],
            num_attention_heads=shape["heads"],
            num_hidden_layers=shape["steps"],
        )
        ours = NRGPTForCausalLM(config)
        official = {id(ours.get_parameter(n)): parts for n, parts in official_names(config).items()}
        decay, others = parameter_groups(ours, 0.1)
        assert {n for p in decay["params"] for n in official[id(p)]} == set(expected["decay"])
        assert {n for p in others["params"] for n in official[id(p)]} == set(expected["no_decay"])
        frozen = {n for p in ours.parameters() if not p.requires_grad for n in official[id(p)]}
        assert frozen == set(expected["frozen"])


def test_learning_rates():
    expected = read("schedules")
    language = expected["language_models"]
    for kind in ("exponential", "cosine"):
        for step, value in zip(language["iteration"], language[kind], strict=True):
            ours = learning_rate(step, 1e-3, 1e-4, 4000, 100, kind)
            assert ours == pytest.approx(value, rel=1e-12)
    listops = expected["listops"]
    for step, value in enumerate(listops["lr_of_step"][: listops["epochs"]]):
        assert learning_rate(step, 1e-3, 1e-4, listops["epochs"]) == pytest.approx(value, rel=1e-12)


def test_parameter_counts():
    for row in read("parameter_counts"):
        with torch.device("meta"):
            model = NRGPTForCausalLM(
                preset(
                    OFFICIAL.get(row["model"], row["model"]),
                    vocab_size=row["vocab"],
                    max_position_embeddings=row["context"],
                    hidden_size=row["d"],
                    num_attention_heads=row["heads"],
                    num_hidden_layers=row["steps"],
                    intermediate_size=row["ff_factor"] * row["d"],
                )
            )
        assert sum(p.numel() for p in model.parameters()) == row["parameters"]
        trained = [p for p in model.parameters() if p.requires_grad]
        assert sum(p.numel() for p in trained) == row["trainable"]
        assert sum(p.numel() for p in trained if p.dim() >= 2) == row["trainable_2d"]


def generator(config: dict, **options) -> ListOps:
    """Ours with the options of a reference case."""
    return ListOps(
        functions=[name.removesuffix("_10") for name in config["functions_used"]],
        max_depth=config["max_depth"],
        min_children=config["min_children"],
        max_children=config["max_children"],
        function_share=config["func_node_prob"],
        seed=config["seed"],
        **options,
    )


@pytest.mark.parametrize("name", ["listops_seed42", "listops_depth3"])
def test_listops_draws(name):
    expected = read(name)
    ours = generator(expected["config"])
    assert expected["vocab"] == VOCABULARY
    assert sorted(ours.held_out) == sorted(tuple(t) for t in expected["held_out_tuples"])
    for sample in expected["samples"]:
        tokens = ours.draw()
        assert ",".join(tokens) == sample["text"]
        assert [VOCABULARY.index(t) for t in tokens] == sample["ids"]
        assert [VOCABULARY.index(t) for t in prompt_of(tokens)] == sample["prompt_ids"]
        assert answer_of(tokens) == sample["answer"]
        assert ours.is_held_out(tokens) == sample["held_out"]


def test_listops_whole_data_set():
    expected = read("listops_seed42")
    whole, ours = expected["whole_dataset"], generator(expected["config"])
    train, test = ours.split(whole["num_train"], whole["num_test"])
    ids = [VOCABULARY.index(token) for sample in train for token in sample]
    single = ours.tests_of_one_function(whole["num_test"])
    assert len(ids) == whole["train_tokens"]
    assert digest(ids) == whole["train_sha256"]
    assert digest([",".join(sample) for sample in test]) == whole["test_sha256"]
    found = {f"{name}_10": digest([",".join(sample) for sample in samples]) for name, samples in single.items()}
    assert found == whole["single_op_sha256"]


def digest(value: list) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def test_listops_functions():
    rows = read("listops_functions")
    for row in rows:
        for function in FUNCTIONS:
            assert apply(function, row["args"]) == row[f"{function}_10"]


def test_listops_answers():
    expected = read("listops_eval")
    for row in expected["rows"]:
        ids = row["padded_prompt_ids"] + row["continuation_ids"]
        answer = answer_of([VOCABULARY[i] for i in ids], row["pad_length"])
        assert answer == row["final_answer"]
        assert (answer == row["expected"]) == row["correct"]
        assert row["expected"] == answer_of(row["text"].split(","))
