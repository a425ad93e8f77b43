"""The neural field with nothing saved, as the official code writes it: what tests and the benchmark compare with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pixnerd.layers import unpatchify
from pixnerd.neural_field import NeuralFieldHead


class PlainHead(nn.Module):
    """A `NeuralFieldHead`, with its parameters, computed by its equations one after the other.

    The coordinate code stands beside every pixel of every patch, and images are cut and put together by unfold and
    fold. The options `tile_size` and `gradient_checkpointing` do nothing here.
    """

    def __init__(self, head: NeuralFieldHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, images: Tensor, condition: Tensor, patch: tuple[int, int]) -> Tensor:
        """Args: images (batch, channels, height, width); condition (batch, patches, dim); patch (height, width)."""
        head, (batch, channels) = self.head, images.shape[:2]
        pixels = F.unfold(images, patch, stride=patch).transpose(1, 2)  # (batch, patches, channels * pixels)
        pixels = pixels.reshape(-1, channels, patch[0] * patch[1]).transpose(1, 2)  # (all patches, pixels, channels)
        code = head.code(*patch, head.frequencies, device=images.device, dtype=images.dtype)
        z = head.pixel_embed(torch.cat([pixels, code.repeat(len(pixels), 1, 1)], dim=-1))  # Eq. 12
        s = condition.flatten(0, 1)
        for block in head.blocks:
            w1, w2 = block.generator(s).chunk(2, dim=-1)  # Eq. 9
            w1 = F.normalize(w1.view(-1, block.channels, block.hidden), dim=-2)  # Eq. 10
            w2 = F.normalize(w2.view(-1, block.hidden, block.channels), dim=-2)
            z = z + torch.bmm(F.silu(torch.bmm(block.norm(z), w1)), w2)  # Eq. 11
        out = head.proj(head.norm(z)).transpose(1, 2).unflatten(0, (batch, -1))  # (batch, patches, channels, pixels)
        if torch.compiler.is_compiling():  # for a CPU, a compiled fold writes outside its memory (torch 2.13)
            return unpatchify(out, patch, images.shape[-2:])
        return F.fold(out.flatten(2).transpose(1, 2), images.shape[-2:], patch, stride=patch)
