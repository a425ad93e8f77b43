"""The class-conditional network: a transformer over large pixel patches under a neural field head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from .embeddings import ROTARY_EXTENT, TimeEmbedding, rotary_angles, rotate
from .layers import RMSNorm, at_least_float32, patchify, run
from .neural_field import LinearHead, NeuralFieldHead


class Attention(nn.Module):
    """Self-attention with normalised queries and keys, and a two-dimensional rotary embedding where there are angles.

    Args:
        dim: width; `heads` divides it.
        text: attend to text tokens as well: their keys and values follow those of the image, not rotated.
        scale_wide: as in `RMSNorm`.
    """

    def __init__(self, dim: int, heads: int, text: bool = False, scale_wide: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.text_kv = nn.Linear(dim, 2 * dim, bias=False) if text else None
        self.q_norm = RMSNorm(dim // heads, scale_wide)
        self.k_norm = RMSNorm(dim // heads, scale_wide)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, angles: Tensor | None = None, text: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (batch, heads, tokens, dim)
        q, k = self.q_norm(q), self.k_norm(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        if text is not None:
            text_k, text_v = self.text_kv(text).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
            k, v = torch.cat([k, self.k_norm(text_k)], dim=2), torch.cat([v, text_v], dim=2)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        return self.proj(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """w2(SiLU(w1 x) ⊙ w3 x)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """Attention and SwiGLU, each shifted, scaled and gated by the condition.

    The modulation starts from PyTorch's default initialisation, not from zero: there is no adaLN-Zero here.
    """

    def __init__(self, dim: int, heads: int, mlp_hidden: int, text: bool = False, scale_wide: bool = False) -> None:
        super().__init__()
        self.norm1 = RMSNorm(dim, scale_wide)
        self.attn = Attention(dim, heads, text, scale_wide)
        self.norm2 = RMSNorm(dim, scale_wide)
        self.mlp = SwiGLU(dim, mlp_hidden)
        self.adaln = nn.Linear(dim, 6 * dim)

    def forward(self, h: Tensor, condition: Tensor, *context: Tensor) -> Tensor:
        """Args: h (batch, tokens, dim); condition (batch, 1, dim); `context`: angles (tokens, head_dim / 2) and text
        (batch, text tokens, dim), as far as the attention takes them."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(condition).chunk(6, dim=-1)
        h = h + gate1 * self.attn(self.norm1(h) * (1 + scale1) + shift1, *context)
        return h + gate2 * self.mlp(self.norm2(h) * (1 + scale2) + shift2)


@dataclass
class PixNerdOutput(BaseOutput):
    """`sample`: prediction, (batch, channels, height, width); `features`: tokens of the layer asked for, or None."""

    sample: Tensor
    features: Tensor | None = None


class PixelTransformer(ModelMixin, ConfigMixin):
    """What the class-conditional and the text-to-image network share; a subclass says how it encodes."""

    _supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock", "NeuralFieldBlock"]

    def predict(
        self,
        images: Tensor,
        timestep: Tensor,
        conditioning: Tensor,
        encoder_size: tuple[int, int] | None,
        feature_layer: int | None,
        return_dict: bool,
    ) -> PixNerdOutput | tuple[Tensor, Tensor | None]:
        """The forward pass: tokens of the image, resized where it has not the size of the encoder, then the head."""
        size = tuple(images.shape[-2:])
        encoder_size = tuple(encoder_size) if encoder_size is not None else size
        patch = self._decoder_patch(images, encoder_size)
        if timestep.shape != images.shape[:1]:
            raise ValueError(f"timestep: expected {tuple(images.shape[:1])}, got {tuple(timestep.shape)}")
        if feature_layer is not None and not 1 <= feature_layer <= len(self.blocks):
            raise ValueError(f"feature_layer: expected 1..{len(self.blocks)}, got {feature_layer}")

        seen = images
        if encoder_size != size:
            seen = F.interpolate(at_least_float32(images), encoder_size, mode="nearest").to(images.dtype)
        h, time, condition, features = self.encode(seen, timestep, conditioning, feature_layer)
        if isinstance(self.head, LinearHead):
            sample = self.head(images, h, condition, patch)
        else:
            sample = self.head(images, F.silu(time + h), patch)  # the time enters once more (official code)
        return PixNerdOutput(sample, features) if return_dict else (sample, features)

    def tokens(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Patch tokens, (batch, patches, dim), and their rotary angles, (patches, head_dim / 2)."""
        p = self.config.patch_size
        rows, columns = images.shape[-2] // p, images.shape[-1] // p
        angles = rotary_angles(
            rows,
            columns,
            self.config.hidden_size // self.config.num_attention_heads,
            self.rotary_extent(rows, columns),
            device=images.device,
            dtype=at_least_float32(images).dtype,
        )
        return self.patch_embed(patchify(images, (p, p)).flatten(-2)), angles

    def run_blocks(self, h: Tensor, feature_layer: int | None, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """All blocks of the image's tokens, and the output of block number `feature_layer`, from 1."""
        features = None
        for number, block in enumerate(self.blocks, start=1):
            h = run(block, h, *inputs, checkpointing=self.gradient_checkpointing)
            if number == feature_layer:
                features = h
        return h, features

    def enable_head_tiling(self, tile_size: int | None = 256) -> None:
        """Compute the neural field in tiles of so many patches, of all images together: less memory, the same numbers
        to rounding. None: all at once."""
        if tile_size is not None and tile_size < 1:
            raise ValueError(f"tile_size: expected at least 1, got {tile_size}")
        self._neural_field("tile_size").tile_size = tile_size

    def enable_head_checkpointing(self, enable: bool = True) -> None:
        """Compute the neural field's blocks again in the backward pass, or its tiles where there are tiles: those two
        together need least memory. `enable_gradient_checkpointing` is for the whole network."""
        self._neural_field("head_checkpointing").gradient_checkpointing = enable

    def _neural_field(self, option: str) -> NeuralFieldHead:
        if not isinstance(self.head, NeuralFieldHead):
            raise ValueError(f"{option}: only a neural field has this option, this head is linear")
        return self.head

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
        if isinstance(self.head, LinearHead) and patch != [p, p]:
            raise ValueError("encoder_size: only a neural field decodes to another resolution, this head is linear")
        return tuple(patch)


def patch_embedding(channels: int, patch_size: int, dim: int) -> nn.Linear:
    """From the numbers of a patch to a token."""
    layer = nn.Linear(channels * patch_size**2, dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def check_shape(head_layers: int, **options: int) -> None:
    """Refuse sizes that make no network: each at least 1, patches that tile the image, heads that can be rotated."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if head_layers < 0:
        raise ValueError(f"head_layers: expected at least 0, got {head_layers}")
    heads, p = options["num_attention_heads"], options["patch_size"]
    if options["hidden_size"] % (4 * heads):
        raise ValueError(
            f"hidden_size: expected a multiple of 4 x num_attention_heads = {4 * heads} "
            f"(rotary embedding on two axes), got {options['hidden_size']}"
        )
    if options["sample_size"] % p:
        raise ValueError(f"sample_size: expected a multiple of patch_size = {p}, got {options['sample_size']}")


class PixNerdTransformer2DModel(PixelTransformer):
    """Predicts the velocity of a noisy image (or the clean image: the scheduler's `prediction_type`) in pixel space.

    Args:
        sample_size: side of the images it is trained on, in pixels; other sizes are possible.
        patch_size: side p of a patch, in pixels.
        in_channels: channels of an image.
        hidden_size: width d of the transformer.
        num_attention_heads: heads; `hidden_size / num_attention_heads` must be a multiple of four.
        num_layers: transformer blocks M.
        head_type: `"neural_field"`; `"linear"` for the baseline, `"linear_skip"` for it with a scalar skip.
        head_layers: neural field blocks R (0 for the linear heads).
        head_channels: width d_x of the neural field.
        head_mlp_ratio: hidden width of a neural field block over `head_channels`.
        head_frequencies: frequencies an axis of the coordinate code.
        head_code: coordinate code, `"dct"` (paper), `"cosine"` or `"sine"`.
        head_normalize: generated weights with columns of unit length: `"both"` (paper), `"first"` or `"none"`.
        head_output_norm: normalise before the head's last layer (paper).
        head_pixel_input: feed the noisy pixel to the neural field (paper).
        num_classes: classes; label `num_classes` stands for no class.
    """

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
        head_code: str = "dct",
        head_normalize: str = "both",
        head_output_norm: bool = True,
        head_pixel_input: bool = True,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        shape = dict(sample_size=sample_size, patch_size=patch_size, hidden_size=hidden_size, num_layers=num_layers)
        shape |= dict(in_channels=in_channels, num_classes=num_classes, num_attention_heads=num_attention_heads)
        check_shape(head_layers, **shape)
        self.patch_embed = patch_embedding(in_channels, patch_size, hidden_size)
        self.time_embed = TimeEmbedding(hidden_size)
        self.class_embed = nn.Embedding(num_classes + 1, hidden_size)
        nn.init.normal_(self.class_embed.weight, std=0.02)
        mlp_hidden = int(2 / 3 * 4 * hidden_size)
        self.blocks = nn.ModuleList(
            TransformerBlock(hidden_size, num_attention_heads, mlp_hidden) for _ in range(num_layers)
        )
        if head_type == "neural_field":
            self.head = NeuralFieldHead(
                hidden_size,
                in_channels,
                head_channels,
                head_layers,
                head_mlp_ratio,
                head_frequencies,
                code=head_code,
                normalize=head_normalize,
                output_norm=head_output_norm,
                pixel_input=head_pixel_input,
            )
        elif head_type in ("linear", "linear_skip"):
            self.head = LinearHead(hidden_size, in_channels, patch_size, skip=head_type == "linear_skip")
        else:
            raise ValueError(f'head_type: expected "neural_field", "linear" or "linear_skip", got {head_type!r}')
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
        if class_labels.shape != hidden_states.shape[:1]:
            raise ValueError(
                f"class_labels: expected {tuple(hidden_states.shape[:1])}, got {tuple(class_labels.shape)}"
            )
        return self.predict(hidden_states, timestep, class_labels, encoder_size, feature_layer, return_dict)

    def encode(
        self, images: Tensor, timestep: Tensor, class_labels: Tensor, feature_layer: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The transformer alone: tokens, time embedding, condition of the blocks, and the features asked for.

        Returns:
            tokens (batch, patches, dim), time (batch, 1, dim), condition (batch, 1, dim), features or None.
        """
        h, angles = self.tokens(images)
        time = self.time_embed(timestep)[:, None]
        condition = F.silu(time + self.class_embed(class_labels)[:, None])
        h, features = self.run_blocks(h, feature_layer, condition, angles)
        return h, time, condition, features

    def rotary_extent(self, rows: int, columns: int) -> tuple[float, float]:
        """Positions span 0..16 on both axes of any grid (official code)."""
        return ROTARY_EXTENT, ROTARY_EXTENT


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


def linear_head_baseline(preset: dict[str, int], skip: bool = False) -> dict[str, int | str]:
    """The paper's baseline: a linear head, and a transformer block for each neural field block.

    Args:
        skip: with the scalar skip of `LinearHead`.
    """
    depth = preset["num_layers"] + preset["head_layers"]
    return preset | dict(head_type="linear_skip" if skip else "linear", num_layers=depth, head_layers=0)
