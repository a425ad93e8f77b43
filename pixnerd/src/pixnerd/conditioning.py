"""What the network is told of an image while it trains: its label, or its caption; and now and then nothing."""

import torch
from torch import Tensor

from .text_encoder import KeptPrompts, PromptReader


class Labels:
    """Class ids; what is dropped becomes no class."""

    def __init__(self, num_classes: int) -> None:
        self.no_class = num_classes

    def __call__(self, batch: dict, dropped: Tensor) -> Tensor:
        """Args: `batch["label"]` (batch,); dropped (batch,) bool, on the device. Returns (batch,)."""
        return torch.where(dropped, self.no_class, batch["label"].to(dropped.device, non_blocking=True))


class Captions:
    """Text features; what is dropped becomes the empty prompt."""

    def __init__(self, features: PromptReader | KeptPrompts) -> None:
        self.features = features

    def __call__(self, batch: dict, dropped: Tensor) -> Tensor:
        """Args: `batch["caption"]`, texts; dropped (batch,) bool. Returns (batch, length, dim), float32."""
        texts = ["" if gone else text for text, gone in zip(batch["caption"], dropped.tolist(), strict=True)]
        return self.features(texts).float()
