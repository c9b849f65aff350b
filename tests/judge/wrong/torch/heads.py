"""Heads gone wrong: split, merged, mixed, exchanged."""

import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """view(batch, heads, length, head_dim) at once: tokens and features are mixed."""

    def __init__(self, embed_dim, head_num):
        super().__init__()
        self.embed_dim, self.head_num = embed_dim, head_num
        self.head_dim = embed_dim // head_num
        self.W_Q = nn.Linear(embed_dim, embed_dim)
        self.W_K = nn.Linear(embed_dim, embed_dim)
        self.W_V = nn.Linear(embed_dim, embed_dim)
        self.W_O = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        batch_size, seq_len, _ = x.size()
        Q = self.W_Q(x).view(batch_size, self.head_num, seq_len, self.head_dim)
        K = self.W_K(x).view(batch_size, self.head_num, seq_len, self.head_dim)
        V = self.W_V(x).view(batch_size, self.head_num, seq_len, self.head_dim)
        score = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e20)
        out = torch.matmul(torch.softmax(score, dim=-1), V)
        return self.W_O(out.transpose(1, 2).contiguous().view(batch_size, seq_len, self.embed_dim))


class Heads(nn.Module):
    """Right; what follows changes one step."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.d_model, self.n_head = d_model, n_head
        self.d_k = d_model // n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, y):
        return y.view(y.size(0), y.size(1), self.n_head, self.d_k).transpose(1, 2)

    def weigh(self, weights, v):
        return weights @ v

    def merge(self, y):
        return y.transpose(1, 2).reshape(y.size(0), y.size(2), self.d_model)

    def forward(self, x, mask=None):
        q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))
        scores = q @ k.transpose(2, 3) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.w_o(self.merge(self.weigh(scores.softmax(dim=-1), v)))


class SplitByReshapeAlone(Heads):
    def split(self, y):
        return y.reshape(y.shape[0], self.n_head, y.shape[1], self.d_k)


class MergeByReshapeAlone(Heads):
    def merge(self, y):
        batch, _, length, _ = y.shape
        return y.contiguous().view(batch, length, self.d_model)


class BothByReshapeAlone(Heads):
    def split(self, y):
        return y.reshape(y.shape[0], self.n_head, -1, self.d_k)

    def merge(self, y):
        return y.reshape(y.shape[0], -1, self.d_model)


class FeaturesOutsideHeads(Heads):
    """Cut as (head_dim, heads), merged as (heads, head_dim)."""

    def split(self, y):
        return y.view(y.size(0), y.size(1), self.d_k, self.n_head).permute(0, 3, 1, 2)


class FeaturesOutsideHeadsBothWays(Heads):
    """Cut as (head_dim, heads) and merged so: a permutation of the features that the weights do not know."""

    def split(self, y):
        return y.view(y.size(0), y.size(1), self.d_k, self.n_head).permute(0, 3, 1, 2)

    def merge(self, y):
        return y.permute(0, 2, 3, 1).reshape(y.size(0), y.size(2), self.d_model)


class WeightsAveraged(Heads):
    """nn.MultiheadAttention returns averaged weights; here they are used."""

    def weigh(self, weights, v):
        return weights.mean(dim=1, keepdim=True) @ v


class OutputsAveraged(Heads):
    def weigh(self, weights, v):
        y = weights @ v
        return y.mean(dim=1, keepdim=True).expand_as(y)


class HeadsBackwards(Heads):
    def merge(self, y):
        return torch.cat([y[:, h] for h in reversed(range(self.n_head))], dim=-1)


EXPECTED = {
    "MultiHeadAttention": "split-without-transpose",
    "SplitByReshapeAlone": "split-without-transpose",
    "MergeByReshapeAlone": "merge-without-transpose",
    "BothByReshapeAlone": "split-and-merge-without-transpose",
    "FeaturesOutsideHeads": "heads-interleaved",
    "FeaturesOutsideHeadsBothWays": "heads-interleaved",
    "WeightsAveraged": "weights-mean-of-heads",
    "OutputsAveraged": "heads-averaged",
    "HeadsBackwards": "heads-reversed",
}
TASK = {}
