"""Dropout gone wrong: when, on what, and what is kept."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class DropoutAttention(nn.Module):
    """F.dropout is in training mode unless told that it is not."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, q, k, v):
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        weights = F.dropout(weights, self.p)
        return weights @ v


class Dropped(nn.Module):
    """Right; what follows changes the place or the mask."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)
        return self.weigh(weights, v)

    def weigh(self, weights, v):
        return self.dropout(weights) @ v


class AlwaysDropped(Dropped):
    def weigh(self, weights, v):
        return F.dropout(weights, p=self.dropout.p, training=True) @ v


class NotRescaled(Dropped):
    def weigh(self, weights, v):
        if self.training:
            weights = weights * (torch.rand_like(weights) >= self.dropout.p)
        return weights @ v


class OnScores(Dropped):
    def forward(self, q, k, v):
        scores = self.dropout(q @ k.mT / math.sqrt(q.size(-1)))
        return torch.softmax(scores, dim=-1) @ v


class OnValues(Dropped):
    def weigh(self, weights, v):
        return weights @ self.dropout(v)


class Never(Dropped):
    def weigh(self, weights, v):
        return weights @ v


class OnOutput(Dropped):
    def weigh(self, weights, v):
        return self.dropout(weights @ v)


class KeepsWithP(Dropped):
    def weigh(self, weights, v):
        if self.training:
            keep = (torch.rand_like(weights) < self.dropout.p).to(weights.dtype)
            weights = weights * keep / (1 - self.dropout.p)
        return weights @ v


class DroppedUnscaled(Dropped):
    def forward(self, q, k, v):
        return self.weigh(torch.softmax(q @ k.mT, dim=-1), v)


class DividedByP(Dropped):
    def weigh(self, weights, v):
        if self.training:
            p = self.dropout.p
            weights = weights * (torch.rand_like(weights) >= p) / p
        return weights @ v


class HalfAlways(Dropped):
    """nn.Dropout() drops a half."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.dropout = nn.Dropout()


class SameForAllHeads(Dropped):
    def weigh(self, weights, v):
        mask = self.dropout(torch.ones_like(weights[:, :1]))
        return weights * mask @ v


class SameEveryCall(Dropped):
    """Seeded for reproducibility, in the wrong place."""

    def weigh(self, weights, v):
        torch.manual_seed(0)
        return self.dropout(weights) @ v


class ScaledInEvaluation(Dropped):
    """Both conventions at once: kept weights grow in training, and all shrink in evaluation."""

    def weigh(self, weights, v):
        if self.training:
            return self.dropout(weights) @ v
        return weights * (1 - self.dropout.p) @ v


EXPECTED = {
    "DropoutAttention": "dropout-in-evaluation",
    "AlwaysDropped": "dropout-in-evaluation",
    "NotRescaled": "dropout-not-rescaled",
    "OnScores": "dropout-on-scores",
    "OnValues": "dropout-on-values",
    "Never": "dropout-never",
    "OnOutput": "dropout-on-output",
    "KeepsWithP": "dropout-keeps-p",
    "DroppedUnscaled": "no-scale",
    "DividedByP": "dropout-rescaled-otherwise",
    "HalfAlways": "dropout-other-rate",
    "SameForAllHeads": "dropout-one-mask",
    "SameEveryCall": "dropout-same-every-call",
    "ScaledInEvaluation": "dropout-scaled-in-evaluation",
}
TASK = {name: "dropout" for name in EXPECTED}
