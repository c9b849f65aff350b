"""Right layers whose form is found by trying: lazy layers, one key/value head, a causal GQA, turns from an offset."""

import torch
from torch import nn


def attend(q, k, v, hidden=None):
    scores = q @ k.mT / q.size(-1) ** 0.5
    return (scores if hidden is None else scores.masked_fill(hidden, float("-inf"))).softmax(-1) @ v


class LazyMultiHead(nn.Module):
    def __init__(self, num_hiddens, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for f, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values)))  # fmt: skip
        hidden = None if valid_lens is None else torch.arange(k.size(2)) >= valid_lens[:, None, None, None]
        self.attention = attend(q, k, v, hidden)
        return self.W_o(self.attention.transpose(1, 2).flatten(2))


class MultiQueryAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.query, self.output = heads, nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * (width // heads))

    def forward(self, x):
        q, (k, v) = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), self.key_value(x)[:, None].chunk(2, dim=-1)
        return self.output(attend(q, k, v).transpose(1, 2).flatten(2))


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.repeats, self.d = n_heads // n_kv_heads, dim // n_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.d, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        k, v = (y.repeat_interleave(self.repeats, 1) for y in (k, v))
        future = torch.arange(x.size(1)) > torch.arange(x.size(1))[:, None]
        return self.wo(attend(q, k, v, future).transpose(1, 2).flatten(2))


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_positions=64, base=10000.0):
        super().__init__()
        angles = torch.arange(max_positions)[:, None] * base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.register_buffer("angles", angles.repeat(1, 2), persistent=False)

    def forward(self, x, offset=0):
        angles, (a, b) = self.angles[offset : offset + x.size(-2)], x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


RIGHT = ["LazyMultiHead", "MultiQueryAttention", "GroupedQueryAttention", "RotaryEmbedding"]
CONVENTION = {"GroupedQueryAttention": "causal-unasked"}
