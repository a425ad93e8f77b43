"""The text-to-image network: text tokens beside the image's in each attention, under a neural field head."""

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from .embeddings import TimeEmbedding
from .layers import RMSNorm, run
from .neural_field import NeuralFieldHead
from .transformer import PixelTransformer, PixNerdOutput, TransformerBlock, check_shape, patch_embedding


class PixNerdTextTransformer2DModel(PixelTransformer):
    """Predicts the velocity of a noisy image from the features of a prompt, in pixel space.

    Beside the text it differs from the class-conditional network as the official one does: the MLP has four times the
    width, rotary positions grow with the image, norms are cast after their scale, and in the head the coordinate code
    is cosines, only the first generated matrix is normalised and there is no norm before the last layer.

    Args:
        sample_size: side of the images it is trained on, in pixels; the transformer sees images at this size.
        patch_size: side p of a patch, in pixels.
        in_channels: channels of an image.
        hidden_size: width d of the transformer.
        num_attention_heads: heads; `hidden_size / num_attention_heads` must be a multiple of four.
        num_layers: transformer blocks of the image.
        text_layers: transformer blocks of the text, before those of the image.
        text_dim: width of the text encoder's features.
        text_length: number of text tokens, padding included; all are attended.
        head_layers: neural field blocks R.
        head_channels: width d_x of the neural field.
        head_mlp_ratio: hidden width of a neural field block over `head_channels` (official code: 2, fixed).
        head_frequencies: frequencies an axis of the coordinate code (official code: 8, fixed).
    """

    @register_to_config
    def __init__(
        self,
        sample_size: int = 512,
        patch_size: int = 16,
        in_channels: int = 3,
        hidden_size: int = 1536,
        num_attention_heads: int = 24,
        num_layers: int = 16,
        text_layers: int = 4,
        text_dim: int = 2048,
        text_length: int = 128,
        head_layers: int = 2,
        head_channels: int = 64,
        head_mlp_ratio: int = 2,
        head_frequencies: int = 8,
    ) -> None:
        super().__init__()
        shape = dict(sample_size=sample_size, patch_size=patch_size, hidden_size=hidden_size, num_layers=num_layers)
        shape |= dict(in_channels=in_channels, num_attention_heads=num_attention_heads)
        check_shape(head_layers, **shape, text_dim=text_dim, text_length=text_length)
        if text_layers < 0:
            raise ValueError(f"text_layers: expected at least 0, got {text_layers}")
        self.patch_embed = patch_embedding(in_channels, patch_size, hidden_size)
        self.time_embed = TimeEmbedding(hidden_size)
        self.text_embed = nn.Linear(text_dim, hidden_size)
        self.text_norm = RMSNorm(hidden_size, scale_wide=True)
        self.text_positions = nn.Parameter(torch.randn(1, text_length, hidden_size))

        def block(text: bool) -> TransformerBlock:
            return TransformerBlock(hidden_size, num_attention_heads, 4 * hidden_size, text, scale_wide=True)

        self.text_blocks = nn.ModuleList(block(text=False) for _ in range(text_layers))
        self.blocks = nn.ModuleList(block(text=True) for _ in range(num_layers))
        self.head = NeuralFieldHead(
            hidden_size,
            in_channels,
            head_channels,
            head_layers,
            head_mlp_ratio,
            head_frequencies,
            code="cosine",
            normalize="first",
            output_norm=False,
            scale_wide=True,
        )
        self.gradient_checkpointing = False

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_size: tuple[int, int] | None = None,
        feature_layer: int | None = None,
        return_dict: bool = True,
    ) -> PixNerdOutput | tuple[Tensor, Tensor | None]:
        """Predict the velocity, or the clean image where the network was trained to.

        Args:
            hidden_states: noisy images x_t, (batch, channels, height, width).
            timestep: time t, (batch,); 0 is noise, 1 is data.
            encoder_hidden_states: text features, (batch, text_length, text_dim), padding included.
            encoder_size: (height, width) at which the transformer sees the images; `None`: their own. The neural field
                decodes its tokens to the images' size.
            feature_layer: number of the block, from 1, whose output is returned as well (REPA's is 6).

        Raises:
            ValueError: shapes that do not fit the patches or the text, or a `feature_layer` that is not there.
        """
        expected = (len(hidden_states), self.config.text_length, self.config.text_dim)
        if encoder_hidden_states.shape != expected:
            got = tuple(encoder_hidden_states.shape)
            raise ValueError(f"encoder_hidden_states: expected {expected}, padding included, got {got}")
        return self.predict(hidden_states, timestep, encoder_hidden_states, encoder_size, feature_layer, return_dict)

    def encode(
        self, images: Tensor, timestep: Tensor, text: Tensor, feature_layer: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The transformer alone: tokens, time embedding, condition of the blocks, and the features asked for.

        Returns:
            tokens (batch, patches, dim), time (batch, 1, dim), condition (batch, 1, dim), features or None.
        """
        h, angles = self.tokens(images)
        time = self.time_embed(timestep)[:, None]
        condition = F.silu(time)
        text = self.text_norm(self.text_embed(text)) + self.text_positions
        for block in self.text_blocks:
            text = run(block, text, condition, checkpointing=self.gradient_checkpointing)
        h, features = self.run_blocks(h, feature_layer, condition, angles, text)
        return h, time, condition, features

    def rotary_extent(self, rows: int, columns: int) -> tuple[float, float]:
        """Positions grow with the grid, the extents of the two axes exchanged (official code)."""
        return columns, rows


TEXT_PRESETS: dict[str, dict[str, int]] = {
    # ours: for 32 px on two CPU cores
    "S/8": dict(patch_size=8, hidden_size=192, num_attention_heads=3, num_layers=4, text_layers=1, head_channels=16),
    # official configuration
    "XXL/16": dict(patch_size=16, hidden_size=1536, num_attention_heads=24, num_layers=16, text_layers=4),
}
"""Sizes by name; `PixNerdTextTransformer2DModel(**TEXT_PRESETS["XXL/16"])` takes Qwen3-1.7B's features."""
