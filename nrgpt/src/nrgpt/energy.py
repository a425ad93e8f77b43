"""The energy of a token and its gradient in closed form: attention and feed-forward terms (Section 2 of the paper).

Throughout, u is the normalised state of the tokens (the paper's g), and the gradient is that of the energy of token A
with respect to u_A alone: the other tokens are constants. No autograd runs inside a forward pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASKS = ("strict", "inclusive")


class AttentionEnergy(nn.Module):
    """E_A = -(1/beta) sum_h alpha_h log sum_B exp(beta u_B . J_h u_A), over B < A (strict) or B <= A (inclusive).

    Its gradient is -sum_h alpha_h sum_B p_AB J_h^T u_B: keys are values, and the transposed query matrix is the output
    matrix. With the inclusive mask the key of A itself is held constant (as in the official code), unless
    `exact_self` adds the missing term -alpha_h p_AA J_h u_A.

    Args:
        dim: width d of a token.
        heads: number of heads h.
        rank: of J_h = W_K^T W_Q; None for one full matrix a head, the official code's, stored as H = J^T.
        beta: inverse temperature, a constant.
        learn_alpha: alpha_h is a learned positive number instead of 1.
        dropout: of the attention weights, and of the sum over heads.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        rank: int | None = None,
        mask: str = "strict",
        exact_self: bool = False,
        beta: float = 1.0,
        learn_alpha: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.rank, self.beta, self.dropout = dim, heads, rank, beta, dropout
        self.strict, self.exact_self = mask == "strict", exact_self
        if rank is None:
            self.H = nn.Parameter(torch.empty(heads, dim, dim))
        else:
            self.query = nn.Parameter(torch.empty(heads, rank, dim))
            self.key = nn.Parameter(torch.empty(heads, rank, dim))
        self.raw_alpha = nn.Parameter(torch.empty(heads)) if learn_alpha else None

    def alpha(self) -> Tensor | None:
        """Weight of each head, (heads,), or None where all are 1."""
        return None if self.raw_alpha is None else F.softplus(self.raw_alpha)

    def project(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of (batch, length, dim), each (batch, heads, length, rank); the full rank is dim."""
        if self.rank is None:
            query = u.unsqueeze(1).expand(-1, self.heads, -1, -1)
            return query, split_heads(F.linear(u, self.H.flatten(0, 1)), self.heads)
        both = F.linear(u, torch.cat([self.query, self.key]).flatten(0, 1))
        query, key = split_heads(both, 2 * self.heads).split(self.heads, dim=1)
        return query, key

    def gradient(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """dE_A/du_A, (batch, length, dim).

        Args:
            query: (batch, heads, length, rank).
            key: the same of all tokens so far, (batch, heads, past + length, rank).
            mask: which key a query sees, (batch or 1, 1, length, past + length); None: the causal order.
        """
        dropout = self.dropout if self.training else 0.0
        if self.exact_self and not self.strict:
            weights = self.weights(query, key, mask)
            own = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=key.device)
            own = weights.gather(3, own.view(1, 1, -1, 1).expand(*weights.shape[:2], -1, 1))  # p_AA
            seen = F.dropout(weights, dropout) @ key
        else:
            own, seen = None, attend(query, key, self.strict, self.beta, mask, dropout)
        alpha = self.alpha()
        if alpha is not None:
            seen, own = (None if part is None else part * alpha.view(-1, 1, 1) for part in (seen, own))
        if self.rank is None:
            gradient = -seen.sum(1)
            if own is not None:
                gradient = gradient - torch.einsum("bhno,bhnd,hde->bne", own, query, self.H)  # H^T u_A
        else:
            gradient = -F.linear(merge_heads(seen), self.query.flatten(0, 1).T)  # W_Q^T
            if own is not None:
                gradient = gradient - F.linear(merge_heads(own * query), self.key.flatten(0, 1).T)
        return F.dropout(gradient, dropout)

    def energy(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """E_A, (batch, length); 0 for a token that sees none. The only place that has 1 / beta."""
        scores, seen = self._scores(query, key, mask)
        energy = -torch.logsumexp(scores, 3) / self.beta
        alpha = self.alpha()
        if alpha is not None:
            energy = energy * alpha.view(-1, 1)
        return energy.masked_fill(~seen.any(3), 0).sum(1)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """p_AB, (batch, heads, length, past + length); a row of zeros for a token that sees none."""
        scores, seen = self._scores(query, key, mask)
        return scores.softmax(3).masked_fill(~seen, 0).to(query.dtype)

    def _scores(self, query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        seen = causal_mask(query.shape[2], key.shape[2], self.strict, query.device) if mask is None else mask
        scores = self.beta * (query @ key.transpose(2, 3))
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # a finite number, since a row without keys would be all -inf, whose softmax has no gradient
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min), seen


class FF1(nn.Module):
    """E_A = -|sigma(W u + b)|^2, sigma = GELU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(dim, hidden)

    def energy(self, u: Tensor) -> Tensor:
        return -F.gelu(self.first(u)).square().sum(-1)

    def gradient(self, u: Tensor) -> Tensor:
        h = self.first(u)
        return -2 * F.linear(gelu_slope(F.gelu(h), h), self.first.weight.T)


class FF2(nn.Module):
    """E_A = -|sigma(W_2 sigma(W_1 u + b_1) + b_2)|^2 (official code only)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, hidden)

    def energy(self, u: Tensor) -> Tensor:
        return -F.gelu(self.second(F.gelu(self.first(u)))).square().sum(-1)

    def gradient(self, u: Tensor) -> Tensor:
        h = self.first(u)
        h2 = self.second(F.gelu(h))
        inner = F.linear(gelu_slope(F.gelu(h2), h2), self.second.weight.T)
        return -2 * F.linear(gelu_slope(inner, h), self.first.weight.T)


class FF2W(nn.Module):
    """E_A = -u . (W_2 sigma(W_1 u + b_1) + b_2)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def energy(self, u: Tensor) -> Tensor:
        return -(u * self.second(F.gelu(self.first(u)))).sum(-1)

    def gradient(self, u: Tensor) -> Tensor:
        h = self.first(u)
        through = F.linear(gelu_slope(F.linear(u, self.second.weight.T), h), self.first.weight.T)
        return -self.second(F.gelu(h)) - through


FEED_FORWARD = {"ff1": FF1, "ff2": FF2, "ff2w": FF2W}


def gelu_slope(v: Tensor, h: Tensor) -> Tensor:
    """v * sigma'(h), elementwise, sigma' = Phi(h) + h phi(h) being the derivative of the exact GELU."""
    return _GELUSlope.apply(v, h)


class _GELUSlope(torch.autograd.Function):
    """One pass forward and few backward, where autograd would keep every intermediate of the formula."""

    @staticmethod
    def forward(v: Tensor, h: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward(v, h)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        v, h = ctx.saved_tensors
        square = h * h
        density = torch.exp(square * -0.5) * 0.3989422804014327  # phi(h), the standard normal
        return torch.ops.aten.gelu_backward(grad, h), grad * v * density * (2 - square)  # sigma'' = phi (2 - h^2)


def attend(
    query: Tensor, key: Tensor, strict: bool, scale: float, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """sum_B p_AB k_B with the keys as values, (batch, heads, length, rank); 0 for a token that sees none."""
    length, past = query.shape[2], key.shape[2] - query.shape[2]
    if mask is None and (past == 0 or length == 1):
        if not strict:
            causal = past == 0 and length > 1
            return F.scaled_dot_product_attention(query, key, key, dropout_p=dropout, is_causal=causal, scale=scale)
        key = key[:, :, :-1]  # B < A is B <= A with the keys one place on
        if past:
            return attend(query, key, False, scale, None, dropout)
        seen = attend(query[:, :, 1:], key, False, scale, None, dropout) if length > 1 else query[:, :, 1:]
        return F.pad(seen, (0, 0, 1, 0))
    if mask is None:
        mask = causal_mask(length, key.shape[2], strict, query.device)
    empty = ~mask.any(3, keepdim=True)
    seen = F.scaled_dot_product_attention(query, key, key, attn_mask=mask | empty, dropout_p=dropout, scale=scale)
    return seen.masked_fill(empty, 0)


def causal_mask(length: int, total: int, strict: bool, device: torch.device) -> Tensor:
    """Which of `total` keys the last `length` tokens see, (1, 1, length, total)."""
    seen = torch.ones(length, total, dtype=torch.bool, device=device)
    return seen.tril(total - length - int(strict))[None, None]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * rank) to (batch, heads, length, rank)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)
