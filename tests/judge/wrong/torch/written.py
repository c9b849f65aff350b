"""Wrong layers whose sizes stand outside of them."""

from dataclasses import dataclass

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


@dataclass
class Config:
    n_embd: int = 8
    n_head: int = 1


class CausalAttention(nn.Module):
    """Of the configuration only forward reads the number of heads."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, self.qkv, self.out = config, *(nn.Linear(config.n_embd, n * config.n_embd) for n in (3, 1))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.config.n_head, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


EXPECTED = {"Head": "scale-sqrt-embed", "CausalAttention": "merge-without-transpose"}
