"""Flow matching: the straight path from noise (t = 0) to data (t = 1), its times, its weights and its loss."""

import hashlib

import torch
from torch import Tensor

T_EPS = 0.05
"""Smallest 1 − t by which an x-prediction is divided on its way to a velocity."""


def interpolate(x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """x_t = t x + (1 − t) ε (Eq. 1). Args: x, noise (batch, ...); t (batch,)."""
    t = _like(t, x)
    return t * x + (1 - t) * noise


def shift_time(t: Tensor, shift: float) -> Tensor:
    """t / (t + (1 − t) shift): a shift above 1 moves times towards noise."""
    return t / (t + (1 - t) * shift)


def lognormal_time(normal: Tensor, shift: float = 1.0) -> Tensor:
    """Times of standard normal draws: their sigmoid (logit-normal, "lognorm" in the official code), then the shift."""
    return shift_time(normal.sigmoid(), shift)


LOSS_WEIGHTS = {
    # σ = 1 − t and α = t. "minsnr" and "maxsnr" are the reverse of the usual names (official code).
    "constant": lambda t: torch.ones_like(t),
    "inverse_sigma": lambda t: 1 / (1 - t).square(),
    "snr": lambda t: t / (1 - t),
    "minsnr": lambda t: (t / (1 - t)).clamp(min=5.0),
    "maxsnr": lambda t: (t / (1 - t)).clamp(max=5.0),
}
"""Weight of a sample by its (shifted) time; the weighted mean is not renormalised (official code)."""


def velocity_from_sample(sample: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    """Velocity of a predicted clean image: (x̂ − x_t) / max(1 − t, 0.05), as JiT bounds it in its loss."""
    return (sample - x_t) / (1 - _like(t, x_t)).clamp(min=T_EPS)


def velocity_loss(prediction: Tensor, x: Tensor, noise: Tensor, t: Tensor, prediction_type: str = "velocity") -> Tensor:
    """Flow-matching loss of each sample (Eq. 3).

    Args:
        prediction: the network's answer to x_t, (batch, channels, height, width).
        x: clean images in [-1, 1].
        noise: standard normal, like `x`.
        t: time, (batch,).
        prediction_type: `"velocity"`, or `"sample"` for an x-prediction measured by its velocity, as in JiT.

    Returns:
        Mean squared error, (batch,).
    """
    if prediction_type == "sample":
        x_t = interpolate(x, noise, t)
        error = velocity_from_sample(prediction, x_t, t) - velocity_from_sample(x, x_t, t)
    elif prediction_type == "velocity":
        error = prediction - (x - noise)  # Eq. 2
    else:
        raise ValueError(f'prediction_type: expected "velocity" or "sample", got {prediction_type!r}')
    return error.square().mean(dim=(1, 2, 3))


def sample_generator(seed: int, step: int, place: int, device: torch.device) -> torch.Generator:
    """A generator of its own for the sample at `place` of the global batch of `step`, on any number of processes."""
    digest = hashlib.blake2b(f"{seed}/{step}/{place}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))


def draw(
    seed: int, step: int, places: range, shape: tuple[int, ...], device: torch.device, time: str = "lognormal"
) -> dict[str, Tensor]:
    """What chance decides for each sample of a step, in the official order: label drop, time, noise; then the flip.

    Args:
        places: places of these samples in the global batch.
        shape: (channels, height, width).
        time: `"lognormal"` or `"uniform"`.

    Returns:
        `drop` and `flip`, uniform in [0, 1), to be compared with a rate, (batch,); `t`, unshifted (batch,); `noise`,
        standard normal (batch, *shape).
    """
    if time not in ("lognormal", "uniform"):
        raise ValueError(f'time: expected "lognormal" or "uniform", got {time!r}')
    rows = []
    for place in places:
        g = {"generator": sample_generator(seed, step, place, device), "device": device}
        drop = torch.rand((), **g)
        t = lognormal_time(torch.randn((), **g)) if time == "lognormal" else torch.rand((), **g)
        rows.append({"drop": drop, "t": t, "noise": torch.randn(shape, **g), "flip": torch.rand((), **g)})
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _like(t: Tensor, x: Tensor) -> Tensor:
    return t.view(-1, *[1] * (x.ndim - 1))
