"""Token by token gone wrong: what is kept of the past, where, and who may see it."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """The causal mask counts from 0 in each call: a new token sees the oldest keys, not its own."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x, cache=None):
        b, n, e = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        visible = torch.tril(torch.ones(n, k.size(2)))
        scores = scores.masked_fill(visible == 0, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(b, n, e)), (k, v)


class Cached(nn.Module):
    """Right; what follows changes how past and present meet."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def append(self, cache, k, v):
        """(keys to read, values to read, new cache)"""
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=-2), torch.cat((cache[1], v), dim=-2)
        return k, v, (k, v)

    def hidden(self, queries, keys):
        return torch.ones(queries, keys).triu(keys - queries + 1).bool()

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        k, v, cache = self.append(cache, k, v)
        scores = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(self.hidden(t, k.size(-2)), float("-inf"))
        y = torch.softmax(scores, dim=-1) @ v
        return self.wo(y.transpose(1, 2).reshape(b, t, c)), cache


class SeesOldestKeys(Cached):
    def hidden(self, queries, keys):
        return torch.arange(keys)[None, :] > torch.arange(queries)[:, None]


class ReadsOnlyNewKeys(Cached):
    def append(self, cache, k, v):
        if cache is None:
            return k, v, (k, v)
        return k, v, (torch.cat((cache[0], k), dim=-2), torch.cat((cache[1], v), dim=-2))


class ReadsOnlyNewKeysToo(Cached):
    """torch.cat gives a new tensor; it is stored, and the old names are used."""

    def append(self, cache, k, v):
        keys, values = (k, v) if cache is None else (torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2))
        return k, v, (keys, values)


class KeysAndValuesExchanged(Cached):
    def append(self, cache, k, v):
        if cache is not None:
            past_v, past_k = cache
            k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        return k, v, (k, v)


class StoredTheOtherWayRound(Cached):
    def append(self, cache, k, v):
        if cache is not None:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        return k, v, {"k": v, "v": k}


class NewestInFront(Cached):
    def append(self, cache, k, v):
        if cache is not None:
            k, v = torch.cat([k, cache[0]], dim=2), torch.cat([v, cache[1]], dim=2)
        return k, v, (k, v)


class KeepsLastCall(Cached):
    def append(self, cache, k, v):
        new = k, v
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return k, v, new


class NoMaskInPrefill(Cached):
    """The mask is put on only where there is a past."""

    def hidden(self, queries, keys):
        if queries == keys:
            return torch.zeros(queries, keys, dtype=torch.bool)
        return super().hidden(queries, keys)


class ForgetsNewest(Cached):
    """The slice ends one too early."""

    def append(self, cache, k, v):
        k, v, _ = super().append(cache, k, v)
        return k, v, (k[:, :, :-1], v[:, :, :-1])


class CachedWithoutCausal(Cached):
    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        k, v, cache = self.append(cache, k, v)
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)), cache


class WritesOverTheFirst(Cached):
    """New keys are written over the oldest; what is left over is put behind."""

    def append(self, cache, k, v):
        if cache is None:
            return k, v, (k, v)
        n, grown = k.size(2), []
        for new, old in ((k, cache[0]), (v, cache[1])):
            longer = torch.cat([old, torch.zeros_like(new)], dim=2)
            longer[:, :, :n] = new
            grown.append(longer)
        return grown[0], grown[1], tuple(grown)


class ReadsBeforeItAppends(Cached):
    def forward(self, x, cache=None):
        if cache is None:
            return super().forward(x)
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, cache[0], cache[1])
        return self.wo(y.transpose(1, 2).reshape(b, t, c)), (torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2))


class SkipsFirst(Cached):
    def append(self, cache, k, v):
        if cache is None:
            return k, v, (k, v)
        new = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return new[0][:, :, 1:], new[1][:, :, 1:], new


class OpenAfterwards(Cached):
    """The mask is put on only where there is no past."""

    def hidden(self, queries, keys):
        return torch.ones(queries, keys).triu(1).bool() if queries == keys else torch.zeros(queries, keys, dtype=torch.bool)


class Frozen(Cached):
    def append(self, cache, k, v):
        k, v, new = super().append(cache, k, v)
        return k, v, new if cache is None else cache


class PastAndItself(Cached):
    def hidden(self, queries, keys):
        return torch.cat([torch.zeros(queries, keys - queries), 1 - torch.eye(queries)], dim=1).bool()


EXPECTED = {
    "CachedAttention": "cache-position-not-advanced",
    "SeesOldestKeys": "cache-position-not-advanced",
    "ReadsOnlyNewKeys": "cache-past-not-prepended",
    "ReadsOnlyNewKeysToo": "cache-past-not-prepended",
    "KeysAndValuesExchanged": "cache-keys-values-exchanged",
    "StoredTheOtherWayRound": "cache-keys-values-exchanged",
    "NewestInFront": "cache-appended-in-front",
    "KeepsLastCall": "cache-keeps-last-call",
    "NoMaskInPrefill": ("cache-no-causal-in-prefill", "no-causal"),
    "ForgetsNewest": "cache-last-token-missing",
    "CachedWithoutCausal": ("no-causal", "cache-no-causal-in-prefill"),
    "WritesOverTheFirst": "cache-overwritten",
    "ReadsBeforeItAppends": "cache-last-token-missing",
    "SkipsFirst": "cache-first-token-missing",
    "OpenAfterwards": "cache-no-causal-after-prefill",
    "Frozen": "cache-not-grown",
    "PastAndItself": "cache-past-causal-only",
}
TASK = {name: "cache" for name in EXPECTED}
