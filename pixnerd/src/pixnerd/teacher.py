"""REPA's teacher: patch tokens of a frozen vision model, DINOv2 in the paper (needs the extra `repa`)."""

import torch
from torch import Tensor, nn

from .alignment import teacher_input
from .errors import first_line


class Teacher(nn.Module):
    """A `transformers` DINOv2 whose patch grid is made to equal the network's.

    Args:
        name: Hub id or folder (paper: `facebook/dinov2-base`).
        patch_size: the network's patch size in pixels.

    Raises:
        OSError: transformers is missing, or the model cannot be loaded.
    """

    def __init__(self, name: str, patch_size: int) -> None:
        super().__init__()
        try:
            from transformers import AutoModel
        except ImportError as error:
            raise OSError("teacher: needs transformers; pip install 'iclr26-pixnerd[repa]'") from error
        try:
            self.model = AutoModel.from_pretrained(name).eval().requires_grad_(False)
        except Exception as error:
            raise OSError(f"teacher: cannot load {name} ({first_line(error)})") from error
        self.patch_size, self.dim = patch_size, self.model.config.hidden_size

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Args: images in [0, 1], (batch, 3, height, width). Returns (batch, patches, dim), after the final norm."""
        inputs = teacher_input(images, self.patch_size, self.model.config.patch_size)
        return self.model(inputs).last_hidden_state[:, 1:]  # without the class token
