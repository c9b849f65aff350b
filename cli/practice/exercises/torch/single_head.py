"""One causal head with an output projection, as in a small language model. Article 003.

    x          [B, L, E]    a sequence of L tokens; E is width
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

Causal: token i sees the tokens 0 to i, itself included, and nothing of the future; with causal=False it sees all. No biases.
Judged: which side of the diagonal is hidden, and whether the diagonal is; the scale; the output projection; gradients.
"""

import math

import torch
from torch import nn


class SingleHeadAttention(nn.Module):
    def __init__(self, width, causal=True):
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.causal = causal

    def forward(self, x):
        # solution: projections, causal scores, softmax, values, output projection
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)         # each [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if self.causal:
            past = torch.ones_like(scores, dtype=torch.bool).tril()     # key j <= query i
            scores = scores.masked_fill(~past, float("-inf"))   # no row is empty: each token sees itself
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], 0 above the diagonal
        return self.W_o(weights @ v)                            # [B, L, E]
        # end
