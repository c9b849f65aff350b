"""V3: merged projection, a mask, dropout, an output projection. Articles 000 and 004.

    x                 [B, L, E]    a sequence of L tokens; E is width
    attention_mask    [B, L, L]    True: token i may look at token j. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

The rows of qkv.weight [3E, E] are those of q, then k, then v. Sequences of one batch have different lengths; the mask hides
what fills up the short ones (padding). One head.
A token that may look nowhere gets zeros, a mean or NaN (before the output projection): each is accepted, and named.
Judged: where the mask acts and which axis it hides; dropout in training and only there; the output projection; gradients.
"""

import math

import torch
from torch import nn


class SelfAttentionV3(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(width, width)

    def forward(self, x, attention_mask=None):
        # solution: projection, scores, mask, softmax, dropout, values, output projection
        q, k, v = self.qkv(x).chunk(3, dim=-1)                  # [B, L, 3E] into three times [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if attention_mask is not None:                          # before the softmax: exp makes 0 of it
            scores = scores.masked_fill(attention_mask == 0, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        if attention_mask is not None:                          # changes only a row that sees nothing: 0, not a mean
            weights = weights.masked_fill(attention_mask == 0, 0.0)
        weights = self.dropout(weights)                         # on the weights; does nothing after eval()
        context = weights @ v                                   # [B, L, E]
        return self.to_out(context)                             # [B, L, E]
        # end
