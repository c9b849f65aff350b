"""Wrong layers that show where sizes differ, or where the layer keeps the keys of earlier calls by itself."""

import torch
import torch.nn.functional as F
from torch import nn

n_embd = 32


class Head(nn.Module):
    """Of a width of its own; its scale is that of the whole embedding."""

    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5
        hidden = torch.ones_like(scores).triu(1).bool()
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x)


class Attention(nn.Module):
    """Its triangle begins at the first of all keys, not at those of earlier calls."""

    def __init__(self, dim, n_heads, max_seq_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.cache_k, self.cache_v = (torch.zeros(8, max_seq_len, dim) for _ in range(2))

    def forward(self, x, start_pos):
        (batch, count, _), end = x.shape, start_pos + x.shape[1]
        for cache, layer in ((self.cache_k, self.wk), (self.cache_v, self.wv)):
            cache[:batch, start_pos:end] = layer(x)
        q, k, v = (
            y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).to(x) for y in (self.wq(x), self.cache_k[:batch, :end], self.cache_v[:batch, :end])
        )
        keep = torch.ones(count, end).tril().bool()
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2))


EXPECTED = {"Head": "scale-sqrt-embed", "Attention": ("cache-position-not-advanced", "cache-mask-from-zero")}
