"""The head of PixNerd: every token writes the weights of a small MLP that maps (coordinate, noisy pixel) to velocity.

Also the baseline that it is compared with: one linear layer a token.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import RMSNorm, at_least_float32, patchify, unpatchify


def call(module: nn.Module, *inputs: Tensor) -> Tensor:
    """Run a block as it is; gradient checkpointing passes another function of this form."""
    return module(*inputs)


def dct_code(height: int, width: int, frequencies: int = 8, *, device=None, dtype=torch.float32) -> Tensor:
    """Coordinate code of the pixels of a patch (Eq. 12 with the damping of the official code).

    PE_ab(u, v) = cos(π κ_a u) cos(π κ_b v) / (1 + κ_a κ_b), with u the column and v the row in [0, 1], end points
    included, and κ = linspace(0, 8, 8): not integers, and not the centres of a textbook DCT-II. More or fewer pixels
    on the same [0, 1] sample the same field more or less finely.

    Returns:
        (height * width, frequencies²): pixels row-major, a before b.
    """
    options = {"device": device, "dtype": dtype}
    kappa = torch.linspace(0, frequencies, frequencies, **options)
    column = torch.cos(torch.pi * torch.linspace(0, 1, width, **options)[:, None] * kappa)  # (width, a)
    row = torch.cos(torch.pi * torch.linspace(0, 1, height, **options)[:, None] * kappa)  # (height, b)
    damping = 1 + kappa[:, None] * kappa
    code = column[None, :, :, None] * row[:, None, None, :] / damping  # (height, width, a, b)
    return code.reshape(height * width, frequencies**2)


class NeuralFieldBlock(nn.Module):
    """One residual layer of the neural field, its two weight matrices written by a token (Eqs. 9–11)."""

    def __init__(self, condition_dim: int, channels: int, mlp_ratio: int) -> None:
        super().__init__()
        self.channels, self.hidden = channels, channels * mlp_ratio
        self.generator = nn.Linear(condition_dim, 2 * channels * self.hidden)
        self.norm = RMSNorm(channels)

    def weights(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        """W1 (..., channels, hidden) and W2 (..., hidden, channels), every column of unit length."""
        w1, w2 = self.generator(condition).chunk(2, dim=-1)
        w1 = w1.unflatten(-1, (self.channels, self.hidden))
        w2 = w2.unflatten(-1, (self.hidden, self.channels))
        # Over up to 16k numbers a bfloat16 norm loses accuracy: normalise in float32, then cast.
        return tuple(F.normalize(at_least_float32(w), dim=-2).to(w.dtype) for w in (w1, w2))

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Args: z (batch, patches, pixels, channels); condition (batch, patches, condition_dim)."""
        w1, w2 = self.weights(condition)
        return z + F.silu(self.norm(z) @ w1) @ w2


class NeuralFieldHead(nn.Module):
    """Noisy pixels and one condition a patch → predicted pixels.

    A pixel's output depends on that pixel, its place in the patch and the patch's condition, on nothing else.

    Args:
        condition_dim: width of the transformer.
        in_channels: channels of the image.
        channels: width d_x of the field.
        layers: number of `NeuralFieldBlock`s.
        mlp_ratio: hidden width of a block over `channels`.
        frequencies: frequencies an axis of `dct_code`.
    """

    def __init__(
        self, condition_dim: int, in_channels: int, channels: int, layers: int, mlp_ratio: int, frequencies: int
    ) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.pixel_embed = nn.Linear(in_channels + frequencies**2, channels)
        self.blocks = nn.ModuleList(NeuralFieldBlock(condition_dim, channels, mlp_ratio) for _ in range(layers))
        self.norm = RMSNorm(channels)
        self.proj = nn.Linear(channels, in_channels)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, images: Tensor, condition: Tensor, patch: tuple[int, int], run: Callable = call) -> Tensor:
        """Args: images (batch, channels, height, width); condition (batch, patches, dim); patch (height, width)."""
        pixels = patchify(images, patch).transpose(-1, -2)  # (batch, patches, pixels, channels)
        z = self.embed(pixels, patch)
        for block in self.blocks:
            z = run(block, z, condition)
        out = self.proj(self.norm(z))
        return unpatchify(out.transpose(-1, -2), patch, images.shape[-2:])

    def embed(self, pixels: Tensor, patch: tuple[int, int]) -> Tensor:
        """W [pixel; code] + b, where the code's share is the same for all patches and so is computed once."""
        weight, channels = self.pixel_embed.weight, pixels.shape[-1]
        code = dct_code(*patch, self.frequencies, device=pixels.device, dtype=at_least_float32(weight).dtype)
        constant = F.linear(code.to(weight.dtype), weight[:, channels:], self.pixel_embed.bias)  # (pixels, d_x)
        return F.linear(pixels, weight[:, :channels]) + constant


class LinearHead(nn.Module):
    """The baseline: adaptive LayerNorm and one linear layer from a token to the pixels of its patch, as in DiT."""

    def __init__(self, condition_dim: int, in_channels: int, patch_size: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.norm = nn.LayerNorm(condition_dim, elementwise_affine=False, eps=1e-6)
        self.adaln = nn.Linear(condition_dim, 2 * condition_dim)
        self.proj = nn.Linear(condition_dim, in_channels * patch_size**2)
        for layer in (self.adaln, self.proj):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, condition: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Args: tokens (batch, patches, dim); condition (batch, 1, dim)."""
        shift, scale = self.adaln(condition).chunk(2, dim=-1)
        out = self.proj(self.norm(tokens) * (1 + scale) + shift)
        return unpatchify(out.unflatten(-1, (self.in_channels, -1)), patch, size)
