"""The class-conditional network: a transformer over large pixel patches under a neural field head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from .embeddings import TimeEmbedding, rotary_angles, rotate
from .layers import RMSNorm, at_least_float32, patchify
from .neural_field import LinearHead, NeuralFieldHead, call


class Attention(nn.Module):
    """Self-attention with normalised queries and keys and a two-dimensional rotary embedding."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = RMSNorm(dim // heads)
        self.k_norm = RMSNorm(dim // heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (batch, heads, tokens, dim)
        q, k = rotate(self.q_norm(q), angles), rotate(self.k_norm(k), angles)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        return self.proj(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """w2(SiLU(w1 x) ⊙ w3 x) with two thirds of four times the width (official code)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = int(2 / 3 * 4 * dim)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """Attention and SwiGLU, each shifted, scaled and gated by the condition.

    The modulation starts from PyTorch's default initialisation, not from zero: there is no adaLN-Zero here.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = RMSNorm(dim)
        self.mlp = SwiGLU(dim)
        self.adaln = nn.Linear(dim, 6 * dim)

    def forward(self, h: Tensor, condition: Tensor, angles: Tensor) -> Tensor:
        """Args: h (batch, tokens, dim); condition (batch, 1, dim); angles (tokens, head_dim / 2)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(condition).chunk(6, dim=-1)
        h = h + gate1 * self.attn(self.norm1(h) * (1 + scale1) + shift1, angles)
        return h + gate2 * self.mlp(self.norm2(h) * (1 + scale2) + shift2)


@dataclass
class PixNerdOutput(BaseOutput):
    """`sample`: prediction, (batch, channels, height, width); `features`: tokens of the layer asked for, or None."""

    sample: Tensor
    features: Tensor | None = None


class PixNerdTransformer2DModel(ModelMixin, ConfigMixin):
    """Predicts the velocity of a noisy image (or the clean image: the scheduler's `prediction_type`) in pixel space.

    Args:
        sample_size: side of the images it is trained on, in pixels; other sizes are possible.
        patch_size: side p of a patch, in pixels.
        in_channels: channels of an image.
        hidden_size: width d of the transformer.
        num_attention_heads: heads; `hidden_size / num_attention_heads` must be a multiple of four.
        num_layers: transformer blocks M.
        head_type: `"neural_field"`, or `"linear"` for the baseline.
        head_layers: neural field blocks R (0 for the linear head).
        head_channels: width d_x of the neural field.
        head_mlp_ratio: hidden width of a neural field block over `head_channels`.
        head_frequencies: frequencies an axis of the coordinate code.
        num_classes: classes; label `num_classes` stands for no class.
    """

    _supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock", "NeuralFieldBlock"]

    @register_to_config
    def __init__(
        self,
        sample_size: int = 256,
        patch_size: int = 16,
        in_channels: int = 3,
        hidden_size: int = 1152,
        num_attention_heads: int = 16,
        num_layers: int = 26,
        head_type: str = "neural_field",
        head_layers: int = 4,
        head_channels: int = 64,
        head_mlp_ratio: int = 2,
        head_frequencies: int = 8,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        positive = dict(sample_size=sample_size, patch_size=patch_size, hidden_size=hidden_size, num_layers=num_layers)
        positive |= dict(in_channels=in_channels, num_classes=num_classes, num_attention_heads=num_attention_heads)
        for name, value in positive.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if hidden_size % (4 * num_attention_heads):
            raise ValueError(
                f"hidden_size: expected a multiple of 4 x num_attention_heads = {4 * num_attention_heads} "
                f"(rotary embedding on two axes), got {hidden_size}"
            )
        if sample_size % patch_size:
            raise ValueError(f"sample_size: expected a multiple of patch_size = {patch_size}, got {sample_size}")

        self.patch_embed = nn.Linear(in_channels * patch_size**2, hidden_size)
        nn.init.xavier_uniform_(self.patch_embed.weight)
        nn.init.zeros_(self.patch_embed.bias)
        self.time_embed = TimeEmbedding(hidden_size)
        self.class_embed = nn.Embedding(num_classes + 1, hidden_size)
        nn.init.normal_(self.class_embed.weight, std=0.02)
        self.blocks = nn.ModuleList(TransformerBlock(hidden_size, num_attention_heads) for _ in range(num_layers))
        if head_type == "neural_field":
            self.head = NeuralFieldHead(
                hidden_size, in_channels, head_channels, head_layers, head_mlp_ratio, head_frequencies
            )
        elif head_type == "linear":
            self.head = LinearHead(hidden_size, in_channels, patch_size)
        else:
            raise ValueError(f'head_type: expected "neural_field" or "linear", got {head_type!r}')
        self.gradient_checkpointing = False

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        class_labels: Tensor,
        encoder_size: tuple[int, int] | None = None,
        feature_layer: int | None = None,
        return_dict: bool = True,
    ) -> PixNerdOutput | tuple[Tensor, Tensor | None]:
        """Predict the velocity, or the clean image where the network was trained to.

        Args:
            hidden_states: noisy images x_t, (batch, channels, height, width).
            timestep: time t, (batch,); 0 is noise, 1 is data.
            class_labels: class ids, (batch,); `num_classes` stands for no class.
            encoder_size: (height, width) at which the transformer sees the images. `None`: their own size, where a
                larger image has more tokens. A smaller one than the image's decodes the same number of tokens more
                finely: the field is evaluated at more pixels a patch (arbitrary-resolution decoding).
            feature_layer: number of the block, from 1, whose output is returned as well (REPA's is 8).

        Raises:
            ValueError: shapes that do not fit the patches, or a `feature_layer` that is not there.
        """
        size = tuple(hidden_states.shape[-2:])
        encoder_size = tuple(encoder_size) if encoder_size is not None else size
        patch = self._decoder_patch(hidden_states, encoder_size)
        for name, value in (("timestep", timestep), ("class_labels", class_labels)):
            if value.shape != hidden_states.shape[:1]:
                raise ValueError(f"{name}: expected {tuple(hidden_states.shape[:1])}, got {tuple(value.shape)}")
        if feature_layer is not None and not 1 <= feature_layer <= len(self.blocks):
            raise ValueError(f"feature_layer: expected 1..{len(self.blocks)}, got {feature_layer}")

        images = hidden_states
        if encoder_size != size:
            images = F.interpolate(at_least_float32(images), encoder_size, mode="nearest").to(images.dtype)
        h, time, condition, features = self.encode(images, timestep, class_labels, feature_layer)
        if self.config.head_type == "linear":
            sample = self.head(h, condition, patch, size)
        else:
            # the time enters once more (official code)
            sample = self.head(hidden_states, F.silu(time + h), patch, self._run)
        return PixNerdOutput(sample, features) if return_dict else (sample, features)

    def encode(
        self, images: Tensor, timestep: Tensor, class_labels: Tensor, feature_layer: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The transformer alone: tokens, time embedding, condition of the blocks, and the features asked for.

        Returns:
            tokens (batch, patches, dim), time (batch, 1, dim), condition (batch, 1, dim), features or None.
        """
        p = self.config.patch_size
        grid = (images.shape[-2] // p, images.shape[-1] // p)
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        angles = rotary_angles(*grid, head_dim, device=images.device, dtype=at_least_float32(images).dtype)

        h = self.patch_embed(patchify(images, (p, p)).flatten(-2))  # (batch, patches, dim)
        time = self.time_embed(timestep)[:, None]
        condition = F.silu(time + self.class_embed(class_labels)[:, None])
        features = None
        for number, block in enumerate(self.blocks, start=1):
            h = self._run(block, h, condition, angles)
            if number == feature_layer:
                features = h
        return h, time, condition, features

    def _run(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """A block, recomputed in the backward pass if gradient checkpointing is on."""
        checkpointing = self.gradient_checkpointing and torch.is_grad_enabled()
        return (self._gradient_checkpointing_func if checkpointing else call)(block, *inputs)

    def _decoder_patch(self, images: Tensor, encoder_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of a patch of the full image: as many patches as the transformer has tokens."""
        p, channels = self.config.patch_size, self.config.in_channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"hidden_states: expected (batch, {channels}, height, width), got {tuple(images.shape)}")
        patch = []
        own = tuple(images.shape[-2:]) == encoder_size
        for name, full, encoded in zip(("height", "width"), images.shape[-2:], encoder_size, strict=True):
            if encoded < p or encoded % p:
                name = name if own else f"encoder_size, {name}"
                raise ValueError(f"{name}: expected a multiple of the patch size {p}, got {encoded}")
            if full % (encoded // p):
                raise ValueError(f"{name}: expected a multiple of its {encoded // p} patches, got {full}")
            patch.append(full // (encoded // p))
        if self.config.head_type == "linear" and patch != [p, p]:
            raise ValueError("encoder_size: only a neural field decodes to another resolution, this head is linear")
        return tuple(patch)


PRESETS: dict[str, dict[str, int]] = {
    # ours: for 32 px on two CPU cores
    "S/8": dict(patch_size=8, hidden_size=192, num_attention_heads=3, num_layers=6, head_layers=2, head_channels=16),
    "S/4": dict(patch_size=4, hidden_size=192, num_attention_heads=3, num_layers=6, head_layers=2, head_channels=16),
    # inferred: no B is published; a budget of twelve layers, the last two of the neural field
    "B/16": dict(patch_size=16, hidden_size=768, num_attention_heads=12, num_layers=10, head_layers=2),
    # official configurations; for L the paper prints 458M, this one has 452M
    "L/16": dict(patch_size=16, hidden_size=1024, num_attention_heads=16, num_layers=22, head_layers=2),
    "XL/16": dict(patch_size=16, hidden_size=1152, num_attention_heads=16, num_layers=26, head_layers=4),
    # reported without a configuration: XL/16's blocks on patches of 8
    "XL/8": dict(patch_size=8, hidden_size=1152, num_attention_heads=16, num_layers=26, head_layers=4),
}
"""Sizes by name; `PixNerdTransformer2DModel(**PRESETS["XL/16"])`."""


def linear_head_baseline(preset: dict[str, int]) -> dict[str, int | str]:
    """The paper's baseline: a linear head, and a transformer block for each neural field block."""
    return preset | dict(head_type="linear", num_layers=preset["num_layers"] + preset["head_layers"], head_layers=0)
