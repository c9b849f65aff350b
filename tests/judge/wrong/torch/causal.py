"""The causal mask gone wrong: by one, the other way round, a window, not there."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SingleHeadAttention(nn.Module):
    """diagonal=0 hides the token from itself; row 0 is empty."""

    def __init__(self, dim, causal=True):
        super().__init__()
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.W_o = nn.Linear(dim, dim, bias=False)
        self.causal = causal

    def forward(self, x):
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        scores = (Q @ K.transpose(-2, -1)) / math.sqrt(Q.size(-1))
        if self.causal:
            T = x.size(1)
            mask = torch.triu(torch.ones(T, T, device=x.device), diagonal=0).bool()
            scores = scores.masked_fill(mask, -1e9)
        return self.W_o(F.softmax(scores, dim=-1) @ V)


class Masked(nn.Module):
    """Right; what follows says which keys are hidden."""

    def __init__(self, dim, causal=True):
        super().__init__()
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.causal = causal

    def hidden(self, length):
        return torch.ones(length, length).triu(1).bool()

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        scores = q @ k.transpose(-2, -1) * x.size(-1) ** -0.5
        if self.causal:
            scores = scores.masked_fill(self.hidden(x.size(1)), float("-inf"))
        return self.wo(torch.softmax(scores, dim=-1) @ v)


class OneTooFar(Masked):
    def hidden(self, length):
        return torch.triu(torch.ones(length, length), diagonal=2) == 1


class PastHidden(Masked):
    def hidden(self, length):
        return torch.tril(torch.ones(length, length), diagonal=-1) == 1


class NothingHidden(Masked):
    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        return self.wo(F.scaled_dot_product_attention(q, k, v))


class StrictlyBefore(Masked):
    """The first token, which sees nothing, gives NaN."""

    def hidden(self, length):
        i = torch.arange(length)
        return i[None, :] >= i[:, None]


class LastThree(Masked):
    def hidden(self, length):
        i = torch.arange(length)
        return (i[None, :] > i[:, None]) | (i[None, :] <= i[:, None] - 3)


class LastFour(Masked):
    def hidden(self, length):
        ones = torch.ones(length, length)
        return ~(torch.tril(ones) * torch.triu(ones, -3)).bool()


def causal_attention_sees_next(q, k, v):
    offset = k.size(-2) - q.size(-2)
    keep = torch.ones(q.size(-2), k.size(-2)).tril(offset + 1).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def causal_attention_flipped(q, k, v):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    i = torch.arange(q.size(-2)).unsqueeze(1) + k.size(-2) - q.size(-2)
    j = torch.arange(k.size(-2)).unsqueeze(0)
    return scores.masked_fill(j < i, float("-inf")).softmax(-1) @ v


EXPECTED = {
    "SingleHeadAttention": ("causal-skips-self", "causal-off-by-one"),
    "StrictlyBefore": ("causal-skips-self", "causal-off-by-one"),
    "OneTooFar": ("causal-sees-next", "causal-off-by-one"),
    "PastHidden": "causal-flipped",
    "NothingHidden": "no-causal",
    "LastThree": "window-of-few",
    "LastFour": "window-of-few",
    "causal_attention_sees_next": ("causal-sees-next", "causal-off-by-one"),
    "causal_attention_flipped": "causal-flipped",
}
TASK = {
    **{name: "single-head" for name in ("OneTooFar", "PastHidden", "NothingHidden", "StrictlyBefore", "LastThree", "LastFour")},
    "causal_attention_sees_next": "causal",
    "causal_attention_flipped": "causal",
}
