"""Right layers of layers of one's own, and of raw matrices: which way round a matrix is, only the code says."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    """Its weight is [in, out]."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features) / math.sqrt(in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return x @ self.weight + self.bias


class Dense(nn.Module):
    """Its weight is [out, in]."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(n_out, n_in))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.kernel)


def attended(q, k, v):
    return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v


class OfLinear(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.wq, self.wk, self.wv, self.wo = (Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(attended(q, k, v).transpose(1, 2).flatten(2))


class OfDenseGrouped(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.groups, self.d = n_heads // n_kv_heads, dim // n_heads
        self.q_proj, self.o_proj = Dense(dim, dim), Dense(dim, dim)
        self.k_proj, self.v_proj = Dense(dim, n_kv_heads * self.d), Dense(dim, n_kv_heads * self.d)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (y.repeat_interleave(self.groups, 1) for y in (k, v))
        return self.o_proj(attended(q, k, v).transpose(1, 2).flatten(2))


class MergedAttention(nn.Module):
    """in_proj is three matrices [in, out]."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(width, width)
        self.in_proj, self.in_bias = nn.Parameter(torch.randn(3, width, width)), nn.Parameter(torch.zeros(3, width))

    def forward(self, x):
        q, k, v = torch.einsum("bte,cef->cbtf", x, self.in_proj) + self.in_bias[:, None, None]
        return self.out(attended(*(y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))).transpose(1, 2).flatten(2))


class NamedAsTorchDoes(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (nn.Parameter(torch.randn(dim, dim)) for _ in range(3))

    def forward(self, x):
        return attended(x @ self.q_proj_weight, x @ self.k_proj_weight, x @ self.v_proj_weight)


class BothWays(nn.Module):
    """Of q, k, v the matrices are [in, out]; that of the output is F.linear's."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(embed_dim, embed_dim)) for _ in range(4))

    def forward(self, x):
        q, k, v = ((x @ w).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return F.linear(attended(q, k, v).transpose(1, 2).flatten(2), self.wo)


class AskedByMask(nn.Module):
    """Causal where the constructor's `mask` says so, and not by its default."""

    def __init__(self, emb, heads=8, mask=False):
        super().__init__()
        self.heads, self.mask = heads, mask
        self.tokeys, self.toqueries, self.tovalues = (nn.Linear(emb, emb, bias=False) for _ in range(3))
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.toqueries, self.tokeys, self.tovalues))
        dot = q @ k.mT / q.size(-1) ** 0.5
        if self.mask:
            rows, columns = torch.triu_indices(*dot.shape[-2:], offset=1)
            dot[..., rows, columns] = float("-inf")
        return self.unifyheads((dot.softmax(-1) @ v).transpose(1, 2).flatten(2))


class AskedByName(AskedByMask):
    def __init__(self, emb, heads, is_decoder=False):
        super().__init__(emb, heads, is_decoder)


class AskedInTheCall(nn.Module):
    def __init__(self, emb, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(emb, 3 * emb), nn.Linear(emb, emb)

    def forward(self, x, use_causal_mask=False):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.size(-1) ** 0.5
        if use_causal_mask:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TurnedOutright(nn.Module):
    """Rotary positions, causal in the call alone, no cache."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.groups, self.d = n_heads // n_kv_heads, dim // n_heads
        self.q_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(dim, n_kv_heads * self.d, bias=False) for _ in range(2))

    def turned(self, x):
        angles = torch.arange(1, x.size(-2) + 1)[:, None] * 10000 ** (-torch.arange(0, self.d, 2) / self.d)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (y.repeat_interleave(self.groups, 1) for y in (self.turned(k), v))
        return self.o_proj(F.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True).transpose(1, 2).flatten(2))


RIGHT = ["OfLinear", "OfDenseGrouped", "MergedAttention", "NamedAsTorchDoes", "BothWays"]
RIGHT += ["AskedByMask", "AskedByName", "AskedInTheCall", "TurnedOutright"]
