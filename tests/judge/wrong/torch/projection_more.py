"""More of projections and heads: which weight, which bias, which sequence; how features are ordered."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Whole(nn.Module):
    """Right; what follows changes a step."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def project(self, x, memory):
        return self.q_proj(x), self.k_proj(memory), self.v_proj(memory)

    def split(self, y):
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def end(self, x, y):
        return self.out_proj(y)

    def mix(self, x, memory, mask):
        q, k, v = map(self.split, self.project(x, memory))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.end(x, self.merge(scores.softmax(-1) @ v))

    def forward(self, x, mask=None):
        return self.mix(x, x, mask)


class QueriesByKeyLayer(Whole):
    def project(self, x, memory):
        return self.k_proj(x), self.k_proj(memory), self.v_proj(memory)


class ValuesByKeyLayer(Whole):
    def project(self, x, memory):
        return self.q_proj(x), self.k_proj(memory), self.k_proj(memory)


class ValuesByQueryLayer(Whole):
    def project(self, x, memory):
        return self.q_proj(x), self.k_proj(memory), self.q_proj(memory)


class QueryBiasLost(Whole):
    def project(self, x, memory):
        return F.linear(x, self.q_proj.weight), self.k_proj(memory), self.v_proj(memory)


class ValueBiasLost(Whole):
    def project(self, x, memory):
        return self.q_proj(x), self.k_proj(memory), F.linear(memory, self.v_proj.weight)


class InputForQueries(Whole):
    def project(self, x, memory):
        return x, self.k_proj(memory), self.v_proj(memory)


class InputForKeys(Whole):
    def project(self, x, memory):
        return self.q_proj(x), memory, self.v_proj(memory)


class ValueLayerAtTheEnd(Whole):
    def end(self, x, y):
        return self.v_proj(y)


class ResidualTooEarly(Whole):
    def end(self, x, y):
        return self.out_proj(x + y)


class FeaturesBeforeHeads(Whole):
    def merge(self, y):
        return y.permute(0, 2, 3, 1).flatten(2)


class NeverSplit(Whole):
    """Scaled by the head's width all the same."""

    def split(self, y):
        return y.unsqueeze(1)

    def mix(self, x, memory, mask):
        q, k, v = map(self.split, self.project(x, memory))
        scores = q @ k.mT / math.sqrt(q.size(-1) // self.num_heads)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.end(x, self.merge(scores.softmax(-1) @ v))


class CrossOfItself(Whole):
    def forward(self, x, memory):
        return self.mix(x, x, None)


class CrossExchanged(Whole):
    def forward(self, x, memory):
        return self.mix(memory, x, None)


class GroupsBackwards(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        outs, group = [], self.num_heads // self.num_kv_heads
        for h in range(self.num_heads):
            g = self.num_kv_heads - 1 - h // group
            outs.append(torch.softmax(q[:, h] @ k[:, g].mT / math.sqrt(self.head_dim), dim=-1) @ v[:, g])
        return self.o_proj(torch.cat(outs, dim=-1))


EXPECTED = {
    "QueriesByKeyLayer": "q-uses-k-weights",
    "ValuesByKeyLayer": ("v-uses-k-weights", "values-from-keys"),
    "ValuesByQueryLayer": ("v-uses-q-weights", "queries-as-values"),
    "QueryBiasLost": "no-q-bias",
    "ValueBiasLost": "no-v-bias",
    "InputForQueries": "q-unprojected",
    "InputForKeys": "k-unprojected",
    "ValueLayerAtTheEnd": "output-uses-v-weights",
    "ResidualTooEarly": "residual-before-output",
    "FeaturesBeforeHeads": "merge-interleaved",
    "NeverSplit": "heads-not-split",
    "CrossOfItself": "memory-ignored",
    "CrossExchanged": "queries-from-memory",
    "GroupsBackwards": "gqa-groups-reversed",
}
TASK = {**{name: "mha" for name in EXPECTED}, "CrossOfItself": "cross", "CrossExchanged": "cross", "GroupsBackwards": "gqa"}
