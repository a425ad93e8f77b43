"""What the network knows beside pixels: the time, and where a token is."""

import torch
from torch import Tensor, nn

from .layers import at_least_float32

TIME_FEATURES = 256
ROTARY_EXTENT = 16.0


def time_features(t: Tensor, dim: int = TIME_FEATURES, max_period: float = 10.0) -> Tensor:
    """Cosines, then sines, of the raw time at `dim / 2` frequencies (official code: the period is 10, t is not scaled).

    Args:
        t: time in [0, 1], (batch,).

    Returns:
        (batch, dim), float32 or float64.
    """
    t = at_least_float32(t)
    frequencies = max_period ** (-torch.arange(dim // 2, device=t.device, dtype=t.dtype) / (dim // 2))
    angles = t[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TimeEmbedding(nn.Module):
    """Time features through a two-layer perceptron: (batch,) → (batch, dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_FEATURES, dim), nn.SiLU(), nn.Linear(dim, dim))
        for layer in (self.mlp[0], self.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(time_features(t).to(self.mlp[0].weight.dtype))


def rotary_angles(
    height: int,
    width: int,
    head_dim: int,
    extent: tuple[float, float] = (ROTARY_EXTENT, ROTARY_EXTENT),
    *,
    device=None,
    dtype=torch.float32,
) -> Tensor:
    """Angles of the two-dimensional rotary embedding for a grid of `height` x `width` tokens.

    By default both axes span 0..16 whatever the grid (official code): a finer grid takes smaller steps. Pair 2m of a
    head turns with the column, pair 2m + 1 with the row, both at frequency 10000^(-4m / head_dim).

    Args:
        extent: last position of the rows and of the columns, end point included; the first is 0.

    Returns:
        (height * width, head_dim / 2), row-major over the grid.
    """
    options = {"device": device, "dtype": dtype}
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 4, **options) / head_dim)
    row = torch.linspace(0, extent[0], height, **options)[:, None, None] * frequencies  # (height, 1, head_dim / 4)
    column = torch.linspace(0, extent[1], width, **options)[None, :, None] * frequencies  # (1, width, head_dim / 4)
    angles = torch.stack(torch.broadcast_tensors(column, row), dim=-1)  # (height, width, head_dim / 4, 2)
    return angles.reshape(height * width, head_dim // 2)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn adjacent channel pairs: (a, b) → (a cos − b sin, a sin + b cos).

    Args:
        x: (..., tokens, head_dim).
        angles: (tokens, head_dim / 2).
    """
    a, b = at_least_float32(x).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
