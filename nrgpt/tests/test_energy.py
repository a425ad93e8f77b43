"""The closed-form gradients are the derivatives of the energies, as the paper means them: own token only."""

import pytest
import torch
import torch.nn.functional as F

from nrgpt.blocks import Visible
from nrgpt.energy import FEED_FORWARD, AttentionEnergy, attend, causal_mask, gelu_slope
from tests.conftest import random_ids, random_model
from tests.plain_block import PlainEnergyBlock

DIM, HEADS, LENGTH = 6, 3, 5
OPTIONS = [dict(), dict(rank=2), dict(beta=0.7), dict(learn_alpha=True), dict(rank=4, beta=1.7, learn_alpha=True)]


def random_attention(**options) -> AttentionEnergy:
    attention = AttentionEnergy(DIM, HEADS, **options).double().eval()
    with torch.no_grad():
        for p in attention.parameters():
            p.copy_(0.7 * torch.randn(p.shape, dtype=torch.float64))
    return attention


def by_definition(attention: AttentionEnergy, u: torch.Tensor, a: int) -> torch.Tensor:
    """Energy of token `a` of (length, dim), written out head by head and key by key."""
    if attention.rank is None:
        J = attention.H.transpose(1, 2)
    else:
        J = attention.key.transpose(1, 2) @ attention.query
    alpha = torch.ones(HEADS, dtype=u.dtype) if attention.raw_alpha is None else F.softplus(attention.raw_alpha)
    energy = torch.zeros((), dtype=u.dtype)
    for h in range(HEADS):
        seen = range(a if attention.strict else a + 1)
        if len(seen):
            scores = torch.stack([attention.beta * u[b] @ J[h] @ u[a] for b in seen])
            energy = energy - alpha[h] / attention.beta * torch.logsumexp(scores, 0)
    return energy


@pytest.fixture
def u(generator) -> torch.Tensor:
    return torch.randn(2, LENGTH, DIM, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mask", ["strict", "inclusive"])
def test_energy_is_the_formula(options, mask, u):
    attention = random_attention(mask=mask, **options)
    expected = torch.stack([torch.stack([by_definition(attention, row, a) for a in range(LENGTH)]) for row in u])
    assert torch.allclose(attention.energy(*attention.project(u)), expected, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mask", ["strict", "inclusive"])
def test_gradient_is_the_derivative_for_every_token(options, mask, u):
    """Acceptance checks 2 and 3: the other tokens detached, the own key not."""
    attention = random_attention(mask=mask, exact_self=mask == "inclusive", **options)
    gradient = attention.gradient(*attention.project(u))
    for row in range(2):
        for a in range(LENGTH):
            own = u[row, a].clone().requires_grad_()
            tokens = torch.cat([u[row, :a], own[None], u[row, a + 1 :]])
            energy = by_definition(attention, tokens, a)
            expected = torch.autograd.grad(energy, own)[0] if energy.requires_grad else torch.zeros(DIM)
            assert (gradient[row, a] - expected).abs().max() < 1e-10
    if mask == "strict":
        assert gradient[:, 0].eq(0).all()


@pytest.mark.parametrize("options", OPTIONS)
def test_inclusive_gradient_leaves_out_the_own_key(options, u):
    """Acceptance check 3: what is missing is alpha_h p_AA J_h u_A."""
    attention = random_attention(mask="inclusive", **options)
    query, key = attention.project(u)
    plain = attention.gradient(query, key)
    attention.exact_self = True
    if attention.rank is None:
        J = attention.H.transpose(1, 2)
    else:
        J = attention.key.transpose(1, 2) @ attention.query
    alpha = torch.ones(HEADS) if attention.alpha() is None else attention.alpha()
    own = attention.weights(query, key).diagonal(dim1=2, dim2=3)  # p_AA, (batch, heads, length)
    missing = -torch.einsum("h,bha,hde,bae->bad", alpha.double(), own, J, u)
    assert torch.allclose(attention.gradient(query, key) - plain, missing, atol=1e-12)


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_gradient_is_the_derivative(name, u):
    """Acceptance check 4, and that a token's energy depends on that token alone."""
    energy = FEED_FORWARD[name](DIM, 4 * DIM).double()
    with torch.no_grad():
        for p in energy.parameters():
            p.copy_(torch.randn(p.shape, dtype=torch.float64))
    u.requires_grad_()
    expected = torch.autograd.grad(energy.energy(u).sum(), u)[0]
    assert (energy.gradient(u) - expected).abs().max() < 1e-10


def test_feed_forward_energies_are_the_formulas(u):
    for name, energy in {name: kind(DIM, 8).double() for name, kind in FEED_FORWARD.items()}.items():
        inner = F.gelu(u @ energy.first.weight.T + energy.first.bias)
        if name == "ff1":
            expected = -(inner**2).sum(-1)
        else:
            outer = inner @ energy.second.weight.T + energy.second.bias
            expected = -(F.gelu(outer) ** 2).sum(-1) if name == "ff2" else -(u * outer).sum(-1)
        assert torch.allclose(energy.energy(u), expected)


def test_gelu_slope_and_its_derivatives(generator):
    h = torch.randn(50, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(50, generator=generator, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(F.gelu(h).sum(), h)[0]
    assert torch.allclose(gelu_slope(v, h), v * slope, atol=1e-14)
    assert torch.autograd.gradcheck(gelu_slope, (v, h))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("past, length", [(0, 1), (0, 5), (4, 1), (3, 2), (1, 4)])
def test_attention_layouts_agree_with_the_explicit_mask(strict, past, length, generator):
    key = torch.randn(2, 3, past + length, 4, generator=generator, dtype=torch.float64)
    query = torch.randn(2, 3, length, 4, generator=generator, dtype=torch.float64)
    seen = causal_mask(length, past + length, strict, key.device)
    scores = (1.3 * query @ key.transpose(2, 3)).masked_fill(~seen, -1e300)
    expected = scores.softmax(3).masked_fill(~seen, 0) @ key
    for mask in (None, seen.expand(2, -1, -1, -1)):
        assert torch.allclose(attend(query, key, strict, 1.3, mask), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_an_empty_row_has_finite_gradients_even_in_anomaly_mode():
    """Trap 18: the first token of the strict mask, with and without padding."""
    model = random_model(mask="strict").train()
    ids, padding = random_ids(), torch.ones(2, 8, dtype=torch.long)
    padding[0, :3] = 0
    for attention_mask in (None, padding):
        with torch.autograd.detect_anomaly(check_nan=True):
            model(ids, attention_mask=attention_mask, labels=ids).loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("mask, exact_self", [("strict", False), ("inclusive", False), ("inclusive", True)])
def test_low_rank_is_full_rank_with_a_product(mask, exact_self, u):
    """Acceptance check 10: H = J^T = W_Q^T W_K."""
    low = random_attention(mask=mask, exact_self=exact_self, rank=2, learn_alpha=True, beta=0.8)
    full = random_attention(mask=mask, exact_self=exact_self, learn_alpha=True, beta=0.8)
    with torch.no_grad():
        full.H.copy_(low.query.transpose(1, 2) @ low.key)
        full.raw_alpha.copy_(low.raw_alpha)
    assert torch.allclose(low.gradient(*low.project(u)), full.gradient(*full.project(u)), atol=1e-12)
    assert torch.allclose(low.energy(*low.project(u)), full.energy(*full.project(u)), atol=1e-12)


def test_one_step_is_a_parallel_transformer_block_with_tied_matrices(generator):
    """Acceptance check 9: values are keys, the output matrix is eta W_Q^T, and FF1's activation is sigma sigma'."""
    model = random_model(energy="ff1", rank=6, num_hidden_layers=1)
    block = model.model.blocks[0]
    x = torch.randn(1, 7, 12, generator=generator, dtype=torch.float64)
    u = block.norm(x)
    eta, heads = block.rate.W[0], block.attention
    attention = torch.zeros_like(x)
    for h in range(2):
        query, key = u @ heads.query[h].T, u @ heads.key[h].T
        seen = F.scaled_dot_product_attention(query[:, 1:], key[:, :-1], key[:, :-1], is_causal=True, scale=1.0)
        attention[:, 1:] += seen @ (eta @ heads.query[h].T).T
    first = block.feed_forward.first
    h = first(u).detach().requires_grad_()
    slope = torch.autograd.grad(F.gelu(h).sum(), h)[0]
    feed_forward = 2 * block.feed_forward_scale * (F.gelu(h) * slope) @ (eta @ first.weight.T).T
    assert torch.allclose(block(x, Visible(), 0), x + attention + feed_forward, atol=1e-12)


def test_the_block_descends_the_energies_that_the_model_reports():
    """Attention and feed-forward energies with s_ff, at the state before each step."""
    model = random_model(energy="ff2w", eta="identity")
    ids = random_ids(1, 6)
    out = model(ids, output_energies=True, output_hidden_states=True)
    block, step = model.model.blocks[0], 1
    x = out.hidden_states[step][0]
    for a in range(6):
        u = block.norm(x).detach()
        own = u[a].clone().requires_grad_()
        tokens = torch.cat([u[:a], own[None], u[a + 1 :]])[None]
        attention = block.attention.energy(*block.attention.project(tokens))[0, a]
        feed_forward = block.feed_forward_scale * block.feed_forward.energy(tokens)[0, a]
        assert torch.allclose(out.attention_energy[0, step, a], attention)
        assert torch.allclose(out.feed_forward_energy[0, step, a], feed_forward.squeeze())
        gradient = torch.autograd.grad(attention + feed_forward.squeeze(), own)[0]
        assert torch.allclose(out.hidden_states[step + 1][0, a], x[a] - gradient)  # eta is the identity
        assert torch.allclose(out.gradient_norm[0, step, a], gradient.norm())
        assert torch.allclose(out.update_norm[0, step, a], gradient.norm())


@pytest.mark.parametrize("energy", FEED_FORWARD)
@pytest.mark.parametrize("options", [dict(), dict(rank=3), dict(mask="inclusive", beta=0.7, learn_alpha=True)])
def test_the_block_is_the_plain_one_with_its_gradients(energy, options, generator):
    """Closed forms and fused attention against torch.func.grad of the energy, head by head."""
    block = random_model(energy=energy, **options).model.blocks[0]
    x = torch.randn(2, 7, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    results = []
    for kind in (block, PlainEnergyBlock(block)):
        y = kind(x, Visible(), 0)
        inputs = [x, *(p for p in block.parameters() if p.requires_grad)]
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(ours, plain, atol=1e-9, rtol=1e-9)
