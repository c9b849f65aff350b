"""Right: grouped queries, keys of another sequence, caches, rotary positions, tiles, linear, backward, dropout."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    """repeat_interleave."""

    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k, v = (y.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for y in (k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.head_dim), dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class GroupedByReshape(nn.Module):
    """Queries as [B, Hkv, G, L, d]; keys are broadcast."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_kv_heads, self.groups, self.head_dim = n_kv_heads, n_heads // n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q = self.wq(x).view(b, n, self.n_kv_heads, self.groups, self.head_dim).permute(0, 2, 3, 1, 4)
        k = self.wk(x).view(b, n, self.n_kv_heads, 1, self.head_dim).permute(0, 2, 3, 1, 4)
        v = self.wv(x).view(b, n, self.n_kv_heads, 1, self.head_dim).permute(0, 2, 3, 1, 4)
        y = (q @ k.mT * self.head_dim**-0.5).softmax(dim=-1) @ v
        return self.wo(y.permute(0, 3, 1, 2, 4).reshape(b, n, c))


class CrossAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_q = nn.Linear(embed_dim, embed_dim)
        self.to_k = nn.Linear(embed_dim, embed_dim)
        self.to_v = nn.Linear(embed_dim, embed_dim)
        self.to_out = nn.Linear(embed_dim, embed_dim)

    def heads(self, y):
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, memory, mask=None):
        q, k, v = self.heads(self.to_q(x)), self.heads(self.to_k(memory)), self.heads(self.to_v(memory))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class CachedTuple(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq = nn.Linear(embed_dim, embed_dim, bias=False)
        self.wk = nn.Linear(embed_dim, embed_dim, bias=False)
        self.wv = nn.Linear(embed_dim, embed_dim, bias=False)
        self.wo = nn.Linear(embed_dim, embed_dim, bias=False)

    def heads(self, y):
        return y.view(*y.shape[:2], self.num_heads, -1).transpose(1, 2)

    def attend(self, q, k, v):
        n, total = q.size(2), k.size(2)
        hidden = torch.ones(n, total, dtype=torch.bool).triu(total - n + 1)
        y = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.wo(y.transpose(1, 2).flatten(2))

    def forward(self, x, cache=None):
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return self.attend(q, k, v), (k, v)


class CachedDict(CachedTuple):
    """The caller's dict is filled."""

    def forward(self, x, cache=None):
        cache = {} if cache is None else cache
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        cache["k"], cache["v"] = k, v
        return self.attend(q, k, v), cache


class CachedInputs(CachedTuple):
    """Keeps x itself and projects the past again: slow and right."""

    def forward(self, x, past=None):
        whole = x if past is None else torch.cat([past, x], dim=1)
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(whole)), self.heads(self.wv(whole))
        return self.attend(q, k, v), whole


def rope(x, positions, base=10000.0):
    """Adjacent pairs as complex numbers."""
    inverse = base ** (-torch.arange(0, x.size(-1), 2, dtype=x.dtype) / x.size(-1))
    angles = positions.to(x.dtype)[:, None] * inverse
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def rope_of_halves(x, positions, base=10000.0):
    """Halves, as in Llama's files."""
    inverse = 1.0 / base ** (torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / x.shape[-1])
    angles = torch.outer(positions.to(x.dtype), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


def attention_with_rope(q, k, v, positions, base=10000.0):
    return F.scaled_dot_product_attention(rope(q, positions, base), rope(k, positions, base), v)


def flash(q, k, v, block_size, causal=False):
    acc, total = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    m = torch.full_like(total, float("-inf"))
    rows = torch.arange(q.size(2))[:, None] + k.size(2) - q.size(2)
    for j in range(0, k.size(2), block_size):
        kj, vj = k[:, :, j : j + block_size], v[:, :, j : j + block_size]
        s = q @ kj.mT / math.sqrt(q.size(-1))
        if causal:
            s = s.masked_fill(torch.arange(j, j + kj.size(2))[None] > rows, -1e30)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp(s - new), torch.exp(m - new)
        total, acc, m = total * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ vj, new
    return acc / total


def linear_attention(q, k, v, causal=False):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if causal:
        state, total = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2), k.cumsum(2)
        return torch.einsum("bhtd,bhtde->bhte", q, state) / (q * total).sum(-1, keepdim=True)
    return q @ (k.mT @ v) / (q @ k.sum(2).unsqueeze(-1))


def attention_backward(q, k, v, dout, causal=False):
    """Autograd does it."""
    q, k, v = (y.detach().clone().requires_grad_(True) for y in (q, k, v))
    keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2)) if causal else None
    with torch.enable_grad():
        F.scaled_dot_product_attention(q, k, v, attn_mask=keep).backward(dout)
    return q.grad, k.grad, v.grad


class DropoutAttention(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, q, k, v):
        return self.dropout(torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)) @ v


class DropoutBySdpa(nn.Module):
    def __init__(self, dropout_p):
        super().__init__()
        self.dropout_p = dropout_p

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout_p if self.training else 0.0)


def scaled_dot_product(query, key, value, mask=None):
    """The tutorials' helper: weights are returned too."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, value), weights


def causal_attention_upper_left(q, k, v):
    """is_causal of PyTorch: row 0 is that of key 0, however many keys there are."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa_nan_of_empty_row(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def sdpa_mean_of_empty_row(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v


def sdpa_zero_of_empty_row(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1), nan=0.0) @ v


RIGHT = [
    "GroupedQueryAttention",
    "GroupedByReshape",
    "CrossAttention",
    "CachedTuple",
    "CachedDict",
    "CachedInputs",
    "rope",
    "rope_of_halves",
    "attention_with_rope",
    "flash",
    "linear_attention",
    "attention_backward",
    "DropoutAttention",
    "DropoutBySdpa",
    "scaled_dot_product",
    "causal_attention_upper_left",
    "sdpa_nan_of_empty_row",
    "sdpa_mean_of_empty_row",
    "sdpa_zero_of_empty_row",
]
# Names of conventions: what an empty row gives, which pairs turn, where row 0 of a causal mask lies.
CONVENTION = {
    "causal_attention_upper_left": "causal-top-left",
    "sdpa_nan_of_empty_row": "empty-row-nan",
    "sdpa_mean_of_empty_row": "empty-row-mean",
}
TASK = {
    "GroupedQueryAttention": "gqa",
    "GroupedByReshape": "gqa",
    "CrossAttention": "cross",
    "CachedTuple": "cache",
    "CachedDict": "cache",
    "CachedInputs": "cache",
    "rope_of_halves": "rope",
    "attention_with_rope": "rope",
    "DropoutAttention": "dropout",
    "DropoutBySdpa": "dropout",
    "scaled_dot_product": "sdpa",
    "causal_attention_upper_left": "causal",
    "sdpa_nan_of_empty_row": "sdpa",
    "sdpa_mean_of_empty_row": "sdpa",
    "sdpa_zero_of_empty_row": "sdpa",
}
