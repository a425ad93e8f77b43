"""The head in all its versions against the equations as they stand."""

import shutil

import pytest
import torch

from pixnerd.neural_field import NeuralFieldHead

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
