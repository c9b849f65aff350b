"""Layers with one mistake each, as people write them: what a layer keeps from call to call, what float16 cannot hold."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Parts(nn.Module):
    """Four layers, the way to heads and back; right."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, y):
        return y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def forward(self, x, mask=None):
        q, k, v = (self.split(layer(x)) for layer in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
        scores = scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))
        return self.wo(self.merge(scores.softmax(-1) @ v))


class FoldsTheScale(Parts):
    """The scale is folded into the layer, at each call again."""

    def forward(self, x, mask=None):
        for numbers in self.wq.parameters():
            numbers.data /= math.sqrt(x.size(-1) // self.n_heads)
        q, k, v = (self.split(layer(x)) for layer in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bool(), scale=1.0)
        return self.wo(self.merge(y))


class RemembersOutput(Parts):
    """A bit of the last call's output is added."""

    def forward(self, x, mask=None):
        out, before = super().forward(x, mask), getattr(self, "before", None)
        self.before = out.detach()
        return out if before is None or before.shape != out.shape else out + 0.1 * before


class FillsBeyondHalf(Parts):
    """0 times infinity, in float16."""

    def fill(self, scores):
        return torch.tensor(-1e9, dtype=scores.dtype)

    def forward(self, x, mask=None):
        q, k, v = (self.split(layer(x)) for layer in (self.wq, self.wk, self.wv))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        scores = scores if mask is None else scores + (mask == 0) * self.fill(scores)
        return self.wo(self.merge(scores.softmax(-1) @ v))


class FillsBeyondHalfToo(FillsBeyondHalf):
    def fill(self, scores):
        return scores.new_tensor(-1e6)


class ReturnsScores(Parts):
    def forward(self, x, mask=None):
        q, k, _ = (self.split(layer(x)) for layer in (self.wq, self.wk, self.wv))
        return super().forward(x, mask), q @ k.mT / math.sqrt(q.size(-1))


class FillsTheOtherWay(nn.Module):
    """A cache in a dict: stored exchanged, read by name."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def extend(self, cache, k, v):
        """(keys and values to read, new cache)"""
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        return (k, v), {"k": v, "v": k}

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        (keys, values), cache = self.extend(cache, k, v)
        keep = torch.ones(q.size(2), keys.size(2)).tril(keys.size(2) - q.size(2)).bool()
        return self.wo(F.scaled_dot_product_attention(q, keys, values, attn_mask=keep).transpose(1, 2).flatten(2)), cache


class ReadsTheOldNames(FillsTheOtherWay):
    """torch.cat gives a new tensor; it is stored, and the old names are read."""

    def extend(self, cache, k, v):
        return (k, v), {n: torch.cat([cache[n], y], dim=2) if cache else y for n, y in (("k", k), ("v", v))}


EXPECTED = {
    "FoldsTheScale": "state-left-behind",
    "RemembersOutput": "state-left-behind",
    "FillsBeyondHalf": "fill-beyond-half",
    "FillsBeyondHalfToo": "fill-beyond-half",
    "ReturnsScores": "weights-are-scores",
    "FillsTheOtherWay": "cache-keys-values-exchanged",
    "ReadsTheOldNames": "cache-past-not-prepended",
}
TASK = {name: "mha" for name in EXPECTED} | {
    "FillsTheOtherWay": "cache",
    "ReadsTheOldNames": "cache",
}
