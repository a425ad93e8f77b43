import math

import pytest
import torch
import torch.nn.functional as F

from pixnerd.alignment import IMAGENET_MEAN, IMAGENET_STD, Projector, dispersive_loss, repa_loss, teacher_input
from pixnerd.ema import EMA
from pixnerd.flow import (
    LOSS_WEIGHTS,
    draw,
    interpolate,
    lognormal_time,
    shift_time,
    velocity_from_sample,
    velocity_loss,
)
from pixnerd.objective import Objective
from pixnerd.teacher import Teacher

from .conftest import random_transformer


def batch(n: int = 4, size: int = 16):
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(n, 3, size, size, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, noise, torch.rand(n, generator=generator, dtype=torch.float64)


def test_the_true_velocity_leads_back_to_data_and_to_noise():
    x, noise, t = batch()
    x_t, v, t_ = interpolate(x, noise, t), x - noise, t.view(-1, 1, 1, 1)
    assert torch.allclose(x_t + (1 - t_) * v, x)
    assert torch.allclose(x_t - t_ * v, noise)
    assert torch.equal(interpolate(x, noise, torch.zeros(4).double()), noise)  # 0 is noise
    assert torch.equal(interpolate(x, noise, torch.ones(4).double()), x)


def test_time_shifts_compose_keep_the_ends_and_lead_towards_noise():
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    assert torch.allclose(shift_time(shift_time(t, 2.0), 3.5), shift_time(t, 7.0))
    shifted = shift_time(t, 4.0)
    assert shifted[0] == 0 and shifted[-1] == 1
    assert (shifted.diff() > 0).all()
    assert (shifted[1:-1] < t[1:-1]).all()


def test_lognormal_times_are_the_sigmoid_of_a_normal():
    assert lognormal_time(torch.zeros(1)).item() == 0.5
    assert lognormal_time(torch.tensor([math.log(3)]), shift=3.0).item() == pytest.approx(0.5)


def test_the_loss_is_zero_for_the_true_velocity_and_the_mean_square_otherwise():
    x, noise, t = batch()
    assert velocity_loss(x - noise, x, noise, t).abs().max() == 0
    assert torch.allclose(velocity_loss(x - noise + 0.5, x, noise, t), torch.full((4,), 0.25).double())


def test_an_x_prediction_is_measured_by_its_velocity():
    x, noise, t = batch()
    t = t.clamp(max=0.9)
    prediction = x + 0.1
    by_velocity = velocity_loss(velocity_from_sample(prediction, interpolate(x, noise, t), t), x, noise, t)
    assert torch.allclose(velocity_loss(prediction, x, noise, t, "sample"), by_velocity)
    near_data = torch.full((4,), 1 - 1e-9).double()
    assert velocity_loss(prediction, x, noise, near_data, "sample") == pytest.approx((0.1 / 0.05) ** 2)
    with pytest.raises(ValueError, match="prediction_type"):
        velocity_loss(prediction, x, noise, t, "noise")


@pytest.mark.parametrize(
    ("name", "t", "weight"),
    [("constant", 0.3, 1), ("inverse_sigma", 0.5, 4), ("snr", 0.75, 3), ("minsnr", 0.75, 5), ("maxsnr", 0.75, 3),
     ("minsnr", 0.9, 9), ("maxsnr", 0.9, 5)],
)  # fmt: skip
def test_loss_weights(name, t, weight):
    assert LOSS_WEIGHTS[name](torch.tensor([t])).item() == pytest.approx(weight, rel=1e-5)


def test_what_is_drawn_for_a_sample_depends_on_its_place_alone():
    device = torch.device("cpu")
    whole = draw(3, 7, range(6), (3, 4, 4), device)
    part = draw(3, 7, range(4, 6), (3, 4, 4), device)
    assert all(torch.equal(whole[name][4:], part[name]) for name in whole)
    assert not torch.equal(whole["noise"], draw(3, 8, range(6), (3, 4, 4), device)["noise"])
    assert not torch.equal(whole["noise"], draw(4, 7, range(6), (3, 4, 4), device)["noise"])
    with pytest.raises(ValueError, match='time: expected "lognormal" or "uniform"'):
        draw(0, 0, range(1), (1,), device, "cosine")


def test_draws_have_the_distributions_they_should():
    many = draw(0, 0, range(4000), (1, 2, 2), torch.device("cpu"))
    assert many["drop"].mean().item() == pytest.approx(0.5, abs=0.02)
    assert many["noise"].mean().item() == pytest.approx(0, abs=0.03)
    assert many["noise"].std().item() == pytest.approx(1, abs=0.03)
    normal = torch.logit(many["t"])
    assert normal.mean().item() == pytest.approx(0, abs=0.06)
    assert normal.std().item() == pytest.approx(1, abs=0.05)
    uniform = draw(0, 0, range(4000), (1, 2, 2), torch.device("cpu"), "uniform")["t"]
    assert uniform.var().item() == pytest.approx(1 / 12, abs=0.005)


# Losses on features


def test_alignment_is_one_minus_the_cosine():
    tokens = torch.randn(2, 5, 8)
    assert repa_loss(tokens, 3 * tokens) == pytest.approx(0, abs=1e-6)
    assert repa_loss(tokens, -tokens) == pytest.approx(2, abs=1e-6)
    with pytest.raises(ValueError, match=r"teacher: expected tokens of shape \(2, 5, 8\), got \(2, 4, 8\)"):
        repa_loss(tokens, tokens[:, :4])


def test_the_projector_has_three_layers():
    projector = Projector(24, 10)
    assert [layer.weight.shape for layer in projector if isinstance(layer, torch.nn.Linear)] == [
        (24, 24),
        (24, 24),
        (10, 24),
    ]


def test_the_dispersive_loss_of_equal_and_of_distant_features():
    equal = torch.ones(4, 3, 8)
    assert dispersive_loss(equal).item() == pytest.approx(math.log(12 / 16 + 1e-6))
    distant = torch.eye(4)[:, None].expand(4, 3, 4) * 1e3
    assert dispersive_loss(distant).item() == pytest.approx(math.log(1e-6), rel=1e-4)
    two = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]])
    assert dispersive_loss(two, temperature=2.0).item() == pytest.approx(math.log(2 * math.exp(-1) / 4 + 1e-6))


def test_the_teachers_patch_grid_is_the_networks():
    assert teacher_input(torch.rand(1, 3, 32, 48), patch_size=16).shape == (1, 3, 28, 42)
    assert teacher_input(torch.rand(1, 3, 8, 8), patch_size=4).shape == (1, 3, 28, 28)
    grey = teacher_input(torch.full((1, 3, 16, 16), 0.456), patch_size=16)
    assert grey[0, 1].abs().max() < 1e-6  # the green mean
    assert grey[0, 0] == pytest.approx((0.456 - 0.485) / 0.229, abs=1e-5)


def test_the_teachers_input_is_resized_by_plain_bicubic():
    image = torch.zeros(1, 3, 32, 32)
    image[..., 16, 16] = 1
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    options = dict(mode="bicubic", align_corners=False, antialias=False)
    assert torch.allclose(teacher_input(image, 16), F.interpolate((image - mean) / std, (28, 28), **options))


def test_the_teacher_gives_patch_tokens_without_the_class_token(tmp_path):
    transformers = pytest.importorskip("transformers")
    tiny = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    transformers.Dinov2Model(transformers.Dinov2Config(**tiny)).save_pretrained(tmp_path)
    teacher, images = Teacher(str(tmp_path), 16), torch.rand(2, 3, 32, 32)
    tokens = teacher.model(teacher_input(images, 16)).last_hidden_state
    assert torch.equal(teacher(images), tokens[:, 1:])


def test_the_objective_sums_its_parts_with_their_weights():
    torch.manual_seed(0)
    transformer = random_transformer()
    x, noise, t = (v.float() for v in batch())
    labels, teacher = torch.tensor([0, 1, 2, 5]), torch.randn(4, 16, 6)
    objective = Objective(
        transformer, Projector(24, 6), loss_weight="snr", feature_layer=2, repa_weight=0.5, dispersive_weight=0.25
    )
    losses = objective(x, labels, t, noise, teacher)
    parts = {name: value.item() for name, value in losses.items()}
    expected = parts["velocity"] + 0.5 * parts["repa"] + 0.25 * parts["dispersive"]
    assert parts["loss"] == pytest.approx(expected, rel=1e-6)
    error = transformer(interpolate(x, noise, t), t, labels).sample - (x - noise)
    weighted = (t / (1 - t)).view(-1, 1, 1, 1) * error.square()
    assert parts["velocity"] == pytest.approx(weighted.mean().item(), rel=1e-5)
    features = transformer(interpolate(x, noise, t), t, labels, feature_layer=2).features
    cosine = F.cosine_similarity(objective.projector(features), teacher, dim=-1)
    assert parts["repa"] == pytest.approx(1 - cosine.mean().item(), rel=1e-5)
    losses["loss"].backward()
    assert all(p.grad is not None for p in objective.parameters())
    with pytest.raises(ValueError, match="loss_weight: expected one of constant"):
        Objective(transformer, loss_weight="none")


# The moving average


def test_the_average_follows_its_closed_form():
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    ema = EMA(model, decay=0.9)
    for step in range(1, 6):
        model.weight.data.fill_(float(step))
        ema.update(step)
    expected = 0.9**5 * 2 + 0.1 * sum(0.9 ** (5 - k) * k for k in range(1, 6))
    assert ema.shadow["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_the_average_with_warm_up_and_with_an_interval():
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    warm, sparse = EMA(model, decay=0.9, warmup=True), EMA(model, decay=0.9, every=2)
    model.weight.data.fill_(1.0)
    for step in (1, 2):
        warm.update(step)
        sparse.update(step)
    assert warm.shadow["weight"].item() == pytest.approx(1 - (1 / 10) * (2 / 11), rel=1e-6)
    assert sparse.shadow["weight"].item() == pytest.approx(0.1, rel=1e-6)
    for wrong in ({"decay": 1.0}, {"every": 0}):
        with pytest.raises(ValueError, match="expected"):
            EMA(model, **wrong)


def test_the_model_carries_the_average_only_inside():
    model = torch.nn.Linear(2, 2)
    ema = EMA(model, decay=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.weight.add_(1)
    ema.update(1)
    with ema.applied():
        assert torch.allclose(model.weight, before["weight"] + 0.5)
    assert torch.equal(model.weight, before["weight"] + 1)


def test_the_average_of_bfloat16_weights_is_float32():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    model.weight.data.fill_(1.0)
    ema = EMA(model, decay=0.9999)
    model.weight.data.fill_(2.0)
    for step in range(1, 11):
        ema.update(step)
    assert ema.shadow["weight"].item() == pytest.approx(2 - 0.9999**10, rel=1e-6)
