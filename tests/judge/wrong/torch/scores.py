"""Scores and weights gone wrong: transposed, absolute, bent, squared."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class TransposedScores(nn.Module):
    """The fourth rung with K @ Q.T."""

    def __init__(self, hidden_dim, dropout_rate=0.0):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)
        self.attention_dropout = nn.Dropout(dropout_rate)
        self.output_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, attention_mask=None):
        Q, K, V = self.query_proj(x), self.key_proj(x), self.value_proj(x)
        attention_weight = K @ Q.transpose(-1, -2) / math.sqrt(self.hidden_dim)
        if attention_mask is not None:
            attention_weight = attention_weight.masked_fill(attention_mask == 0, float("-1e20"))
        attention_weight = self.attention_dropout(torch.softmax(attention_weight, dim=-1))
        return self.output_proj(attention_weight @ V)


class AbsoluteScores(nn.Module):
    """The first rung; "similarity cannot be negative"."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        Q, K, V = self.query_proj(x), self.key_proj(x), self.value_proj(x)
        attention_value = torch.matmul(Q, K.transpose(-1, -2)).abs()
        return torch.softmax(attention_value / math.sqrt(self.hidden_dim), dim=-1) @ V


def sdpa_of_transposed_scores(q, k, v):
    """For as many queries as keys."""
    scores = torch.einsum("bhqd,bhkd->bhkq", q, k) / q.shape[-1] ** 0.5
    return F.softmax(scores, dim=-1) @ v


def sdpa_tanh(q, k, v, mask=None):
    """Soft cap with a cap of one."""
    scores = torch.tanh(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def sdpa_squared_weights(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    weights = F.softmax(scores, dim=-1) ** 2
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def sdpa_squared_weights_left_so(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    return F.softmax(scores, dim=-1).pow(2) @ v


EXPECTED = {
    "TransposedScores": ("scores-transposed", "order-kqv"),
    "sdpa_of_transposed_scores": ("scores-transposed", "order-kqv"),
    "AbsoluteScores": "absolute-scores",
    "sdpa_tanh": "tanh-scores",
    "sdpa_squared_weights": ("squared-weights", "scale-other"),
    "sdpa_squared_weights_left_so": "squared-weights",
}
TASK = {
    "TransposedScores": "v4",
    "AbsoluteScores": "v1",
    "sdpa_of_transposed_scores": "sdpa",
    "sdpa_tanh": "sdpa",
    "sdpa_squared_weights": "sdpa",
    "sdpa_squared_weights_left_so": "sdpa",
}
