"""More of scores and weights: the first rung and the plain function."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Rung(nn.Module):
    """The first rung, right; what follows changes scores, weights or what they meet."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / math.sqrt(self.hidden_dim)

    def weigh(self, scores):
        return torch.softmax(scores, dim=-1)

    def mix(self, weights, v):
        return weights @ v

    def forward(self, x):
        q, k, v = self.query_proj(x), self.key_proj(x), self.value_proj(x)
        return self.mix(self.weigh(self.scores(q, k)), v)


class RootOfLength(Rung):
    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / math.sqrt(k.size(1))


class ScoresSquared(Rung):
    def scores(self, q, k):
        return (q @ k.transpose(-1, -2) / math.sqrt(self.hidden_dim)) ** 2


class Cosines(Rung):
    def scores(self, q, k):
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / math.sqrt(self.hidden_dim)


class OverTheWholeMatrix(Rung):
    def weigh(self, scores):
        return F.softmax(scores.flatten(1), dim=1).view_as(scores)


class TanhWeights(Rung):
    def weigh(self, scores):
        return torch.tanh(scores)


class OverSum(Rung):
    def weigh(self, scores):
        return scores / scores.sum(dim=-1, keepdim=True)


class BaseTwo(Rung):
    def weigh(self, scores):
        powers = torch.exp2(scores - scores.amax(dim=-1, keepdim=True))
        return powers / powers.sum(dim=-1, keepdim=True)


class BestKeyOnly(Rung):
    def weigh(self, scores):
        return F.one_hot(scores.argmax(dim=-1), scores.size(-1)).to(scores.dtype)


class Average(Rung):
    def weigh(self, scores):
        return torch.full_like(scores, 1 / scores.size(-1))


class OwnValueAdded(Rung):
    def mix(self, weights, v):
        return v + weights @ v


class WeightsAcross(Rung):
    def mix(self, weights, v):
        return torch.einsum("bkq,bkd->bqd", weights, v)


class LowerTriangle(Rung):
    def scores(self, q, k):
        hidden = torch.ones(q.size(1), k.size(1)).triu(1).bool()
        return super().scores(q, k).masked_fill(hidden, float("-inf"))


class HeadsOfMeanScores(nn.Module):
    """The scores' mean over the heads, before the softmax."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.to_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / math.sqrt(q.size(-1))).mean(dim=1, keepdim=True)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.to_out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class RootOfHeads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.to_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(self.num_heads)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.to_out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def sdpa_first_row_of_mask(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask[..., 0, :].unsqueeze(-2) == 0, -1e9)
    return scores.softmax(-1) @ v


EXPECTED = {
    "RootOfLength": "scale-sqrt-length",
    "ScoresSquared": "squared-scores",
    "Cosines": "keys-normalised",
    "OverTheWholeMatrix": "softmax-over-all",
    "TanhWeights": "tanh-weights",
    "OverSum": "scores-over-sum",
    "BaseTwo": "softmax-base-2",
    "BestKeyOnly": "hard-maximum",
    "Average": "uniform-weights",
    "OwnValueAdded": "value-added",
    "WeightsAcross": "weights-transposed",
    "LowerTriangle": "causal-unasked",
    "HeadsOfMeanScores": "scores-mean-of-heads",
    "RootOfHeads": "scale-sqrt-heads",
    "sdpa_first_row_of_mask": "mask-first-query-only",
}
TASK = {
    **{name: "v1" for name in EXPECTED},
    "HeadsOfMeanScores": "mha",
    "RootOfHeads": "mha",
    "sdpa_first_row_of_mask": "sdpa",
}
