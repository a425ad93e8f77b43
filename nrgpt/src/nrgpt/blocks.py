"""What is applied in a step: NRGPT's energy block, and the blocks of the GPTs it is compared with."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_nrgpt import NRGPTConfig
from .energy import FEED_FORWARD, AttentionEnergy, causal_mask, merge_heads, split_heads
from .inference_rate import InferenceRate


@dataclass
class Visible:
    """Which keys a step's queries see, and where earlier keys lie.

    Args:
        mask: (batch or 1, 1, length, past + length) for the block's own mask; None for the plain causal order.
        cache: holds the keys of earlier tokens, step by step.
    """

    mask: Tensor | None = None
    cache: object | None = None

    def with_past(self, key: Tensor, value: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return (key, value) if self.cache is None else self.cache.update(key, value, step)


class EnergyBlock(GradientCheckpointingLayer):
    """x_A <- x_A - eta dE_A/du_A, u = norm(x), E = E_attention + s_ff E_feed_forward.

    The derivative is with respect to u: the norm's own is left out on purpose (Proposition 2.1 makes up for it by eta).
    """

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__()
        kinds = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
        norm = kinds.get(config.norm)
        self.norm = norm(config.hidden_size, eps=config.layer_norm_eps) if norm else nn.Identity()
        self.learns_gain = config.norm_gain
        self.hold_gain()
        self.attention = AttentionEnergy(
            config.hidden_size,
            config.num_attention_heads,
            config.rank,
            config.mask,
            config.exact_self,
            config.beta,
            config.learn_alpha,
            config.dropout,
        )
        self.feed_forward = FEED_FORWARD[config.energy](config.hidden_size, config.intermediate_size)
        self.feed_forward_scale = nn.Parameter(torch.ones(1))
        self.rate = InferenceRate(
            config.eta, config.hidden_size, config.num_hidden_layers if config.eta_per_step else 1
        )

    def forward(self, x: Tensor, visible: Visible, step: int) -> Tensor:
        u = self.norm(x)
        query, key = self.attention.project(u)
        key, _ = visible.with_past(key, key[..., :0], step)  # keys are values: the cache holds them once
        return x - self.rate(*self._terms(u, query, key, visible.mask), self.gain, step)

    def gradient(self, u: Tensor) -> Tensor:
        """dE_A/du_A of each token, (batch, length, dim); the exact one, own key and all, is `exact_self`."""
        attention, feed_forward = self._terms(u, *self.attention.project(u), None)
        return attention + feed_forward

    def _terms(self, u: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        attention = self.attention.gradient(query, key, mask)
        return attention, self.feed_forward_scale * self.feed_forward.gradient(u)

    def energies(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """E_attention and s_ff E_feed_forward of each token, and the length of their gradient, each (batch, length)."""
        u = self.norm(x)
        query, key = self.attention.project(u)
        attention, feed_forward = self._terms(u, query, key, mask)
        return (
            self.attention.energy(query, key, mask),
            self.feed_forward_scale * self.feed_forward.energy(u),
            (attention + feed_forward).norm(dim=-1),
        )

    def remember(self, x: Tensor, visible: Visible, step: int) -> None:
        """Cache the keys that a token at rest has in `step`, for tokens to come that take more steps."""
        key = self.attention.project(self.norm(x))[1]
        visible.with_past(key, key[..., :0], step)

    def hold_gain(self) -> None:
        """The norm's gain is a parameter that counts but does not learn (official code), unless `norm_gain`."""
        if self.gain is not None:
            self.gain.requires_grad_(self.learns_gain)

    @property
    def gain(self) -> Tensor | None:
        """Of the norm, for eta = a^2 diag(gain)."""
        return getattr(self.norm, "weight", None)


class SelfAttention(nn.Module):
    """Heads of width d // h without biases, scaled by the root of it, and an output layer (official code)."""

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.dropout
        inner = config.hidden_size // self.heads * self.heads  # less than the width where it does not divide
        self.query_key_value = nn.Linear(config.hidden_size, 3 * inner, bias=False)
        self.output = nn.Linear(inner, config.hidden_size)

    def forward(self, u: Tensor, visible: Visible, step: int) -> Tensor:
        query, key, value = split_heads(self.query_key_value(u), 3 * self.heads).split(self.heads, dim=1)
        key, value = visible.with_past(key, value, step)
        length, past = query.shape[2], key.shape[2] - query.shape[2]
        mask = visible.mask
        if mask is None and past and length > 1:
            mask = causal_mask(length, key.shape[2], False, key.device)
        dropout = self.dropout if self.training else 0.0
        causal = mask is None and length > 1
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return F.dropout(self.output(merge_heads(seen)), dropout)


class FeedForward(nn.Module):
    """Two layers with ReLU (official code) or GELU between them."""

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__()
        self.first = nn.Linear(config.hidden_size, config.intermediate_size)
        self.second = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = {"relu": F.relu, "gelu": F.gelu}[config.activation]
        self.dropout = config.dropout

    def forward(self, u: Tensor) -> Tensor:
        return F.dropout(self.second(self.activation(self.first(u))), self.dropout, self.training)


class GPTBlock(GradientCheckpointingLayer):
    """Attention and feed-forward layers, each behind its norm: one after the other, or side by side (`parallel`)."""

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__()
        self.parallel = config.block == "parallel"
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, visible: Visible, step: int) -> Tensor:
        seen = self.attention(self.norm1(x), visible, step)
        if self.parallel:
            return x + seen + self.feed_forward(self.norm2(x))
        x = x + seen
        return x + self.feed_forward(self.norm2(x))
