"""The head in all its versions against the equations as they stand."""

import shutil

import pytest
import torch

from pixnerd.embeddings import rotary_angles
from pixnerd.layers import RMSNorm, patchify
from pixnerd.neural_field import CODES, LinearHead, NeuralFieldHead

from .conftest import random_transformer
from .plain_head import PlainHead

PATCHES = 2 * 6  # of both images
EPSILON = {torch.float32: 1e-6, torch.float64: 1e-12}


def head_and_inputs(dtype=torch.float32) -> tuple[NeuralFieldHead, tuple]:
    """Two images of 2 x 3 patches, each of 4 x 8 pixels."""
    generator = torch.Generator().manual_seed(0)
    head = NeuralFieldHead(condition_dim=12, in_channels=3, channels=8, layers=2, mlp_ratio=2, frequencies=8)
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    images = torch.randn(2, 3, 8, 24, generator=generator, dtype=dtype)
    condition = torch.randn(2, PATCHES // 2, 12, generator=generator, dtype=dtype)
    return head.to(dtype), (images.requires_grad_(), condition.requires_grad_(), (4, 8))


def output_and_gradients(head, inputs: tuple) -> list[torch.Tensor]:
    """The output, and of a loss whose derivative is random the gradient of images, condition and parameters."""
    out = head(*inputs)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [*inputs[:2], *head.parameters()], direction)]


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Beside the largest entry."""
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def agree(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Outputs to the epsilon of their dtype; gradients, long sums in another order, to four times that."""
    limits = [EPSILON[expected[0].dtype]] + [4 * EPSILON[expected[0].dtype]] * (len(expected) - 1)
    return all(largest_difference(a, b) <= limit for a, b, limit in zip(found, expected, limits, strict=True))


@pytest.mark.parametrize("dtype", EPSILON)
def test_the_head_and_its_gradients_equal_the_plain_one(dtype):
    head, inputs = head_and_inputs(dtype)
    expected = output_and_gradients(PlainHead(head), inputs)
    assert len(expected) == 3 + len(list(head.parameters()))
    assert agree(output_and_gradients(head, inputs), expected)


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tile_size", [None, 1, 5, PATCHES, PATCHES + 1])
def test_tiles_and_checkpoints_change_neither_output_nor_gradients(tile_size, checkpointing, dtype):
    head, inputs = head_and_inputs(dtype)
    expected = output_and_gradients(head, inputs)
    head.tile_size, head.gradient_checkpointing = tile_size, checkpointing
    assert agree(output_and_gradients(head, inputs), expected)


@pytest.mark.parametrize(("tile_size", "times"), [(None, 2), (5, 2 * 3)])
def test_each_block_is_computed_once_more_for_the_backward_pass(tile_size, times):
    head, inputs = head_and_inputs()
    head.tile_size, head.gradient_checkpointing = tile_size, True
    calls = []
    head.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    output_and_gradients(head, inputs)
    assert len(calls) == times


def test_the_options_of_the_transformer_reach_its_head():
    transformer = random_transformer()
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 5])
    expected, rows = transformer(x, t, y).sample, []
    transformer.enable_head_tiling(5)
    transformer.enable_head_checkpointing()
    transformer.head.blocks[0].register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    out = transformer(x, t, y).sample
    assert rows == [5] * 6 + [2]
    assert agree([out], [expected])
    with pytest.raises(ValueError, match="tile_size: expected at least 1, got 0"):
        transformer.enable_head_tiling(0)


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here")
def test_a_compiled_head_gives_the_same_numbers():
    head, inputs = head_and_inputs()
    expected = output_and_gradients(head, inputs)
    head.compile()
    assert agree(output_and_gradients(head, inputs), expected)


def test_a_head_in_bfloat16_stays_close_to_float32():
    head, (images, condition, patch) = head_and_inputs()
    expected = head(images, condition, patch)
    found = head.bfloat16()(images.bfloat16(), condition.bfloat16(), patch)
    assert found.dtype == torch.bfloat16
    assert largest_difference(found, expected) < 4 * torch.finfo(torch.bfloat16).eps


# The paper's ablations


def test_each_option_of_the_transformer_changes_its_head():
    for name, code in CODES.items():
        assert random_transformer(head_code=name).head.code is code
    for name, unit in {"both": (True, True), "first": (True, False), "none": (False, False)}.items():
        block = random_transformer(head_normalize=name).head.blocks[0]
        found = [torch.allclose(w.norm(dim=-2), torch.ones(()), atol=1e-5) for w in block.weights(torch.randn(4, 24))]
        assert tuple(found) == unit
    assert isinstance(random_transformer().head.norm, RMSNorm)
    assert isinstance(random_transformer(head_output_norm=False).head.norm, torch.nn.Identity)


def test_without_the_noisy_pixel_the_field_is_one_of_the_place_alone():
    head, (images, condition, patch) = head_and_inputs()
    blind = NeuralFieldHead(12, 3, channels=8, layers=2, mlp_ratio=2, frequencies=8, pixel_input=False)
    with torch.no_grad():
        torch.nn.init.normal_(blind.proj.weight)
    assert blind.pixel_embed.weight.shape == (8, 64) and head.pixel_embed.weight.shape == (8, 67)
    assert torch.equal(blind(images, condition, patch), blind(images + 1, condition, patch))
    assert not torch.equal(head(images, condition, patch), head(images + 1, condition, patch))
    assert random_transformer(head_pixel_input=False).head.pixel_channels == 0


def test_the_sine_code_is_cosines_and_sines_of_a_rotary_table():
    code = CODES["sine"](3, 5, 4)
    angles = rotary_angles(3, 5, 16)
    assert code.shape == (15, 16)
    assert torch.equal(code, torch.cat([angles.cos(), angles.sin()], 1))


# The linear head


@pytest.mark.parametrize("skip", [False, True])
def test_a_linear_head_starts_at_zero_and_its_skip_adds_the_noisy_patch(skip):
    head = LinearHead(condition_dim=12, in_channels=3, patch_size=4, skip=skip)
    images, tokens, condition = torch.randn(2, 3, 8, 12), torch.randn(2, 6, 12), torch.randn(2, 1, 12)
    assert head(images, tokens, condition, (4, 4)).eq(0).all()
    with torch.no_grad():
        torch.nn.init.normal_(head.proj.weight)
    plain = head(images, tokens, condition, (4, 4))
    if not skip:
        assert torch.equal(plain, head(images + 1, tokens, condition, (4, 4)))
        return
    with torch.no_grad():
        head.skip.bias.fill_(1.0)
    assert torch.allclose(head(images, tokens, condition, (4, 4)), plain + images, atol=1e-6)
    with torch.no_grad():
        torch.nn.init.normal_(head.skip.weight)
    added = patchify(head(images, tokens, condition, (4, 4)) - plain, (4, 4))
    ratio = added / patchify(images, (4, 4))  # one number a token
    assert torch.allclose(ratio, ratio[:, :, :1, :1].expand_as(ratio), atol=1e-2, rtol=1e-3)
    assert ratio[0, 0, 0, 0] != ratio[0, 1, 0, 0]
