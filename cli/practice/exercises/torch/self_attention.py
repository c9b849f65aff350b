"""Self-attention whose head is narrower or wider than the input. Article 001.

    x          [B, L, E]    a sequence of L tokens; E is width, and d_k is not E
    returns out [B, L, d_k], or (out, weights) with weights [B, L, L]

One head, no mask, no output projection.
Judged: which of the two widths the scale takes; shapes; every number of the output, and every gradient.
"""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width, d_k):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(width, d_k) for _ in range(3))

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)         # each [B, L, d_k]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]: a score sums d_k products, not E
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, d_k]
        # end
