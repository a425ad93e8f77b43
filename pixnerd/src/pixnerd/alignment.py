"""Losses on the features inside the network: alignment with a teacher (REPA), and dispersion."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Projector(nn.Sequential):
    """Three layers with SiLU from the network's width to the teacher's; it has no moving average.

    Args:
        dim: width of the network.
        teacher_dim: width of the teacher's tokens.
        hidden: width between, `dim` unless given.
    """

    def __init__(self, dim: int, teacher_dim: int, hidden: int | None = None) -> None:
        hidden = hidden or dim
        super().__init__(
            nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, teacher_dim)
        )


def repa_loss(projected: Tensor, teacher: Tensor) -> Tensor:
    """Mean over tokens of 1 − cosine (REPA), of each sample.

    Args:
        projected: the network's tokens after the projector, (batch, tokens, teacher_dim).
        teacher: the teacher's patch tokens of the clean images, without gradient, same shape.

    Raises:
        ValueError: the token grids differ (the official code cuts ours in silence, which misaligns them).
    """
    if projected.shape != teacher.shape:
        raise ValueError(f"teacher: expected tokens of shape {tuple(projected.shape)}, got {tuple(teacher.shape)}")
    return (1 - F.cosine_similarity(projected, teacher, dim=-1)).mean(dim=-1)


def dispersive_loss(features: Tensor, temperature: float = 1.0) -> Tensor:
    """log(1e-6 + Σ_{i≠j} exp(−|f_i − f_j|² / τ) / B²) of mean-pooled features (official code: B², not B (B − 1)).

    Args:
        features: tokens, (batch, tokens, dim). The sum runs over the samples of this process only (official code).

    Returns:
        A scalar.
    """
    pooled = features.mean(dim=1)
    distances = (pooled[:, None] - pooled[None]).square().sum(-1)
    others = ~torch.eye(len(pooled), dtype=torch.bool, device=pooled.device)
    kernel = torch.exp(-distances / temperature) * others
    return torch.log(1e-6 + kernel.sum() / len(pooled) ** 2)


def teacher_input(images: Tensor, patch_size: int, teacher_patch: int = 14) -> Tensor:
    """What the teacher sees: ImageNet-normalised and resized so that its patch grid is the network's.

    Bicubic without antialias and without a clamp (official code).

    Args:
        images: clean images in [0, 1], (batch, 3, height, width).
        patch_size: the network's; `teacher_patch`: the teacher's, 14 for DINOv2.

    Returns:
        (batch, 3, teacher_patch · height / patch_size, teacher_patch · width / patch_size)
    """
    mean, std = (images.new_tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    size = [teacher_patch * side // patch_size for side in images.shape[-2:]]
    return F.interpolate((images - mean) / std, size, mode="bicubic", align_corners=False)
