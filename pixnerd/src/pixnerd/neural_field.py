"""The head of PixNerd: every token writes the weights of a small MLP that maps (coordinate, noisy pixel) to velocity.

Also the baselines that it is compared with: one linear layer a token, and the same with a scalar skip.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .embeddings import rotary_angles
from .layers import RMSNorm, at_least_float32, patchify, run, unpatchify


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


def cosine_code(height: int, width: int, frequencies: int = 8, *, device=None, dtype=torch.float32) -> Tensor:
    """Coordinate code of the text-to-image head: the cosines of a rotary table on 0..16 (official code).

    Returns:
        (height * width, frequencies²): pixels row-major; column and row alternate, from the highest frequency down.
    """
    return rotary_angles(height, width, 2 * frequencies**2, device=device, dtype=dtype).cos()


def sine_code(height: int, width: int, frequencies: int = 8, *, device=None, dtype=torch.float32) -> Tensor:
    """Cosines and sines of a rotary table on 0..16, the usual code and the paper's ablation of `dct_code`.

    The paper does not print its frequencies: these are those of the rotary table with as many numbers in all.

    Returns:
        (height * width, frequencies²): pixels row-major, cosines before sines.
    """
    angles = rotary_angles(height, width, frequencies**2, device=device, dtype=dtype)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


CODES: dict[str, Callable[..., Tensor]] = {"dct": dct_code, "cosine": cosine_code, "sine": sine_code}
NORMALIZE = {"both": (True, True), "first": (True, False), "none": (False, False)}
"""Which of the two generated matrices get columns of unit length."""


class NeuralFieldBlock(nn.Module):
    """One residual layer of the neural field, its two weight matrices written by a token (Eqs. 9–11).

    Args:
        condition_dim: width of the token.
        channels: width d_x of the field; `mlp_ratio` times that is its hidden width.
        normalize: a key of `NORMALIZE`.
        scale_wide: as in `RMSNorm`.
    """

    def __init__(
        self, condition_dim: int, channels: int, mlp_ratio: int, normalize: str = "both", scale_wide: bool = False
    ) -> None:
        super().__init__()
        if normalize not in NORMALIZE:
            raise ValueError(f"head_normalize: expected one of {', '.join(NORMALIZE)}, got {normalize!r}")
        self.channels, self.hidden = channels, channels * mlp_ratio
        self.normalized = NORMALIZE[normalize]
        self.generator = nn.Linear(condition_dim, 2 * channels * self.hidden)
        self.norm = RMSNorm(channels, scale_wide)

    def weights(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        """W1 (..., channels, hidden) and W2 (..., hidden, channels)."""
        w1, w2 = self.generator(condition).chunk(2, dim=-1)
        w1 = w1.unflatten(-1, (self.channels, self.hidden))
        w2 = w2.unflatten(-1, (self.hidden, self.channels))
        # Over up to 16k numbers a bfloat16 norm loses accuracy: normalise in float32, then cast.
        w1, w2 = (
            F.normalize(at_least_float32(w), dim=-2).to(w.dtype) if unit else w
            for w, unit in zip((w1, w2), self.normalized, strict=True)
        )
        return w1, w2

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Args: z (patches, pixels, channels); condition (patches, condition_dim)."""
        w1, w2 = self.weights(condition)
        return z + F.silu(self.norm(z) @ w1) @ w2


class NeuralFieldHead(nn.Module):
    """Noisy pixels and one condition a patch → predicted pixels.

    A pixel's output depends on that pixel, its place in the patch and the patch's condition, on nothing else. So the
    patches of all images are rows of one list, and can be computed in tiles of `tile_size` rows, to save memory.
    `gradient_checkpointing` computes each block, or each tile where there are tiles, again in the backward pass.

    Args:
        condition_dim: width of the transformer.
        in_channels: channels of the image.
        channels: width d_x of the field.
        layers: number of `NeuralFieldBlock`s.
        mlp_ratio: hidden width of a block over `channels`.
        frequencies: frequencies an axis of the coordinate code.
        code: coordinate code, a key of `CODES`.
        normalize: as in `NeuralFieldBlock`.
        output_norm: normalise before the last layer (the text-to-image head does not).
        pixel_input: feed the noisy pixel to the field; without it the field is a function of the place alone.
        scale_wide: as in `RMSNorm`.
    """

    def __init__(
        self,
        condition_dim: int,
        in_channels: int,
        channels: int,
        layers: int,
        mlp_ratio: int,
        frequencies: int,
        *,
        code: str = "dct",
        normalize: str = "both",
        output_norm: bool = True,
        pixel_input: bool = True,
        scale_wide: bool = False,
    ) -> None:
        super().__init__()
        if code not in CODES:
            raise ValueError(f"head_code: expected one of {', '.join(CODES)}, got {code!r}")
        self.frequencies, self.code = frequencies, CODES[code]
        self.pixel_channels = in_channels if pixel_input else 0
        self.pixel_embed = nn.Linear(self.pixel_channels + frequencies**2, channels)
        self.blocks = nn.ModuleList(
            NeuralFieldBlock(condition_dim, channels, mlp_ratio, normalize, scale_wide) for _ in range(layers)
        )
        self.norm = RMSNorm(channels, scale_wide) if output_norm else nn.Identity()
        self.proj = nn.Linear(channels, in_channels)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)
        self.tile_size: int | None = None
        self.gradient_checkpointing = False

    def forward(self, images: Tensor, condition: Tensor, patch: tuple[int, int]) -> Tensor:
        """Args: images (batch, channels, height, width); condition (batch, patches, dim); patch (height, width)."""
        patches = patchify(images, patch)  # (batch, patches, channels, pixels)
        pixels, rows = patches.flatten(0, 1).transpose(-1, -2), condition.flatten(0, 1)
        constant = self.constant(patch)
        if self.tile_size is None:
            out = self.field(pixels, rows, constant)
        else:
            tiles = zip(pixels.split(self.tile_size), rows.split(self.tile_size), strict=True)
            checkpointing = self.gradient_checkpointing
            out = torch.cat([run(self.field, *tile, constant, checkpointing=checkpointing) for tile in tiles])
        return unpatchify(out.transpose(-1, -2).unflatten(0, patches.shape[:2]), patch, images.shape[-2:])

    def field(self, pixels: Tensor, condition: Tensor, constant: Tensor) -> Tensor:
        """Args: pixels (patches, pixels, channels); condition (patches, dim); `constant` of this patch size."""
        z = self.embed(pixels, constant)
        for block in self.blocks:
            z = run(block, z, condition, checkpointing=self.gradient_checkpointing and self.tile_size is None)
        return self.proj(self.norm(z))

    def constant(self, patch: tuple[int, int]) -> Tensor:
        """The share of the coordinate code in the pixel embedding, with its bias, (pixels, d_x): the same for all."""
        weight = self.pixel_embed.weight
        code = self.code(*patch, self.frequencies, device=weight.device, dtype=at_least_float32(weight).dtype)
        return F.linear(code.to(weight.dtype), weight[:, self.pixel_channels :], self.pixel_embed.bias)

    def embed(self, pixels: Tensor, constant: Tensor) -> Tensor:
        """W [pixel; code] + b, (patches, pixels, d_x)."""
        n = self.pixel_channels
        return F.linear(pixels[..., :n], self.pixel_embed.weight[:, :n]) + constant


class LinearHead(nn.Module):
    """The baseline: adaptive LayerNorm and one linear layer from a token to the pixels of its patch, as in DiT.

    Args:
        condition_dim: width of the transformer.
        in_channels: channels of the image.
        patch_size: side of a patch.
        skip: add the noisy patch times one number that the token gives: a control for the path that a neural field
            has from the noisy pixel to its output.
    """

    def __init__(self, condition_dim: int, in_channels: int, patch_size: int, skip: bool = False) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.norm = nn.LayerNorm(condition_dim, elementwise_affine=False, eps=1e-6)
        self.adaln = nn.Linear(condition_dim, 2 * condition_dim)
        self.proj = nn.Linear(condition_dim, in_channels * patch_size**2)
        self.skip = nn.Linear(condition_dim, 1) if skip else None
        for layer in (self.adaln, self.proj, self.skip):
            if layer is not None:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor, tokens: Tensor, condition: Tensor, patch: tuple[int, int]) -> Tensor:
        """Args: images (batch, channels, height, width); tokens (batch, patches, dim); condition (batch, 1, dim)."""
        shift, scale = self.adaln(condition).chunk(2, dim=-1)
        tokens = self.norm(tokens) * (1 + scale) + shift
        out = self.proj(tokens).unflatten(-1, (self.in_channels, -1))  # (batch, patches, channels, pixels)
        if self.skip is not None:
            out = out + self.skip(tokens)[..., None] * patchify(images, patch)
        return unpatchify(out, patch, images.shape[-2:])
