"""The inference rate eta: what multiplies the energy's gradient in each step (Section 2, Propositions 2.1 and 2.2).

`full` is what the paper trains and promises nothing. Descent is guaranteed, once the earlier tokens rest, by `identity`
and `pos_scalar` behind a norm without gain and `diag_pos` behind one with gain (Proposition 2.1), and without a norm by
`psd` and `psd_skew` too (Proposition 2.2).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATES = ("full", "identity", "pos_scalar", "diag_pos", "psd", "psd_skew", "dual")


class InferenceRate(nn.Module):
    """eta times a gradient.

    * full: any matrix W, official code; dual: one for attention and one for the feed-forward term
    * identity: I; pos_scalar: a^2 I; diag_pos: a^2 diag(gain of the block's norm)
    * psd: L L^T; psd_skew: L L^T + A - A^T

    The names of the parameters are those letters. W, V and A start as noise, W so in the official code; L at the
    identity and a at 1 (ours).

    Args:
        steps: number of matrices, one for each step (the paper's eta^(t)); 1 to share. Later steps use the last.
    """

    def __init__(self, kind: str, dim: int, steps: int = 1) -> None:
        super().__init__()
        self.kind, self.dim, self.steps = kind, dim, steps
        matrices = {"full": ["W"], "dual": ["W", "V"], "psd": ["L"], "psd_skew": ["L", "A"]}.get(kind, [])
        for name in matrices:
            self.register_parameter(name, nn.Parameter(torch.empty(steps, dim, dim)))
        if kind in ("pos_scalar", "diag_pos"):
            self.a = nn.Parameter(torch.empty(steps))

    def forward(self, attention: Tensor, feed_forward: Tensor, gain: Tensor | None, step: int) -> Tensor:
        """eta (attention + feed_forward), both (..., dim); `gain` of the block's norm, (dim,), for diag_pos."""
        step = min(step, self.steps - 1)
        if self.kind == "dual":
            return F.linear(attention, self.W[step]) + F.linear(feed_forward, self.V[step])
        v = attention + feed_forward
        if self.kind == "full":
            return F.linear(v, self.W[step])
        if self.kind == "identity":
            return v
        if self.kind == "pos_scalar":
            return self.a[step].square() * v
        if self.kind == "diag_pos":
            return self.a[step].square() * gain * v
        L = self.L[step]
        rate = F.linear(F.linear(v, L.T), L)
        if self.kind == "psd_skew":
            A = self.A[step]
            rate = rate + F.linear(v, A - A.T)
        return rate

    def matrix(self, gain: Tensor | None = None, step: int = 0) -> Tensor:
        """eta as a matrix, (dim, dim); of `dual` that of the attention."""
        like = next(self.parameters(), torch.empty(()))
        eye = torch.eye(self.dim, device=like.device, dtype=like.dtype)
        return self(eye, torch.zeros_like(eye), gain, step).T
