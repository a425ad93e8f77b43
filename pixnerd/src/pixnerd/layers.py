"""What both halves of the network are built from: the norm, patches, and running a block."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is float64 (norms, rotations and tables are never computed in bfloat16)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, in float32 (official code, eps 1e-6).

    Args:
        dim: channels.
        scale_wide: cast back after the scale, as the text-to-image network does, not before it.
    """

    def __init__(self, dim: int, scale_wide: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.scale_wide = scale_wide

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (normed * self.weight).to(x.dtype) if self.scale_wide else normed.to(x.dtype) * self.weight


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


def run(block: Callable[..., Tensor], *inputs: Tensor, checkpointing: bool) -> Tensor:
    """A block's output; with `checkpointing` it is computed again in the backward pass, to save memory."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False)
    return block(*inputs)
