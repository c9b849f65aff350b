"""Values and output gone wrong: what is weighed, what is projected, what is added."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ForgottenOutputLayer(nn.Module):
    """out_proj is made and never called."""

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
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e)


class Rung(nn.Module):
    """The fourth rung, right; what follows changes its end."""

    def __init__(self, dim, dropout_rate=0.0):
        super().__init__()
        self.dim = dim
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.att_drop = nn.Dropout(dropout_rate)
        self.output = nn.Linear(dim, dim)

    def values(self, q, k, v):
        return v

    def end(self, x, y):
        return self.output(y)

    def forward(self, X, attention_mask=None):
        Q, K, V = self.query(X), self.key(X), self.value(X)
        weight = Q @ K.transpose(-1, -2) / math.sqrt(self.dim)
        if attention_mask is not None:
            weight = weight.masked_fill(attention_mask == 0, float("-1e20"))
        weight = self.att_drop(torch.softmax(weight, dim=-1))
        return self.end(X, weight @ self.values(Q, K, V))


class OutputLayerUnused(Rung):
    def end(self, x, y):
        return y


class OutputBiasUnused(Rung):
    def end(self, x, y):
        return y @ self.output.weight.T


class OutputBiasUnusedToo(Rung):
    def end(self, x, y):
        return F.linear(y, self.output.weight, bias=None)


class ResidualInside(Rung):
    def end(self, x, y):
        return x + self.output(y)


class OutputWeightTransposed(Rung):
    def end(self, x, y):
        return torch.addmm(self.output.bias, y.flatten(0, 1), self.output.weight).view_as(y)


class OutputBiasTwice(Rung):
    def end(self, x, y):
        return self.output(y) + self.output.bias


class KeysWeighed(Rung):
    def values(self, q, k, v):
        return k


class QueriesWeighed(Rung):
    def values(self, q, k, v):
        return q


def sdpa_of_keys(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)


class EndsWithQuery(Rung):
    def end(self, x, y):
        return self.query(y)


EXPECTED = {
    "EndsWithQuery": "output-uses-q-weights",
    "ForgottenOutputLayer": "no-output-projection",
    "OutputLayerUnused": "no-output-projection",
    "OutputBiasUnused": "no-output-bias",
    "OutputBiasUnusedToo": "no-output-bias",
    "ResidualInside": "residual-added",
    "OutputWeightTransposed": "output-transposed-weight",
    "OutputBiasTwice": "output-bias-twice",
    "KeysWeighed": "values-from-keys",
    "QueriesWeighed": "queries-as-values",
    "sdpa_of_keys": "values-from-keys",
}
TASK = {**{name: "v4" for name in EXPECTED}, "ForgottenOutputLayer": "mha", "sdpa_of_keys": "sdpa"}
