# qkv practice self-attention --torch ; when done: qkv judge self_attention.py
"""Self-attention whose head is narrower or wider than the input. Article 001.

    x          [B, L, E]    a sequence of L tokens; E is embed_dim, and d_k is not E
    returns out [B, L, d_k], or (out, weights) with weights [B, L, L]

One head, no mask, no output projection.
Judged: which of the two widths the scale takes; shapes; every number of the output, and every gradient.
"""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, d_k):
        super().__init__()
        self.W_Q = nn.Linear(embed_dim, d_k)
        self.W_K = nn.Linear(embed_dim, d_k)
        self.W_V = nn.Linear(embed_dim, d_k)

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q, k, v = self.W_Q(x), self.W_K(x), self.W_V(x)         # each [B, L, d_k]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]: a score sums d_k products, not E
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, d_k]
        # end
