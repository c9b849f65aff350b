"""Grouped queries gone wrong: which head of keys and values a head of queries reads."""

import math

import torch
import torch.nn as nn


class GroupedQueryAttention(nn.Module):
    """repeat lays the groups side by side: head h reads h % Hkv; repeat_interleave was meant."""

    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        groups = self.num_heads // self.num_kv_heads
        k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.head_dim), dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, n, -1))


class Grouped(nn.Module):
    """Right; what follows shares keys and values otherwise."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def share(self, y):
        return y.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)

    def forward(self, x):
        b, n, c = x.shape
        q = self.wq(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.share(self.wk(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2))
        v = self.share(self.wv(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2))
        y = torch.softmax(q @ k.mT * self.head_dim**-0.5, dim=-1) @ v
        return self.wo(y.transpose(1, 2).reshape(b, n, c))


class SideBySide(Grouped):
    def share(self, y):
        return torch.cat([y] * (self.n_heads // self.n_kv_heads), dim=1)


class FirstGroupForAll(Grouped):
    def share(self, y):
        return y[:, :1].expand(-1, self.n_heads, -1, -1)


class MeanOfGroups(Grouped):
    def share(self, y):
        return y.mean(dim=1, keepdim=True).expand(-1, self.n_heads, -1, -1)


class GroupsWithoutScale(Grouped):
    def forward(self, x):
        b, n, c = x.shape
        q = self.wq(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.share(self.wk(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2))
        v = self.share(self.wv(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2))
        y = torch.softmax(q @ k.mT, dim=-1) @ v
        return self.wo(y.transpose(1, 2).reshape(b, n, c))


EXPECTED = {
    "GroupedQueryAttention": "gqa-heads-interleaved",
    "SideBySide": "gqa-heads-interleaved",
    "FirstGroupForAll": "gqa-first-group-only",
    "MeanOfGroups": "gqa-mean-of-groups",
    "GroupsWithoutScale": "no-scale",
}
TASK = {name: "gqa" for name in EXPECTED}
