"""Grouped-query attention: several query heads share one head of keys and values. Named in article 003, an extension here.

    x          [B, L, E]    a sequence of L tokens; E is embed_dim
    returns out [B, L, E], or (out, weights) with weights [B, H, L, L]

Neighbours share: with H = 6 and Hkv = 2 the query heads 0, 1, 2 read keys and values 0, the heads 3, 4, 5 read 1. A head has
head_dim = E / H columns. No biases, no mask.
Judged: which query head reads which keys; how heads are cut and joined; the scale; gradients.
"""

import math

import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.to_q, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.to_k, self.to_v = (nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x):
        # solution: projections, heads, keys and values for each group, attention, output projection
        B, L, E = x.shape
        q = self.to_q(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)          # [B, H, L, d]
        k = self.to_k(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)       # [B, Hkv, L, d]
        v = self.to_v(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)       # [B, Hkv, L, d]
        group = self.num_heads // self.num_kv_heads
        k = k.repeat_interleave(group, dim=1)                   # [B, H, L, d] as 0 0 0 1 1 1; repeat would give 0 1 0 1 0 1
        v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]
        weights = torch.softmax(scores, dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)        # [B, L, E]
        return self.to_out(context), weights
        # end
