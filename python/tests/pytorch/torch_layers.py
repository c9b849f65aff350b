"""The forms of attention of docs/layers.md as a person writes them in PyTorch, with the parameter names and biases of their
classes: V1 to V4, SelfAttention, SingleHeadAttention, MultiHeadAttention. The scores are a T x T matrix, masks a fill, dropout
a product with given factors. Not: qkv (test_torch_layers.py runs both on one state_dict).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def by_hand(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, fill: float, factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """out and weights (after dropout) of [B, H, T, d]; keep [B|1, H|1, T|1, T]."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, fill)
    weights = scores.softmax(-1)
    if factors is not None:
        weights = weights * factors.to(weights.dtype)
    return weights @ v, weights


class Form(nn.Module):
    """x [B, T, E] -> (y, weights [B, H, T, T]). `attention` does the middle: by_hand, or something that must equal it."""

    heads = 1
    fill = -1e20
    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.attention: Callable[..., Any] = by_hand

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def output(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, keep: Tensor | None = None, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.projected(x))
        if self.causal:
            past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, None]
            keep = past if keep is None else keep & past
        out, weights = self.attention(q, k, v, keep, self.fill, factors)
        return self.output(out.transpose(1, 2).flatten(2)), weights


class SelfAttentionV1(Form):
    """Three projections of width E."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query_proj(x), self.key_proj(x), self.value_proj(x)


class SelfAttentionV2(Form):
    """One matrix for all three."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dim, 3 * embed_dim)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.proj(x).chunk(3, -1)


class SelfAttentionV3(SelfAttentionV2):
    """V2 with a projection of the output."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__(embed_dim)
        self.output_proj = nn.Linear(embed_dim, embed_dim)

    def output(self, x: Tensor) -> Tensor:
        return self.output_proj(x)


class SelfAttentionV4(SelfAttentionV1):
    """V1 with a projection of the output."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__(embed_dim)
        self.output_proj = nn.Linear(embed_dim, embed_dim)

    def output(self, x: Tensor) -> Tensor:
        return self.output_proj(x)


class SelfAttention(Form):
    """Projections of a width d_k of their own."""

    def __init__(self, embed_dim: int, d_k: int) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(embed_dim, d_k) for _ in range(3))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.W_Q(x), self.W_K(x), self.W_V(x)


class SingleHeadAttention(Form):
    """Causal, without biases, masks by -inf."""

    fill, causal = -torch.inf, True

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.W_q(x), self.W_k(x), self.W_v(x)

    def output(self, x: Tensor) -> Tensor:
        return self.W_o(x)


class MultiHeadAttention(Form):
    """H heads of width E / H."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def output(self, x: Tensor) -> Tensor:
        return self.o_proj(x)
