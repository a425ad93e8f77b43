"""What both halves of the network are built from: the norm, and patches."""

import torch
from torch import Tensor, nn


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is float64 (norms, rotations and tables are never computed in bfloat16)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, in float32, cast back before the scale (official code, eps 1e-6)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return normed.to(x.dtype) * self.weight


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(batch, channels, height, width) → (batch, patches, channels, pixels of a patch), both row-major."""
    batch, channels, height, width = images.shape
    ph, pw = patch
    x = images.reshape(batch, channels, height // ph, ph, width // pw, pw)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels, ph * pw)


def unpatchify(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The inverse of `patchify` for images of `size` (height, width)."""
    (ph, pw), (height, width) = patch, size
    batch, _, channels, _ = patches.shape
    x = patches.reshape(batch, height // ph, width // pw, channels, ph, pw)
    return x.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)
