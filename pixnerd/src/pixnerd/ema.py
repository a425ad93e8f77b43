"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """ema ← decay · ema + (1 − decay) · w, in float32, starting from a copy of the first weights (official code).

    Works on plain and on sharded parameters: each process averages what it holds.

    Args:
        model: the model whose parameters are averaged.
        decay: 0.9999 in the paper.
        warmup: use min(decay, (1 + n) / (10 + n)) at update n, from 0; for short runs only, the paper has none.
        every: average at optimiser steps divisible by this.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999, *, warmup: bool = False, every: int = 1) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay: expected 0 <= decay < 1, got {decay}")
        if every < 1:
            raise ValueError(f"every: expected at least 1, got {every}")
        self.decay, self.warmup, self.every = decay, warmup, every
        self.model = model
        self.shadow = {name: p.detach().clone().float() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average in the weights after optimiser step `step`, counted from 1."""
        if step % self.every:
            return
        n = step // self.every - 1
        decay = min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay
        weights = [p.detach().to(s.dtype) for p, s in zip(self.model.parameters(), self._tensors(), strict=True)]
        torch._foreach_lerp_(self._tensors(), weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model carries the averaged weights."""
        kept = [p.detach().clone() for p in self.model.parameters()]
        self._fill(self._tensors())
        try:
            yield
        finally:
            self._fill(kept)

    def state_dict(self) -> dict[str, Tensor]:
        return self.shadow

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.shadow.items():
            tensor.copy_(state[name])

    def _tensors(self) -> list[Tensor]:
        return list(self.shadow.values())

    @torch.no_grad()
    def _fill(self, tensors: list[Tensor]) -> None:
        for p, tensor in zip(self.model.parameters(), tensors, strict=True):
            p.copy_(tensor)
