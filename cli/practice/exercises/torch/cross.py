"""Cross-attention: queries of one sequence, keys and values of another, as a decoder reads an encoder. Article 002.

    x          [B, L, E]       asks; E is embed_dim
    memory     [B, M, E]       answers; M is not L
    mask       [B, 1, L, M]    bool, True: token i of x may look at token j of memory. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, H, L, M]

A head has head_dim = E / H columns.
Judged: what is projected from which sequence; heads; the mask; gradients.
"""

import math

import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, memory, mask=None):
        # solution: queries of x, keys and values of memory, attention in heads, output projection
        B, L, E = x.shape

        def heads(y):                                           # [B, T, E] -> [B, H, T, d]; T is L or M
            return y.view(B, -1, self.num_heads, self.head_dim).transpose(1, 2)

        q = heads(self.to_q(x))                                 # [B, H, L, d]
        k = heads(self.to_k(memory))                            # [B, H, M, d]
        v = heads(self.to_v(memory))                            # [B, H, M, d]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, M]
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # over the tokens of memory
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)           # a row that sees nothing: 0, not a mean
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)        # [B, L, E]
        return self.to_out(context), weights
        # end
