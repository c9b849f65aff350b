"""Multi-head attention: H small heads side by side. Articles 001, 002 and 004.

    x          [B, L, E]       a sequence of L tokens; E is embed_dim
    mask       [B, 1, L, L]    bool, mask[b, 0, i, j] True: token i may look at token j, in every head. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, H, L, L]

A head has head_dim = E / H columns of each projection: head h takes the columns h head_dim to (h + 1) head_dim.
Judged: how heads are cut and joined, and which width scales the scores; the mask in every head and every sequence; gradients.
"""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, mask=None):
        # solution: projections, heads, attention, heads joined, output projection
        B, L, E = x.shape

        def heads(y):                                           # [B, L, E] -> [B, H, L, d]
            return y.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)     # cut columns, then move heads forward

        q, k, v = heads(self.to_q(x)), heads(self.to_k(x)), heads(self.to_v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]: the width of a head, not E
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e20)           # [B, 1, L, L] serves all heads
        weights = torch.softmax(scores, dim=-1)                 # [B, H, L, L], rows sum to 1
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)           # a row that sees nothing: 0, not a mean
        context = weights @ v                                   # [B, H, L, d]
        context = context.transpose(1, 2).reshape(B, L, E)      # back: heads beside columns, then joined
        return self.to_out(context), weights                    # [B, L, E]
        # end
