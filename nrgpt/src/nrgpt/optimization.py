"""Optimiser groups and learning rates of the two official training loops."""

import math

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float, decay: str = "matrices") -> list[dict]:
    """Groups of what is trained, for AdamW.

    Args:
        decay: matrices: tensors of two or more dimensions, embeddings included, as for the official language models;
            all: every tensor, as for ListOps.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if decay == "all":
        return [{"params": trained, "weight_decay": weight_decay}]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def learning_rate(
    step: int, lr: float, min_lr: float, decay_steps: int, warmup: int = 0, schedule: str = "exponential"
) -> float:
    """Learning rate of step `step`, counted from 0.

    Warm-up is linear, lr (step + 1) / (warmup + 1). Then r goes from 0 to 1 at `decay_steps`: exponential is
    lr^(1 - r) min_lr^r, cosine min_lr + (lr - min_lr) (1 + cos(pi r)) / 2; both stay at min_lr. constant stays at lr.
    The official ListOps loop is the exponential without warm-up, up to its last step.
    """
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return lr
    r = min((step - warmup) / max(decay_steps - warmup, 1), 1.0)
    if schedule == "exponential":
        return lr ** (1 - r) * min_lr**r
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * r)) / 2
