"""Right forward, wrong backward: a part of the graph is cut."""

import math

import torch
import torch.nn as nn


class WeightsWithoutGrad(nn.Module):
    """no_grad around the softmax, left from debugging."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        with torch.no_grad():
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, float("-inf"))
            weights = scores.softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, n, e))


class Cut(nn.Module):
    """Right; what follows cuts the graph."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def project(self, x):
        return self.wq(x), self.wk(x), self.wv(x)

    def keep(self, weights):
        return weights

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in self.project(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.wo((self.keep(scores.softmax(dim=-1)) @ v).transpose(1, 2).reshape(b, n, e))


class WeightsDetached(Cut):
    def keep(self, weights):
        self.last_weights = weights = weights.detach()
        return weights


class QueriesDetached(Cut):
    def project(self, x):
        return self.wq(x).detach(), self.wk(x), self.wv(x)


class QueriesOfNoGrad(Cut):
    def project(self, x):
        with torch.no_grad():
            q = self.wq(x)
        return q, self.wk(x), self.wv(x)


class KeysDetached(Cut):
    def project(self, x):
        return self.wq(x), self.wk(x).detach(), self.wv(x)


class KeysByData(Cut):
    def project(self, x):
        return self.wq(x), self.wk(x).data, self.wv(x)


class ValuesDetached(Cut):
    def project(self, x):
        return self.wq(x), self.wk(x), self.wv(x).detach()


class ValuesCopied(Cut):
    """A new tensor of old numbers has no history."""

    def project(self, x):
        v = self.wv(x)
        return self.wq(x), self.wk(x), torch.empty_like(v).copy_(v.data)


class InputDetached(Cut):
    def project(self, x):
        return super().project(x.detach())


class InputByData(Cut):
    def project(self, x):
        x = x.data
        return self.wq(x), self.wk(x), self.wv(x)


class HeadsDetached(Cut):
    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in self.project(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, e).detach())


class HeadsOfNoGrad(Cut):
    def forward(self, x, mask=None):
        with torch.no_grad():
            b, n, e = x.shape
            q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in self.project(x))
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bool())
        return self.wo(y.transpose(1, 2).reshape(b, n, e))


class KeysAndValuesDetached(Cut):
    """As one keeps them for a cache."""

    def project(self, x):
        return self.wq(x), self.wk(x).detach(), self.wv(x).detach()


class KeysAndValuesOfNoGrad(Cut):
    def project(self, x):
        q = self.wq(x)
        with torch.no_grad():
            return q, self.wk(x), self.wv(x)


class ScoresDetached(Cut):
    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in self.project(x))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).detach()
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, e))


class ScoresByData(Cut):
    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in self.project(x))
        scores = torch.matmul(q.data, k.data.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, e))


EXPECTED = {
    "WeightsWithoutGrad": "weights-detached",
    "WeightsDetached": "weights-detached",
    "QueriesDetached": "queries-detached",
    "QueriesOfNoGrad": "queries-detached",
    "KeysDetached": "keys-detached",
    "KeysByData": "keys-detached",
    "ValuesDetached": "values-detached",
    "ValuesCopied": "values-detached",
    "InputDetached": "input-detached",
    "InputByData": "input-detached",
    "HeadsDetached": "heads-detached",
    "HeadsOfNoGrad": "heads-detached",
    "KeysAndValuesDetached": "keys-values-detached",
    "KeysAndValuesOfNoGrad": "keys-values-detached",
    "ScoresDetached": ("scores-detached", "weights-detached"),
    "ScoresByData": ("scores-detached", "weights-detached"),
}
TASK = {name: "mha" for name in EXPECTED}
