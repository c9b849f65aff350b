"""Projections gone wrong: which weight makes what, in which order the merged matrix is cut, what is left out."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedWeightMHA(nn.Module):
    """Keys from the query's weight."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        batch, length, embed = x.shape
        q = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, embed))


class Separate(nn.Module):
    """Right; what follows changes how q, k and v are made."""

    def __init__(self, hidden_dim, nums_head):
        super().__init__()
        self.hidden_dim, self.nums_head = hidden_dim, nums_head
        self.query = nn.Linear(hidden_dim, hidden_dim)
        self.key = nn.Linear(hidden_dim, hidden_dim)
        self.value = nn.Linear(hidden_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, hidden_dim)

    def project(self, x):
        return self.query(x), self.key(x), self.value(x)

    def forward(self, x, mask=None):
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.nums_head, c // self.nums_head).permute(0, 2, 1, 3) for y in self.project(x))
        att = torch.einsum("bhqd,bhkd->bhqk", q, k) / (c // self.nums_head) ** 0.5
        if mask is not None:
            att = att.masked_fill(~mask.bool(), -1e9)
        y = torch.einsum("bhqk,bhkd->bhqd", att.softmax(-1), v)
        return self.output(y.permute(0, 2, 1, 3).reshape(b, t, c))


class KeyMadeByQueryLayer(Separate):
    def project(self, x):
        query = self.query(x)
        key = self.query(x)
        value = self.value(x)
        return query, key, value


class RawWeights(Separate):
    """x @ weight, where nn.Linear is x @ weight.T."""

    def project(self, x):
        q = x @ self.query.weight + self.query.bias
        k = x @ self.key.weight + self.key.bias
        v = x @ self.value.weight + self.value.bias
        return q, k, v


class BiasForgotten(Separate):
    def project(self, x):
        return x @ self.query.weight.T, x @ self.key.weight.T, x @ self.value.weight.T


class ValueIsInput(Separate):
    def project(self, x):
        return self.query(x), self.key(x), x


class ValueIsQuery(Separate):
    def project(self, x):
        q = self.query(x)
        return q, self.key(x), q


class ExchangedArguments(Separate):
    """The helper takes q, k, v; the caller passes k, q, v."""

    def project(self, x):
        return self.key(x), self.query(x), self.value(x)


class Merged(nn.Module):
    """One layer for all three; the slices are named by `order`."""

    order = "qkv"

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        named = dict(zip(self.order, self.c_attn(x).split(C, dim=2)))
        q, k, v = (named[n].view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2) for n in "qkv")
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MergedKeyQueryValue(Merged):
    order = "kqv"


class MergedValueKeyQuery(Merged):
    order = "vkq"


class MergedQueryValueKey(Merged):
    order = "qvk"


class MergedKeyValueQuery(Merged):
    order = "kvq"


class MergedValueQueryKey(Merged):
    order = "vqk"


class MergedWithoutBias(Merged):
    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = F.linear(x, self.c_attn.weight).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(B, T, C))


class SelfAttentionV2(nn.Module):
    """The second rung with the slices in another order: v, k, q."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)

    def forward(self, x):
        V, K, Q = torch.split(self.proj(x), self.hidden_dim, dim=-1)
        weight = torch.softmax(Q @ K.transpose(-1, -2) / math.sqrt(self.hidden_dim), dim=-1)
        return weight @ V


class SelfAttentionV2OfKeysFirst(nn.Module):
    """The second rung: k, v, q."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.qkv = nn.Linear(dim, dim * 3)

    def forward(self, X):
        K, V, Q = self.qkv(X).chunk(3, dim=-1)
        return torch.softmax(Q @ K.mT / self.dim**0.5, dim=-1) @ V


class SelfAttentionV2ValueSecond(nn.Module):
    """The second rung: q, v, k."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.in_proj = nn.Linear(dim, 3 * dim)

    def forward(self, X):
        Q, V, K = self.in_proj(X).tensor_split(3, dim=-1)
        return torch.softmax(torch.bmm(Q, K.transpose(1, 2)) / self.dim**0.5, dim=-1).bmm(V)


class SelfAttentionV2ValueFirst(nn.Module):
    """The second rung: v, q, k."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.linear_qkv = nn.Linear(dim, 3 * dim)

    def forward(self, X):
        qkv = self.linear_qkv(X)
        V = qkv[..., : self.dim]
        Q = qkv[..., self.dim : 2 * self.dim]
        K = qkv[..., 2 * self.dim :]
        return torch.softmax(Q @ K.transpose(-1, -2) / math.sqrt(self.dim), dim=-1) @ V


EXPECTED = {
    "SharedWeightMHA": "k-uses-q-weights",
    "KeyMadeByQueryLayer": "k-uses-q-weights",
    "RawWeights": "weight-not-transposed",
    "BiasForgotten": "no-qkv-bias",
    "MergedWithoutBias": "no-qkv-bias",
    "ValueIsInput": "v-unprojected",
    "ValueIsQuery": "queries-as-values",
    "ExchangedArguments": ("order-kqv", "scores-transposed"),
    "MergedKeyQueryValue": ("order-kqv", "scores-transposed"),
    "MergedValueKeyQuery": "order-vkq",
    "MergedQueryValueKey": "order-qvk",
    "MergedKeyValueQuery": "order-kvq",
    "MergedValueQueryKey": "order-vqk",
    "SelfAttentionV2": "order-vkq",
    "SelfAttentionV2OfKeysFirst": "order-kvq",
    "SelfAttentionV2ValueSecond": "order-qvk",
    "SelfAttentionV2ValueFirst": "order-vqk",
}
TASK = {"SelfAttentionV2OfKeysFirst": "v2", "SelfAttentionV2ValueSecond": "v2", "SelfAttentionV2ValueFirst": "v2"}
