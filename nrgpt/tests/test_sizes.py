import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nrgpt import MODELS, NRGPTConfig, NRGPTForCausalLM, preset
from nrgpt.sizes import count_parameters, forward_flops, match
from tests.conftest import SHAPE, random_ids

COUNTED = [dict(), dict(rank=5), dict(energy="ff1"), dict(energy="ff2"), dict(eta="dual"), dict(eta="psd")]
COUNTED += [dict(eta="psd_skew"), dict(eta="pos_scalar"), dict(block="parallel"), dict(block="sequential")]
COUNTED += [dict(block="sequential", share_blocks=False), dict(block="parallel", num_attention_heads=5)]


@pytest.mark.parametrize("options", COUNTED)
def test_flops_are_those_that_torch_counts(options):
    """With the inclusive mask: the strict one leaves out a row and a column."""
    config = NRGPTConfig(**(SHAPE | dict(mask="inclusive") | options))
    model, ids = NRGPTForCausalLM(config).eval(), random_ids(3, 10)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(ids, use_cache=False)
    assert counter.get_total_flops() == 3 * 10 * forward_flops(config, 10)


def test_a_low_rank_ff1_has_the_flops_of_the_recurrent_gpt():
    """Section 7, trap 12, and the ratio of FF2W that follows."""
    shape = dict(vocab_size=64, hidden_size=128, num_attention_heads=4, num_hidden_layers=6)
    gpt = forward_flops(preset("GPT_Rec_parallel", **shape), 128)
    assert forward_flops(preset("NRGPT_H_FF1", rank=32, **shape), 128) == gpt
    assert forward_flops(preset("NRGPT_H_FF2W", rank=32, **shape), 128) / gpt == pytest.approx(1.57, abs=0.02)


@pytest.mark.parametrize("size", [count_parameters, lambda config: forward_flops(config, 64)])
@pytest.mark.parametrize("name", MODELS)
def test_a_matched_baseline_is_as_near_as_its_width_allows(name, size):
    target = size(preset("NRGPT_H_FF2W", vocab_size=65, hidden_size=96, num_attention_heads=4, num_hidden_layers=4))
    start = preset(name, vocab_size=65, hidden_size=32, num_attention_heads=4, num_hidden_layers=4)
    found = match(start, size, target)
    assert found.hidden_size % 4 == 0 and found.intermediate_size == 4 * found.hidden_size
    for width in (found.hidden_size - 4, found.hidden_size + 4):
        other = NRGPTConfig(**(found.to_dict() | dict(hidden_size=width, intermediate_size=4 * width)))
        assert abs(size(other) - target) >= abs(size(found) - target)
