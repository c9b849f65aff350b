"""Right code of q, k and v whose width comes from elsewhere: the judge's probes have other widths."""

import math

import torch
from torch import nn

d_k = d_v = 64
SCALE = d_k**-0.5
d_model, n_heads = 128, 2


class ScaledDotProductAttention(nn.Module):
    def forward(self, Q, K, V):
        return (Q @ K.transpose(-1, -2) / d_k**0.5).softmax(dim=-1) @ V


class OfItsConstructor(nn.Module):
    """Scaled dot-product attention."""

    def __init__(self, d_k, dropout=0.1):
        super().__init__()
        self.scale, self.dropout = 1 / math.sqrt(d_k), nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        scores = q @ k.transpose(-1, -2) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.dropout(scores.softmax(-1)) @ v


def attention(query, key, value, head_dim=64):
    return torch.softmax(query @ key.transpose(-2, -1) / head_dim**0.5, -1) @ value


def sdpa(q, k, v):
    return (q @ k.mT * SCALE).softmax(-1) @ v


def causal_attention(q, k, v, d_k):
    scores = q @ k.transpose(-2, -1) / math.sqrt(d_k)
    return scores.masked_fill(torch.ones_like(scores).triu(1 + k.size(-2) - q.size(-2)).bool(), -torch.inf).softmax(-1) @ v


class OfItsClass:
    """Scaled dot-product attention; `out` is where the result goes, no matrix."""

    d_k = 64

    def __call__(self, q, k, v, mask=None, out=None):
        scores = q @ k.mT / self.d_k**0.5
        weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        return torch.matmul(weights, v, out=out)


class MultiHeadAttention(nn.Module):
    """What its three inputs are called is what a tutorial calls them."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, d_k * n_heads, bias=False) for _ in range(3))
        self.fc = nn.Linear(n_heads * d_v, d_model, bias=False)

    def forward(self, input_Q, input_K, input_V):
        q, k, v = (f(x).view(x.size(0), -1, n_heads, d_k).transpose(1, 2)
                   for f, x in ((self.W_Q, input_Q), (self.W_K, input_K), (self.W_V, input_V)))  # fmt: skip
        context = ScaledDotProductAttention()(q, k, v)
        return self.fc(context.transpose(1, 2).reshape(input_Q.size(0), -1, n_heads * d_v))


RIGHT = ["ScaledDotProductAttention", "OfItsConstructor", "OfItsClass", "attention", "sdpa", "causal_attention", "MultiHeadAttention"]
TASK = {"OfItsConstructor": "sdpa", "OfItsClass": "sdpa", "causal_attention": "causal"}
