"""The language model: causality, recurrence, caches, generation, saving."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nrgpt import MODELS, NRGPTConfig, NRGPTForCausalLM, preset
from nrgpt.blocks import Visible
from nrgpt.convert import from_official, to_official
from nrgpt.inference_rate import RATES
from tests.conftest import SHAPE, random_ids, random_model

VARIANTS = [
    *[dict(eta=kind) for kind in RATES if kind != "diag_pos"],
    dict(eta="diag_pos", norm_gain=True),
    dict(mask="inclusive"),
    dict(mask="inclusive", exact_self=True),
    dict(rank=3, energy="ff1"),
    dict(rank=6, mask="inclusive", energy="ff2"),
    dict(norm="rmsnorm", learn_alpha=True, beta=0.8),
    dict(norm="none", energy="ff1", spread=0.1),
    dict(eta_per_step=True),
    dict(share_blocks=False),
    dict(tie_word_embeddings=True),
    dict(block="parallel"),
    dict(block="sequential"),
    dict(block="sequential", share_blocks=False, activation="gelu"),
    dict(block="parallel", num_attention_heads=5),
]


def name_of(options: dict) -> str:
    return "-".join(f"{value}" for value in options.values())


variants = pytest.mark.parametrize("options", VARIANTS, ids=name_of)


@variants
def test_no_token_sees_a_later_one(options):
    """Acceptance check 5."""
    model, ids = random_model(**options), random_ids()
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@variants
def test_cache_is_exact(options):
    """Acceptance check 12: token by token, and in pieces."""
    model, ids = random_model(**options), random_ids(length=10)
    whole = model(ids, use_cache=False)
    assert whole.cache is None
    for pieces in ([1] * 10, [4, 1, 3, 2]):
        cache, logits = None, []
        for part in ids.split(pieces, dim=1):
            out = model(part, cache=cache, use_cache=True)
            cache = out.cache
            logits.append(out.logits)
        assert torch.allclose(torch.cat(logits, 1), whole.logits, atol=1e-10)


@variants
def test_generation_with_a_cache_is_recomputation(options):
    """Acceptance check 12: greedy, token for token."""
    model, ids = random_model(**options), random_ids(length=3)
    cached = model.generate(ids, max_new_tokens=7, do_sample=False)
    expected = ids
    for _ in range(7):
        expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(cached, expected)


def test_energy_cache_holds_keys_once():
    model, ids = random_model(rank=3), random_ids()
    cache = model(ids, use_cache=True).cache
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 8, 3)] * 3
    assert all(layer.values.numel() == 0 for layer in cache.layers)


@pytest.mark.parametrize("options", [dict(), dict(mask="inclusive"), dict(rank=3), dict(block="parallel")], ids=name_of)
def test_padding_on_the_left_changes_nothing(options):
    model, ids = random_model(**options), random_ids(length=6)
    padded = torch.cat([random_ids(length=3, seed=9), ids], 1)
    mask = torch.ones_like(padded)
    mask[:, :3] = 0
    assert torch.allclose(model(padded, attention_mask=mask).logits[:, 3:], model(ids).logits, atol=1e-12)
    new = model.generate(padded, attention_mask=mask, max_new_tokens=4, do_sample=False)[:, 9:]
    assert torch.equal(new, model.generate(ids, max_new_tokens=4, do_sample=False)[:, 6:])


def test_generation_with_more_steps_than_were_trained():
    model, ids = random_model(), random_ids(length=3)
    cached = model.generate(ids, max_new_tokens=4, do_sample=False, num_steps=7)
    assert torch.equal(cached, model.generate(ids, max_new_tokens=4, do_sample=False, num_steps=7, use_cache=False))
    assert not torch.equal(cached, model.generate(ids, max_new_tokens=4, do_sample=False))


def test_beam_search_runs_on_the_cache():
    model, ids = random_model(), random_ids(length=3)
    with_cache = model.generate(ids, max_new_tokens=5, num_beams=3, do_sample=False)
    assert torch.equal(with_cache, model.generate(ids, max_new_tokens=5, num_beams=3, do_sample=False, use_cache=False))


def test_sliding_recomputes_the_last_window():
    model, ids = random_model(), random_ids(length=8)
    slid = model.generate(ids, max_new_tokens=6, do_sample=False, sliding=True)
    expected = ids
    for _ in range(6):
        expected = torch.cat([expected, model(expected[:, -10:]).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(slid, expected)


def test_generation_beyond_the_context_says_what_to_do():
    with pytest.raises(ValueError, match="sliding=True"):
        random_model().generate(random_ids(), max_new_tokens=5, do_sample=False)


def test_steps_are_applications_of_the_block():
    """Acceptance check 11: T of them, and 2 T go on where T ended."""
    model, ids = random_model(), random_ids()
    once = model(ids, output_hidden_states=True).hidden_states
    twice = model(ids, num_steps=6, output_hidden_states=True).hidden_states
    assert len(once) == 4 and len(twice) == 7
    x = once[0]
    for t in range(6):
        assert torch.equal(twice[t], x)
        assert t > 3 or torch.equal(once[t], x)
        x = model.model.blocks[0](x, Visible(), t)
    assert torch.equal(twice[6], x)


@pytest.mark.parametrize("options", [dict(), dict(mask="inclusive"), dict(rank=3)], ids=name_of)
def test_adaptive_depth(options):
    """A token rests from its first small step on; caches stay exact; a tolerance of next to nothing changes nothing."""
    model, ids = random_model(eta="pos_scalar", **options), random_ids()
    with torch.no_grad():
        model.model.blocks[0].rate.a.fill_(0.3)
    plain = model(ids, num_steps=30, output_hidden_states=True)
    assert torch.equal(model(ids, num_steps=30, stop_tol=1e-300).logits, plain.logits)
    out = model(ids, num_steps=30, stop_tol=0.05, output_hidden_states=True, use_cache=False)
    assert (out.steps < 30).any() and out.steps.unique().numel() > 1
    states = torch.stack(out.hidden_states)
    moves = states.diff(dim=0).norm(dim=-1) / states[:-1].norm(dim=-1)
    for row in range(2):
        for a in range(8):
            taken = int(out.steps[row, a])
            assert (moves[: taken - 1, row, a] >= 0.05).all() and (moves[taken:, row, a] == 0).all()
            assert taken == 30 or moves[taken - 1, row, a] < 0.05
    cache, logits = None, []
    for part in ids.split(1, dim=1):
        step = model(part, num_steps=30, stop_tol=0.05, cache=cache, use_cache=True)
        cache = step.cache
        logits.append(step.logits)
    assert torch.allclose(torch.cat(logits, 1), out.logits, atol=1e-10)


@variants
def test_overfits_one_batch(options):
    """Acceptance check 17, and that every parameter that is trained has a gradient."""
    torch.manual_seed(0)
    options = {key: value for key, value in options.items() if key != "spread"}
    model = NRGPTForCausalLM(NRGPTConfig(**(SHAPE | dict(hidden_size=32, num_attention_heads=4) | options)))
    ids = random_ids(2, 9)
    ids[:, 0] = torch.tensor([1, 2])  # the first token tells the rows apart
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(400):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < 0.1:
            break
    assert loss < 0.1
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("options", [dict(), dict(block="parallel"), dict(eta_per_step=True)], ids=name_of)
def test_gradient_checkpointing_gives_equal_gradients(options):
    """Acceptance check 16."""
    ids, found = random_ids(), []
    for checkpointing in (False, True):
        model = random_model(**options).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))


def test_initial_weights():
    """Acceptance check 14."""
    model = NRGPTForCausalLM(NRGPTConfig(vocab_size=400, hidden_size=64, num_attention_heads=2, learn_alpha=True))
    block = model.model.blocks[0]
    for name, p in model.named_parameters():
        if p.dim() >= 2:
            assert p.std().item() == pytest.approx(0.02, rel=0.05), name
            assert abs(p.mean().item()) < 0.001
        elif name.endswith("bias"):
            assert p.eq(0).all()
    assert block.feed_forward_scale.eq(1).all() and block.norm.weight.eq(1).all()
    assert not block.norm.weight.requires_grad
    assert torch.allclose(block.attention.alpha(), torch.ones(2))


def test_constrained_rates_start_at_the_identity():
    for kind in ("pos_scalar", "psd"):
        rate = NRGPTForCausalLM(NRGPTConfig(**SHAPE, eta=kind)).model.blocks[0].rate
        assert torch.equal(rate.matrix(), torch.eye(12))


@variants
def test_save_and_load(options, tmp_path):
    """Acceptance check 16; the held gain stays held."""
    model, ids = random_model(dtype=torch.float32, **options), random_ids()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()
    held = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert held == [n for n, p in loaded.named_parameters() if not p.requires_grad]


def test_loads_without_this_package(tmp_path):
    model, ids = random_model(dtype=torch.float32), random_ids()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "nrgpt").mkdir()
    (tmp_path / "nrgpt" / "__init__.py").write_text("raise ImportError('not installed here')")
    script = f"""
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "model")!r}, trust_remote_code=True)
print(model(torch.tensor({ids.tolist()})).logits.sum().item())
print(model.generate(torch.tensor({ids[:, :3].tolist()}), max_new_tokens=3, do_sample=False).shape[1])
"""
    environment = {"PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    total, length = done.stdout.split()
    assert float(total) == pytest.approx(model(ids).logits.sum().item(), abs=1e-3)
    assert int(length) == 6


@pytest.mark.parametrize("name", MODELS)
def test_official_layout_there_and_back(name):
    config = preset(name, **{key: value for key, value in SHAPE.items() if key != "mask"}, mask="strict")
    model = NRGPTForCausalLM(config)
    state = to_official(config, model.state_dict())
    state |= {"pos_idx": torch.arange(10), "blocks.attn.heads.0.tril": torch.ones(10, 10)}
    state = {f"_orig_mod.{key}": value for key, value in state.items()}
    read, weights = from_official(state, 3, "strict", None if name in ("GPT",) or "NRGPT" in name else name)
    assert read.to_dict() == config.to_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_official_layout_refuses_what_does_not_fit():
    config = preset("NRGPT_H_FF1", **SHAPE)
    state = to_official(config, NRGPTForCausalLM(config).state_dict())
    with pytest.raises(ValueError, match="lm_head.bias"):
        from_official({k: v for k, v in state.items() if k != "lm_head.bias"}, 3, "strict")
    with pytest.raises(ValueError, match="surprise"):
        from_official(state | {"surprise": torch.ones(1)}, 3, "strict")
    with pytest.raises(ValueError, match="neither"):
        from_official({"a": torch.ones(1)}, 3, "strict")
    rec = preset("GPT_Rec", **SHAPE)
    with pytest.raises(ValueError, match="GPT_Rec_parallel"):
        from_official(to_official(rec, NRGPTForCausalLM(rec).state_dict()), 3, "inclusive")
    gpt = preset("GPT", **SHAPE)
    with pytest.raises(ValueError, match="expected 3"):
        from_official(to_official(gpt, NRGPTForCausalLM(gpt).state_dict()), 4, "inclusive")
    low = NRGPTConfig(**SHAPE, rank=3)
    with pytest.raises(ValueError, match="rank"):
        to_official(low, NRGPTForCausalLM(low).state_dict())


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(eta="fast"), "eta: expected one of"),
        (dict(eta="diag_pos"), "norm_gain=True"),
        (dict(mask="none"), "mask: expected"),
        (dict(exact_self=True), "exact_self"),
        (dict(rank=0), "rank: expected at least 1"),
        (dict(dropout=1.0), "dropout"),
        (dict(stop_tol=-1.0), "stop_tol: expected a positive"),
        (dict(stop_tol=0.1, share_blocks=False), "share_blocks"),
        (dict(block="parallel", num_attention_heads=20), "num_attention_heads: expected at most 12"),
    ],
)
def test_wrong_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        NRGPTConfig(**(SHAPE | options))


def test_wrong_calls():
    model, ids = random_model(), random_ids()
    with pytest.raises(ValueError, match="at most 10 tokens"):
        model(random_ids(length=11))
    with pytest.raises(ValueError, match="attention_mask: expected shape"):
        model(ids, attention_mask=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="num_steps"):
        model(ids, num_steps=0)
    with pytest.raises(ValueError, match="num_steps: expected 1 to 3"):
        random_model(share_blocks=False)(ids, num_steps=4)
    with pytest.raises(ValueError, match="energy blocks"):
        random_model(block="parallel")(ids, output_energies=True)
    with pytest.raises(ValueError, match="empty cache"):
        model(ids[:, 6:], cache=model(ids[:, :6], use_cache=True).cache, output_energies=True)
    with pytest.raises(ValueError, match="filled with 6 steps"):
        model(ids[:, 6:], cache=model(ids[:, :6], use_cache=True).cache, num_steps=6)
    with pytest.raises(ValueError, match="input_ids"):
        model()
    with pytest.raises(ValueError, match="expected one of"):
        preset("GPT5")


def test_paper_sizes():
    """Acceptance check 1."""
    counts = {
        ("GPT", 50304, 1024, 768, 12, 12): 163_132_032,
        ("GPT_Rec_parallel", 50304, 1024, 768, 12, 12): 85_190_784,
        ("NRGPT_H_FF1", 50304, 1024, 768, 12, 12): 88_136_833,
        ("NRGPT_H_FF2", 50304, 1024, 768, 12, 12): 88_727_425,
        ("NRGPT_H_FF2W", 50304, 1024, 768, 12, 12): 90_496_897,
        ("NRGPT_H_FF2W", 50304, 1024, 768, 1, 12): 84_008_833,
        ("GPT", 65, 256, 384, 6, 6): 10_788_929,
        ("GPT_Rec_parallel", 65, 256, 384, 6, 6): 1_922_369,
        ("NRGPT_H_FF1", 65, 256, 384, 6, 6): 1_773_378,
        ("NRGPT_H_FF2W", 65, 256, 384, 6, 6): 2_363_586,
    }
    for (name, vocabulary, context, width, heads, steps), expected in counts.items():
        with torch.device("meta"):
            model = NRGPTForCausalLM(
                preset(
                    name,
                    vocab_size=vocabulary,
                    max_position_embeddings=context,
                    hidden_size=width,
                    num_attention_heads=heads,
                    num_hidden_layers=steps,
                )
            )
        assert sum(p.numel() for p in model.parameters()) == expected, name
