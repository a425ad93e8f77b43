"""Every option of train.py acts where its name says, and the paper's configurations are the paper's."""

import pytest
import torch
import yaml

from pixnerd import PixNerdPipeline
from pixnerd.conditioning import Labels
from pixnerd.data import load_images, to_float
from pixnerd.flow import draw, shift_time

from .runs import PROJECT, SMALL, call, options, train


class StandInTeacher(torch.nn.Module):
    """Random tokens of the right shape, and the images it was shown."""

    dim = 6
    shown: list[torch.Tensor] = []
    patches: list[int] = []

    def __init__(self, name: str, patch_size: int) -> None:
        super().__init__()
        self.patches.append(patch_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.shown.append(images)
        return torch.randn(len(images), 4, self.dim)


@pytest.fixture
def teacher(monkeypatch):
    monkeypatch.setattr(StandInTeacher, "shown", [])
    monkeypatch.setattr(StandInTeacher, "patches", [])
    monkeypatch.setattr(train, "Teacher", StandInTeacher)
    return StandInTeacher


@pytest.fixture
def gradients(monkeypatch) -> list[list[torch.Tensor | None]]:
    """Gradients of each optimiser step."""
    seen, step = [], torch.optim.AdamW.step

    def keep(self, *args, **kwargs):
        seen.append([None if p.grad is None else p.grad.clone() for g in self.param_groups for p in g["params"]])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", keep)
    return seen


@pytest.mark.parametrize("flip", [False, True])
def test_a_batch_is_flipped_dropped_shifted_and_given_noise(flip):
    config = train.TrainConfig(**SMALL, flip=flip, time="uniform", shift=3.0, seed=5, label_drop=0.2)
    image, label = torch.randint(0, 256, (400, 3, 2, 2), dtype=torch.uint8), torch.arange(400) % 3
    device, places = torch.device("cpu"), range(10, 410)
    x, y, t, noise = train.prepare(config, {"image": image, "label": label}, 7, places, device, Labels(3))
    chance = draw(5, 7, places, (3, 2, 2), device, "uniform")
    mirrored = (chance["flip"] < 0.5) & flip
    assert torch.equal(x, torch.where(mirrored.view(-1, 1, 1, 1), to_float(image).flip(-1), to_float(image)))
    assert torch.equal(y, torch.where(chance["drop"] < 0.2, 3, label))
    assert torch.equal(t, shift_time(chance["t"], 3.0))
    assert torch.equal(noise, chance["noise"])


@pytest.mark.parametrize(("kind", "warmup"), [("velocity", False), ("sample", True)])
def test_options_reach_what_they_name(data, tmp_path, monkeypatch, teacher, kind, warmup):
    seen = {}

    def spy(owner, name):
        original = getattr(owner, name)

        def inner(*args, **kwargs):
            seen[name] = args, kwargs
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, inner)

    spy(torch.optim, "AdamW")
    for name in ("EMA", "Objective", "StepSampler"):
        spy(train, name)
    features = dict(teacher="x", num_layers=2, feature_layer=2, repa_weight=0.3, dispersive_weight=0.2)
    optimiser = dict(lr=2e-3, betas=(0.8, 0.95), weight_decay=0.07)
    average = dict(ema_decay=0.97, ema_warmup=warmup, ema_every=2)
    more = features | optimiser | average | dict(loss_weight="snr", prediction_type=kind, seed=9, balanced=False)
    call(options(data, tmp_path / "out", steps=1, **more))
    scheduler = PixNerdPipeline.from_pretrained(tmp_path / "out").scheduler.config
    assert tuple(scheduler.guidance_interval) == (0.1, 1.0)
    assert teacher.patches == [8]  # the network's own
    assert teacher.shown[0].min() >= 0 and 0.9 < teacher.shown[0].max() <= 1
    assert seen["Objective"][1] == dict(
        prediction_type=kind, loss_weight="snr", feature_layer=2, repa_weight=0.3, dispersive_weight=0.2
    )
    assert seen["AdamW"][1] == optimiser
    assert seen["EMA"][0][1:] == (0.97,) and seen["EMA"][1] == {"warmup": warmup, "every": 2}
    dataset, _, _, seed, balanced, _ = seen["StepSampler"][0]
    assert (seed, balanced) == (9, False)
    assert len(dataset) == len(load_images(str(data), 16, "train"))


def test_all_parameters_are_trained_and_clip_bounds_the_gradient(data, tmp_path, teacher, gradients):
    for clip in (None, 1e-3):
        call(options(data, tmp_path / str(clip), steps=1, teacher="x", feature_layer=1, clip=clip))
    transformer = train.build_transformer(train.TrainConfig(**SMALL), Labels(3))
    expected = len(list(transformer.parameters())) + len(list(train.Projector(24, 6).parameters()))
    norms = [torch.stack([g.norm() for g in step if g is not None]).norm().item() for step in gradients]
    assert [len(step) for step in gradients] == [expected, expected]
    assert norms[0] > 1e-2 and norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_parts_of_a_batch_have_its_gradients_and_count_as_one_step(data, tmp_path, monkeypatch, gradients):
    updates, update = [], train.EMA.update
    monkeypatch.setattr(train.EMA, "update", lambda self, step: (updates.append(step), update(self, step)))
    for name, parts in (("whole", 1), ("parts", 4)):
        call(options(data, tmp_path / name, steps=2, gradient_accumulation=parts))
    assert updates == [1, 2, 1, 2] and len(gradients) == 4
    for whole, parts in zip(gradients[0], gradients[2], strict=True):
        assert (whole - parts).abs().max() <= 1e-4 * whole.abs().max().clamp(min=1e-6)


def test_options_of_the_head_reach_it():
    config = train.TrainConfig(**SMALL, head_tile_size=3, head_checkpointing=True)
    transformer = train.build_transformer(config, Labels(3))
    assert transformer.head.tile_size == 3 and transformer.head.gradient_checkpointing
    assert not transformer.gradient_checkpointing
    ablated = dict(head_code="sine", head_normalize="first", head_output_norm=False, head_pixel_input=False)
    found = train.build_transformer(train.TrainConfig(**SMALL, **ablated), Labels(3)).config
    assert {name: found[name] for name in ablated} == ablated
    with pytest.raises(ValueError, match="head_code: expected only with the neural field"):
        train.build_transformer(train.TrainConfig(**SMALL, head_code="sine", head_type="linear"), Labels(3))
    plain = train.build_transformer(train.TrainConfig(**SMALL), Labels(3))
    assert plain.head.tile_size is None and not plain.head.gradient_checkpointing
    linear = train.TrainConfig(**SMALL, head_type="linear_skip", head_tile_size=3)
    with pytest.raises(ValueError, match="tile_size: only a neural field has this option, this head is linear"):
        train.build_transformer(linear, Labels(3))


def test_another_seed_gives_other_weights(data, tmp_path):
    for seed in (0, 1):
        call(options(data, tmp_path / str(seed), steps=1, seed=seed, lr=1e-12))
    first, second = (PixNerdPipeline.from_pretrained(tmp_path / s).transformer.patch_embed.weight for s in "01")
    assert not torch.allclose(first, second, atol=1e-3)


def test_previews_show_the_average(data, tmp_path, monkeypatch):
    inside, applied = [], train.EMA.applied
    monkeypatch.setattr(train.EMA, "applied", lambda self: (inside.append(1), applied(self))[1])
    call(options(data, tmp_path / "out", steps=1, preview_every=1))
    assert inside == [1]


PAPER = dict(batch_size=256, lr=1e-4, betas=[0.9, 0.999], weight_decay=0.0, clip=None, label_drop=0.1, balanced=False)
PAPER |= dict(ema_decay=0.9999, ema_warmup=False, time="lognormal", shift=1.0, prediction_type="velocity", flip=False)
PAPER |= dict(teacher="facebook/dinov2-base", repa_weight=0.5, feature_layer=8, mixed_precision="bf16")


TEXT = PAPER | dict(preset="XXL/16", text_encoder="Qwen/Qwen3-1.7B", text_length=128, feature_layer=6, clip=1.0)
TEXT |= dict(sample_shift=3.0, betas=[0.9, 0.95])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t2i_256", TEXT | dict(resolution=256, steps=200_000, batch_size=1536, lr=2e-4, shift=2.0)),
        ("t2i_512", TEXT | dict(resolution=512, steps=80_000, batch_size=512, lr=1e-4, shift=4.0)),
        (
            "t2i_512_sft",
            TEXT | dict(resolution=512, steps=60_000, batch_size=384, lr=1e-5, shift=4.0, betas=[0.9, 0.999]),
        ),
        ("imagenet256_l", PAPER | dict(preset="L/16", resolution=256, steps=800_000)),
        ("imagenet256_xl", PAPER | dict(preset="XL/16", resolution=256, steps=800_000)),
        ("imagenet512_xl", PAPER | dict(preset="XL/16", resolution=512, steps=200_000)),
        ("cifar10", dict(batch_size=128, lr=1e-4, ema_decay=0.9999, ema_warmup=False, prediction_type="velocity")),
    ],
)
def test_configurations_hold_the_published_numbers(name, expected):
    config = yaml.safe_load((PROJECT / "configs" / f"{name}.yaml").read_text())
    assert {key: config[key] for key in expected} == expected
