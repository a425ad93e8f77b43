"""The theorems, checked on numbers (Propositions 2.1 and 2.2)."""

import pytest
import torch

from nrgpt.blocks import Visible
from nrgpt.inference_rate import InferenceRate
from tests.conftest import random_ids, random_model


def energy_of_last(block, others: torch.Tensor, own: torch.Tensor, normalise: bool = True) -> torch.Tensor:
    """E_A of the last token, the states `others` of the earlier ones held."""
    u = torch.cat([others, own[None]])[None]
    u = block.norm(u) if normalise else u
    attention = block.attention.energy(*block.attention.project(u))[0, -1]
    return attention + (block.feed_forward_scale * block.feed_forward.energy(u)[0, -1]).squeeze()


def small_steps(model, c: float) -> None:
    """eta = c I."""
    with torch.no_grad():
        model.model.blocks[0].rate.a.fill_(c**0.5)


@pytest.mark.parametrize("energy", ["ff1", "ff2", "ff2w"])
def test_energy_of_a_single_token_never_rises(energy):
    """Acceptance check 6: eta = c I, a thousand steps."""
    model = random_model(energy=energy, eta="pos_scalar")
    small_steps(model, 0.01)
    out = model(random_ids(3, 1), num_steps=1000, output_energies=True)
    total = out.attention_energy + out.feed_forward_energy
    assert (total.diff(dim=1) <= 1e-12).all()
    assert (total[:, -1] < total[:, 0] - 0.1).all()


@pytest.mark.parametrize("options", [dict(eta="pos_scalar"), dict(eta="diag_pos", norm_gain=True)])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_energy_never_rises_once_the_earlier_tokens_rest(norm, options):
    """Acceptance check 6, a longer sequence: tokens B < A frozen at their states."""
    model = random_model(norm=norm, energy="ff2w", **options)
    small_steps(model, 0.01)
    block = model.model.blocks[0]
    x = model(random_ids(1, 5), output_hidden_states=True).hidden_states[-1][0].detach()
    energies = []
    with torch.no_grad():
        for _ in range(300):
            energies.append(energy_of_last(block, x[:-1], x[-1]))
            moved = block(x[None], Visible(), 0)[0]
            x = torch.cat([x[:-1], moved[-1:]])
    energies = torch.stack(energies)
    assert (energies.diff() <= 1e-12).all()
    assert energies[-1] < energies[0] - 0.01


def test_a_random_full_rate_does_not_descend():
    """The guarantee is not there for nothing: trap 4."""
    model = random_model(energy="ff2w", eta="full")
    out = model(random_ids(3, 1), num_steps=50, output_energies=True)
    total = out.attention_energy + out.feed_forward_energy
    assert (total.diff(dim=1) > 0).any()


@pytest.mark.parametrize("gain", [False, True])
def test_rate_of_change_behind_a_layer_norm(gain):
    """Acceptance check 7: dE/dt = -(c / s) |P diag(gain) dE/dg|^2, with eta = c diag(gain) and P a projector."""
    eta = "diag_pos" if gain else "pos_scalar"
    model = random_model(eta=eta, norm_gain=gain, energy="ff2w", layer_norm_eps=1e-14)
    block = model.model.blocks[0]
    x = model(random_ids(1, 4), output_hidden_states=True).hidden_states[-1][0].detach()
    own = x[-1].clone().requires_grad_()
    energy = energy_of_last(block, x[:-1], own)
    by_state = torch.autograd.grad(energy, own)[0]
    velocity = (block(x[None], Visible(), 0) - x[None])[0, -1]

    u = block.norm(torch.cat([x[:-1], x[-1:]])).detach()
    last = u[-1].clone().requires_grad_()
    by_u = torch.autograd.grad(energy_of_last(block, u[:-1], last, normalise=False), last)[0]
    centred = x[-1] - x[-1].mean()
    scale = centred.square().mean().sqrt()
    direction = centred / scale / len(centred) ** 0.5
    P = torch.eye(12, dtype=x.dtype) - 1 / 12 - torch.outer(direction, direction)
    assert torch.allclose(P @ P, P, atol=1e-12)
    c, weight = block.rate.a[0].square(), block.gain
    expected = -(c / scale) * (P @ (weight * by_u)).square().sum()
    assert expected < 0
    assert (by_state @ velocity).item() == pytest.approx(expected.item(), abs=1e-8)


@pytest.mark.parametrize("kind", ["psd", "psd_skew"])
def test_without_a_norm_a_semi_definite_rate_descends(kind):
    """Acceptance check 8: whatever the antisymmetric part."""
    model = random_model(eta=kind, norm="none", energy="ff1")
    block = model.model.blocks[0]
    x = model(random_ids(1, 4), output_hidden_states=True).hidden_states[0][0].detach()
    own = x[-1].clone().requires_grad_()
    gradient = torch.autograd.grad(energy_of_last(block, x[:-1], own), own)[0]
    velocity = (block(x[None], Visible(), 0) - x[None])[0, -1]
    assert gradient @ velocity < 0


def test_a_skew_rate_keeps_the_energy():
    """Acceptance check 8: exactly zero change to first order, and it does move."""
    model = random_model(eta="psd_skew", norm="none", energy="ff1")
    block = model.model.blocks[0]
    with torch.no_grad():
        block.rate.L.zero_()
    x = model(random_ids(1, 4), output_hidden_states=True).hidden_states[0][0].detach()
    own = x[-1].clone().requires_grad_()
    gradient = torch.autograd.grad(energy_of_last(block, x[:-1], own), own)[0]
    velocity = (block(x[None], Visible(), 0) - x[None])[0, -1]
    assert abs(gradient @ velocity) < 1e-12 * gradient.norm() * velocity.norm()
    assert velocity.norm() > 0.01


def test_a_later_token_descends_in_the_end_too():
    """Section 2.2, by induction along the causal order: when the first token rests, the second descends."""
    model = random_model(eta="pos_scalar", energy="ff2w", spread=0.5)
    small_steps(model, 0.05)
    out = model(random_ids(1, 2), num_steps=2000, output_energies=True)
    late = (out.attention_energy + out.feed_forward_energy)[0].diff(dim=0)[-200:]
    assert (late <= 1e-12).all()


@pytest.mark.parametrize("kind", ["full", "identity", "pos_scalar", "diag_pos", "psd", "psd_skew", "dual"])
def test_matrix_of_a_rate_is_what_it_multiplies_by(kind, generator):
    rate = InferenceRate(kind, 5, steps=2).double()
    for p in rate.parameters():
        torch.nn.init.normal_(p)
    gain = torch.randn(5, generator=generator, dtype=torch.float64)
    v = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    for step in (0, 1, 7):  # beyond the last the last
        eta = rate.matrix(gain, step).double()
        assert torch.allclose(rate(v, torch.zeros_like(v), gain, step), v @ eta.T)
        if kind == "psd":
            assert torch.linalg.eigvalsh(eta).min() > -1e-12 and torch.allclose(eta, eta.T)
        if kind == "psd_skew":
            assert torch.linalg.eigvalsh(eta + eta.T).min() > -1e-12 and not torch.allclose(eta, eta.T)
        if kind == "diag_pos":
            assert torch.allclose(eta, rate.a[min(step, 1)].square() * gain.diag())
    if kind == "dual":
        assert not torch.allclose(rate(v, torch.zeros_like(v), gain, 0), rate(torch.zeros_like(v), v, gain, 0))
    elif kind != "identity":
        assert not torch.allclose(rate.matrix(gain, 0), rate.matrix(gain, 1))
