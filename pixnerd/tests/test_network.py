import pytest
import torch
import torch.nn.functional as F

from pixnerd import PRESETS, PixNerdTransformer2DModel, linear_head_baseline
from pixnerd.embeddings import rotary_angles, rotate
from pixnerd.layers import RMSNorm, patchify, unpatchify
from pixnerd.neural_field import NeuralFieldBlock, NeuralFieldHead, dct_code

from .conftest import random_transformer


def parameters(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("S/8", 4_704_547),
        ("B/16", 133_589_379),
        ("L/16", 452_113_795),
        ("XL/16", 700_589_219),
        ("XL/8", 699_925_667),
    ],
)
def test_presets_have_the_parameter_counts_of_the_readme(preset, count):
    with torch.device("meta"):
        assert parameters(PixNerdTransformer2DModel(**PRESETS[preset])) == count


def test_modules_of_l_and_xl_have_the_official_parameter_counts():
    with torch.device("meta"):
        large = PixNerdTransformer2DModel(**PRESETS["L/16"])
        extra_large = PixNerdTransformer2DModel(**PRESETS["XL/16"])
    assert parameters(large.blocks[0]) == 18_881_664
    assert parameters(large.head.blocks[0]) == 16_793_664
    assert parameters(large.head.pixel_embed) == 4_352
    assert parameters(large.head.norm) + parameters(large.head.proj) == 259
    assert parameters(large.patch_embed) == 787_456
    assert parameters(large.class_embed) == 1_025_024
    assert parameters(large.time_embed) == 1_312_768
    assert parameters(extra_large.blocks[0]) == 23_898_384
    assert parameters(extra_large.head.blocks[0]) == 18_890_816


def test_the_linear_head_baseline_of_l_is_24_blocks_and_dits_final_layer():
    with torch.device("meta"):
        count = parameters(PixNerdTransformer2DModel(**linear_head_baseline(PRESETS["L/16"])))
    final = (1024 * 768 + 768) + (1024 * 2048 + 2048)
    assert count == 24 * 18_881_664 + 787_456 + 1_025_024 + 1_312_768 + final


@pytest.mark.parametrize("head_type", ["neural_field", "linear"])
def test_the_output_is_zero_at_the_start_and_constant_with_the_bias(head_type):
    torch.manual_seed(0)
    network = PixNerdTransformer2DModel(
        sample_size=16, patch_size=4, hidden_size=24, num_attention_heads=2, num_layers=1, head_layers=1, num_classes=3,
        head_type=head_type,
    )  # fmt: skip
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 3])
    assert network(x, t, y).sample.abs().max() == 0
    bias = torch.tensor([0.5, -1.0, 2.0])
    network.head.proj.bias.data = bias if head_type == "neural_field" else bias.repeat_interleave(16)
    assert torch.equal(network(x, t, y).sample, bias.view(1, 3, 1, 1).expand(2, 3, 16, 16))


def test_the_modulation_does_not_start_at_zero():
    network = PixNerdTransformer2DModel(hidden_size=24, num_attention_heads=2, num_layers=1, head_layers=1)
    assert all(network.blocks[0].adaln.weight.flatten() != 0)


def test_initial_weights_are_the_official_ones():
    torch.manual_seed(0)
    network = PixNerdTransformer2DModel(sample_size=32, hidden_size=256, num_attention_heads=4, num_layers=1)
    xavier = (6 / (3 * 16**2 + 256)) ** 0.5
    assert network.patch_embed.weight.abs().max().item() == pytest.approx(xavier, rel=0.01)
    assert network.patch_embed.bias.abs().max() == 0
    for weight in (network.class_embed.weight, network.time_embed.mlp[0].weight, network.time_embed.mlp[2].weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)


def test_patches_are_channel_major_and_row_major_as_in_unfold():
    images = torch.randn(2, 3, 8, 12)
    expected = F.unfold(images, kernel_size=4, stride=4).transpose(1, 2)  # (batch, patches, 3 * 16)
    patches = patchify(images, (4, 4))
    assert torch.equal(patches.flatten(-2), expected)
    assert torch.equal(unpatchify(patches, (4, 4), (8, 12)), images)
    assert torch.equal(unpatchify(patchify(images, (2, 6)), (2, 6), (8, 12)), images)


def test_rms_norm_has_unit_mean_square_and_its_epsilon_is_1e_6():
    x = torch.randn(5, 16, dtype=torch.float64)
    assert torch.allclose(RMSNorm(16)(x).square().mean(-1), torch.ones(5, dtype=torch.float64), atol=1e-5)
    tiny = torch.full((1, 4), 1e-3, dtype=torch.float64)
    assert torch.allclose(RMSNorm(4)(tiny), torch.full((1, 4), 2**-0.5, dtype=torch.float64))


def test_bfloat16_norms_are_computed_in_float32():
    x = (torch.randn(4, 256) * 100).bfloat16()
    expected = (x.float() * x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()).bfloat16()
    assert torch.equal(RMSNorm(256).bfloat16()(x), expected)


# The coordinate code


def test_dct_code_closed_forms():
    code = dct_code(16, 16).view(16, 16, 8, 8)  # (row, column, a, b)
    kappa = torch.linspace(0, 8, 8)
    assert torch.equal(code[..., 0, 0], torch.ones(16, 16))
    assert torch.allclose(code[0, 0], 1 / (1 + kappa[:, None] * kappa))
    u, v = 5 / 15, 11 / 15  # a goes with the column, b with the row
    expected = torch.cos(torch.pi * kappa[3] * u) * torch.cos(torch.pi * kappa[6] * v) / (1 + kappa[3] * kappa[6])
    assert torch.allclose(code[11, 5, 3, 6], expected, atol=1e-6)


def test_dct_codes_of_two_patch_sizes_agree_where_positions_coincide():
    coarse, fine = dct_code(16, 16).view(16, 16, 64), dct_code(32, 32).view(32, 32, 64)
    assert torch.allclose(coarse[[0, 0, 15, 15], [0, 15, 0, 15]], fine[[0, 0, 31, 31], [0, 31, 0, 31]], atol=1e-5)
    assert torch.allclose(dct_code(3, 3).view(3, 3, 64)[1], dct_code(5, 3).view(5, 3, 64)[2], atol=1e-5)


# The neural field


def head_and_inputs():
    torch.manual_seed(1)
    head = NeuralFieldHead(condition_dim=12, in_channels=3, channels=8, layers=2, mlp_ratio=2, frequencies=8).double()
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return head, torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(2, 4, 12, dtype=torch.float64)


def plain_head(head: NeuralFieldHead, images, condition, p: int):
    """The equations as they stand, patch by patch."""
    out = torch.zeros_like(images)
    columns = images.shape[-1] // p
    for b in range(len(images)):
        for patch in range(condition.shape[1]):
            top, left = (patch // columns) * p, (patch % columns) * p
            pixels = images[b, :, top : top + p, left : left + p].reshape(3, -1).T  # (p², 3)
            code = dct_code(p, p, head.frequencies, dtype=images.dtype)
            z = torch.cat([pixels, code], dim=-1) @ head.pixel_embed.weight.T + head.pixel_embed.bias
            for block in head.blocks:
                raw = block.generator.weight @ condition[b, patch] + block.generator.bias
                d, h = block.channels, block.hidden
                w1, w2 = raw[: d * h].view(d, h), raw[d * h :].view(h, d)
                w1, w2 = w1 / w1.norm(dim=0), w2 / w2.norm(dim=0)
                normed = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * block.norm.weight
                hidden = normed @ w1
                z = z + hidden * torch.sigmoid(hidden) @ w2
            z = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * head.norm.weight
            out[b, :, top : top + p, left : left + p] = (z @ head.proj.weight.T + head.proj.bias).T.view(3, p, p)
    return out


def test_the_head_follows_the_equations():
    head, images, condition = head_and_inputs()
    assert torch.allclose(head(images, condition, (4, 4)), plain_head(head, images, condition, 4), atol=1e-12)


def test_the_split_pixel_embedding_equals_the_concatenated_one():
    head, images, _ = head_and_inputs()
    head, pixels = head.float(), patchify(images.float(), (4, 4)).transpose(-1, -2)
    code = dct_code(4, 4).expand(*pixels.shape[:2], -1, -1)
    together = head.pixel_embed(torch.cat([pixels, code], dim=-1))
    assert (head.embed(pixels, head.constant((4, 4))) - together).abs().max() <= 1e-6 * together.abs().max()


def test_every_column_of_the_generated_weights_has_unit_length():
    block = NeuralFieldBlock(condition_dim=12, channels=8, mlp_ratio=3)
    w1, w2 = block.weights(torch.randn(2, 5, 12))
    assert w1.shape == (2, 5, 8, 24) and w2.shape == (2, 5, 24, 8)
    for w in (w1, w2):
        assert torch.allclose(w.norm(dim=-2), torch.ones(()), atol=1e-6)


def test_bfloat16_weights_are_normalised_and_codes_computed_in_float32():
    torch.manual_seed(0)
    block, condition = NeuralFieldBlock(12, 64, 2).bfloat16(), torch.randn(1, 1, 12).bfloat16()
    raw = block.generator(condition).chunk(2, dim=-1)[0].unflatten(-1, (64, 128)).float()
    assert torch.equal(block.weights(condition)[0], (raw / raw.norm(dim=-2, keepdim=True)).bfloat16())
    head = NeuralFieldHead(12, in_channels=3, channels=8, layers=1, mlp_ratio=2, frequencies=8).bfloat16()
    weight, bias = head.pixel_embed.weight, head.pixel_embed.bias
    expected = F.linear(dct_code(16, 16).bfloat16(), weight[:, 3:], bias)
    assert torch.equal(head.embed(torch.zeros(1, 256, 3).bfloat16(), head.constant((16, 16)))[0], expected)


def test_generated_weights_of_zero_stay_finite():
    block = NeuralFieldBlock(condition_dim=4, channels=4, mlp_ratio=2)
    torch.nn.init.zeros_(block.generator.weight)
    torch.nn.init.zeros_(block.generator.bias)
    z = torch.randn(1, 2, 9, 4)
    assert torch.equal(block(z, torch.randn(1, 2, 4)), z)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_the_head_does_not_see_the_scale_of_the_generated_weights(factor):
    head, images, condition = head_and_inputs()
    before = head(images, condition, (4, 4))
    for block in head.blocks:
        block.generator.weight.data *= factor
        block.generator.bias.data *= factor
    assert torch.allclose(head(images, condition, (4, 4)), before, atol=1e-12)


def test_with_a_constant_generator_all_patches_are_the_same_function_of_pixel_and_place():
    head, images, condition = head_and_inputs()
    for block in head.blocks:
        torch.nn.init.zeros_(block.generator.weight)
    same = images[:, :, :4, :4].repeat(1, 1, 2, 2)  # the same pixels in each of the four patches
    out = head(same, condition, (4, 4))
    assert torch.allclose(out, out[:, :, :4, :4].repeat(1, 1, 2, 2), atol=1e-12)
    assert not torch.allclose(out[0], out[1])  # other pixels, other values


def test_a_pixel_changes_its_own_output_only():
    head, images, condition = head_and_inputs()
    jacobian = torch.autograd.functional.jacobian(lambda x: head(x[None], condition[:1], (4, 4))[0], images[0])
    across = jacobian.abs().amax(dim=(0, 3))  # (row, column, row', column') over channels
    own = torch.eye(64, dtype=torch.bool).view(8, 8, 8, 8)
    assert across[~own].max() == 0
    assert across[own].min() > 0


def test_permuted_patches_and_conditions_permute_the_output():
    head, images, condition = head_and_inputs()
    order = torch.tensor([2, 0, 3, 1])
    permuted = unpatchify(patchify(images, (4, 4))[:, order], (4, 4), (8, 8))
    expected = patchify(head(images, condition, (4, 4)), (4, 4))[:, order]
    out = patchify(head(permuted, condition[:, order], (4, 4)), (4, 4))
    assert torch.allclose(out, expected, atol=1e-12)


# The transformer


def test_attention_logits_depend_on_coordinate_differences_only():
    angles = rotary_angles(5, 5, 16, dtype=torch.float64)
    q, k = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    logits = (rotate(q.expand(25, -1), angles) @ rotate(k.expand(25, -1), angles).T).view(5, 5, 5, 5)
    assert torch.allclose(logits[0, 0, 2, 1], logits[1, 2, 3, 3])
    assert torch.allclose(logits[3, 4, 1, 1], logits[4, 3, 2, 0])
    assert not torch.allclose(logits[0, 0, 2, 1], logits[0, 0, 1, 2])


def test_rotary_tables_of_256_and_512_share_their_end_points():
    small, large = rotary_angles(16, 16, 64).view(16, 16, -1), rotary_angles(32, 32, 64).view(32, 32, -1)
    assert torch.allclose(small[[0, 0, 15, 15], [0, 15, 0, 15]], large[[0, 0, 31, 31], [0, 31, 0, 31]])
    assert torch.allclose(small[-1, -1], 16 * 10000 ** (-torch.arange(0, 64, 4) / 64).repeat_interleave(2))
    assert rotary_angles(1, 1, 8).abs().max() == 0


def test_the_time_enters_the_head_a_second_time():
    transformer = random_transformer()
    x, t, y = torch.randn(1, 3, 16, 16), torch.tensor([0.3]), torch.tensor([1])
    h, time, *_ = transformer.encode(x, t, y)
    with_time = transformer.head(x, F.silu(time + h), (4, 4))
    assert torch.equal(transformer(x, t, y).sample, with_time)
    assert not torch.allclose(with_time, transformer.head(x, F.silu(h), (4, 4)))


def test_the_linear_head_sees_the_condition_of_the_blocks():
    transformer = random_transformer(head_type="linear")
    x, t, y = torch.randn(1, 3, 16, 16), torch.tensor([0.3]), torch.tensor([1])
    h, _, condition, _ = transformer.encode(x, t, y)
    assert torch.equal(transformer(x, t, y).sample, transformer.head(x, h, condition, (4, 4)))


def test_features_are_the_output_of_the_numbered_block(transformer):
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 5])
    outputs = []
    handle = transformer.blocks[0].register_forward_hook(lambda module, args, out: outputs.append(out))
    features = transformer(x, t, y, feature_layer=1).features
    handle.remove()
    assert torch.equal(features, outputs[0])
    with pytest.raises(ValueError, match=r"feature_layer: expected 1\.\.2, got 3"):
        transformer(x, t, y, feature_layer=3)


def test_gradient_checkpointing_gives_the_same_gradients(transformer):
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 5])

    def gradients():
        transformer.zero_grad()
        transformer(x, t, y).sample.square().sum().backward()
        return [p.grad.clone() for p in transformer.parameters()]

    plain = gradients()
    transformer.enable_gradient_checkpointing()
    recomputed = []
    transformer.head.blocks[0].register_forward_pre_hook(lambda module, args: recomputed.append(1))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, gradients(), strict=True))
    assert len(recomputed) == 2


# Arbitrary resolution


def test_encoder_size_equal_to_the_image_changes_nothing(transformer):
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 5])
    assert torch.equal(transformer(x, t, y, encoder_size=(16, 16)).sample, transformer(x, t, y).sample)


@pytest.mark.parametrize("side", [8, 16, 32])
def test_a_constant_image_decodes_to_a_field_that_only_sampling_refines(transformer, side):
    t, y = torch.tensor([0.4]), torch.tensor([2])
    tokens = []
    handle = transformer.blocks[0].register_forward_hook(lambda module, args, out: tokens.append(out.shape[1]))
    out = transformer(torch.full((1, 3, side, side), 0.25), t, y, encoder_size=(16, 16)).sample
    base = transformer(torch.full((1, 3, 16, 16), 0.25), t, y).sample
    handle.remove()
    assert tokens == [16, 16]  # as many tokens at any size
    corners = [0, side // 4 - 1]  # of the first patch: same coordinates, same pixel, so same value
    assert torch.isfinite(out).all()
    assert torch.allclose(out[..., corners, :][..., corners], base[..., [0, 3], :][..., [0, 3]], atol=1e-5)


@pytest.mark.parametrize("side", [24, 32, 40])
def test_an_image_with_more_pixels_than_its_encoder_size_is_seen_at_the_nearest_ones(transformer, side):
    """Pixel i of the 16 that the transformer sees is pixel floor(i side / 16) of the image."""
    x, t, y = torch.randn(1, 3, side, side), torch.tensor([0.4]), torch.tensor([2])
    seen = []
    handle = transformer.patch_embed.register_forward_hook(lambda module, args, out: seen.append(out))
    transformer(x, t, y, encoder_size=(16, 16))
    chosen = [i * side // 16 for i in range(16)]
    transformer(x[..., chosen, :][..., chosen], t, y)
    handle.remove()
    assert torch.equal(seen[0], seen[1])


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 20}, "hidden_size: expected a multiple of 4 x num_attention_heads = 8"),
        ({"sample_size": 30}, "sample_size: expected a multiple of patch_size = 4, got 30"),
        ({"head_type": "quadratic"}, "head_type: expected"),
        ({"num_layers": 0}, "num_layers: expected at least 1, got 0"),
    ],
)
def test_impossible_networks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        random_transformer(**options)


def test_times_and_labels_are_one_an_image(transformer):
    x, t, y = torch.randn(2, 3, 16, 16), torch.rand(2), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"timestep: expected \(2,\), got \(1,\)"):
        transformer(x, t[:1], y)
    with pytest.raises(ValueError, match=r"class_labels: expected \(2,\), got \(1,\)"):
        transformer(x, t, y[:1])


def test_inputs_that_do_not_fit_are_refused(transformer):
    t, y = torch.rand(1), torch.tensor([0])
    with pytest.raises(ValueError, match="height: expected a multiple of the patch size 4, got 18"):
        transformer(torch.randn(1, 3, 18, 16), t, y)
    with pytest.raises(ValueError, match=r"hidden_states: expected \(batch, 3, height, width\), got \(1, 4, 16, 16\)"):
        transformer(torch.randn(1, 4, 16, 16), t, y)
    with pytest.raises(ValueError, match="height: expected a multiple of its 4 patches, got 18"):
        transformer(torch.randn(1, 3, 18, 16), t, y, encoder_size=(16, 16))
    with pytest.raises(ValueError, match="only a neural field decodes to another resolution"):
        random_transformer(head_type="linear")(torch.randn(1, 3, 32, 32), t, y, encoder_size=(16, 16))
