"""The scale of the scores gone wrong."""

import math

import torch
import torch.nn as nn


class NoScaleMHA(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = q @ k.transpose(-2, -1)
        if mask is not None:
            attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = attn.softmax(dim=-1)
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, e))


class Scaled(nn.Module):
    """Right; what follows changes the scale."""

    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.hidden_dim, self.num_heads = hidden_dim, num_heads
        self.head_dim = hidden_dim // num_heads
        self.to_q = nn.Linear(hidden_dim, hidden_dim)
        self.to_k = nn.Linear(hidden_dim, hidden_dim)
        self.to_v = nn.Linear(hidden_dim, hidden_dim)
        self.to_out = nn.Linear(hidden_dim, hidden_dim)

    def scale(self, scores):
        return scores / math.sqrt(self.head_dim)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        scores = self.scale(q @ k.transpose(-1, -2))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e20)
        return self.to_out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, e))


class ScaleOfTheWholeWidth(Scaled):
    def scale(self, scores):
        return scores / math.sqrt(self.hidden_dim)


class DividedByWidthOfHead(Scaled):
    def scale(self, scores):
        return scores / self.head_dim


class ScaledTwice(Scaled):
    def scale(self, scores):
        scores = scores / math.sqrt(self.head_dim)
        return scores * self.head_dim**-0.5


class MultipliedByRoot(Scaled):
    def scale(self, scores):
        return scores * math.sqrt(self.head_dim)


class SomeConstant(Scaled):
    def scale(self, scores):
        return scores * 0.37


class WrongSign(Scaled):
    def scale(self, scores):
        return -scores / math.sqrt(self.head_dim)


def sdpa_without_scale(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask.bool(), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def sdpa_with_length_for_width(q, k, v, mask=None):
    """size(1) of [B, H, T, d] is the number of heads: some constant."""
    scores = q @ k.transpose(-2, -1) / q.size(1)
    if mask is not None:
        scores = scores.masked_fill(~mask.bool(), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


EXPECTED = {
    "NoScaleMHA": "no-scale",
    "sdpa_without_scale": "no-scale",
    "ScaleOfTheWholeWidth": "scale-sqrt-embed",
    "DividedByWidthOfHead": ("scale-1-over-d", "scale-twice"),
    "ScaledTwice": ("scale-twice", "scale-1-over-d"),
    "MultipliedByRoot": "scale-multiplied",
    "SomeConstant": "scale-other",
    "sdpa_with_length_for_width": "scale-other",
    "WrongSign": "scale-negative",
}
TASK = {"sdpa_without_scale": "sdpa", "sdpa_with_length_for_width": "sdpa"}
