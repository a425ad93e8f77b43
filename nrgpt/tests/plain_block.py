"""The energy block as its energy says: one head after the other, and gradients by torch.func.grad."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nrgpt.blocks import EnergyBlock, Visible


class PlainEnergyBlock(nn.Module):
    """Shares the parameters of an `EnergyBlock`; no cache, no padding, strict or inclusive without `exact_self`."""

    def __init__(self, block: EnergyBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, visible: Visible, step: int) -> Tensor:
        block = self.block
        u = block.norm(x)
        attention = torch.func.grad(lambda own: self.attention_energy(own, u).sum())(u)
        feed_forward = torch.func.grad(lambda own: block.feed_forward.energy(own).sum())(u)
        return x - block.rate(attention, block.feed_forward_scale * feed_forward, block.gain, step)

    def attention_energy(self, own: Tensor, others: Tensor) -> Tensor:
        """E_A of each token as a function of its own state, the others' held, (batch, length)."""
        attention, length = self.block.attention, own.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=own.device).tril(-int(attention.strict))
        energy = torch.zeros(own.shape[:2], dtype=own.dtype, device=own.device)
        for h in range(attention.heads):
            if attention.rank is None:
                scores = own @ (others @ attention.H[h].T).transpose(1, 2)
            else:
                scores = (own @ attention.query[h].T) @ (others @ attention.key[h].T).transpose(1, 2)
            scores = (attention.beta * scores).masked_fill(~seen, torch.finfo(own.dtype).min)
            head = -torch.logsumexp(scores, 2) / attention.beta
            if attention.raw_alpha is not None:
                head = F.softplus(attention.raw_alpha[h]) * head
            energy = energy + head.masked_fill(~seen.any(1), 0)
        return energy
