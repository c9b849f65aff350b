"""The softmax gone wrong: over which axis, how often, or something else."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SoftmaxDim1(nn.Module):
    """dim=1 was right as long as there were no heads."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_embd, n_embd)
        self.key = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = q @ k.transpose(-2, -1) / math.sqrt(C // self.n_head)
        if mask is not None:
            att = att.masked_fill(mask == 0, -1e9)
        att = F.softmax(att, dim=1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class SelfAttentionV1(nn.Module):
    """The first rung, dim=1 of [B, L, L]: over the queries."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        Q, K, V = self.query_proj(x), self.key_proj(x), self.value_proj(x)
        scores = torch.matmul(Q, K.transpose(-1, -2)) / math.sqrt(self.hidden_dim)
        return torch.matmul(torch.softmax(scores, dim=1), V)


class Weighed(nn.Module):
    """Right; what follows makes weights of scores otherwise."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.values = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def normalise(self, scores):
        return torch.softmax(scores, dim=-1)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (f(x).reshape(b, n, self.heads, e // self.heads) for f in (self.queries, self.keys, self.values))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / (e // self.heads) ** 0.5
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-inf"))
        return self.fc_out(torch.einsum("nhqk,nkhd->nqhd", self.normalise(energy), v).reshape(b, n, e))


class OverQueries(Weighed):
    def normalise(self, scores):
        return scores.softmax(dim=-2)


class OverBatch(Weighed):
    def normalise(self, scores):
        return scores.softmax(dim=0)


class BareExponential(Weighed):
    """exp overflows where scores are large."""

    def normalise(self, scores):
        weights = torch.exp(scores)
        return weights / weights.sum(dim=-1, keepdim=True)


class Sigmoid(Weighed):
    def normalise(self, scores):
        return torch.sigmoid(scores)


class Twice(Weighed):
    def normalise(self, scores):
        return F.softmax(F.softmax(scores, dim=-1), dim=-1)


class Relu(Weighed):
    def normalise(self, scores):
        return F.relu(scores)


class ExponentialAlone(Weighed):
    def normalise(self, scores):
        return torch.exp(scores)


class DividedByLength(Weighed):
    def normalise(self, scores):
        return F.softmax(scores, dim=-1) / scores.size(-1)


class NoSoftmax(nn.Module):
    """The first rung without softmax."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x):
        attention = self.q(x) @ self.k(x).transpose(-1, -2) / math.sqrt(self.dim)
        return attention @ self.v(x)


class NoSoftmaxMHA(nn.Module):
    """Scores are the weights."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.linear_q, self.linear_k, self.linear_v))
        y = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))) @ v
        return self.linear_out(y.transpose(1, 2).reshape(b, n, e))


def sdpa_divided_by_length_only(q, k, v):
    """scores / Tk, no softmax."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores / k.size(-2) @ v


def sdpa_returns_scores(q, k, v, mask=None):
    """The second is not what the first was made with."""
    attention = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        attention = attention.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(attention, dim=-1), v), attention


class ReturnsScores(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = q @ k.mT * q.size(-1) ** -0.5
        p = (weights if mask is None else weights.masked_fill(~mask.bool(), -1e9)).softmax(-1)
        return self.out((p @ v).transpose(1, 2).flatten(2)), weights


EXPECTED = {
    "SoftmaxDim1": "softmax-over-heads",
    "SelfAttentionV1": "softmax-over-queries",
    "OverQueries": "softmax-over-queries",
    "OverBatch": "softmax-over-batch",
    "BareExponential": "no-max-subtraction",
    "Sigmoid": "sigmoid",
    "Twice": "softmax-twice",
    "Relu": "relu-weights",
    "ExponentialAlone": "weights-not-normalised",
    "DividedByLength": "normalised-by-length",
    "NoSoftmax": "no-softmax",
    "NoSoftmaxMHA": "no-softmax",
    "sdpa_divided_by_length_only": "normalised-by-length",
    "sdpa_returns_scores": "weights-are-scores",
    "ReturnsScores": "weights-are-scores",
}
TASK = {"NoSoftmax": "v1", "sdpa_divided_by_length_only": "sdpa", "sdpa_returns_scores": "sdpa", "ReturnsScores": "mha"}
