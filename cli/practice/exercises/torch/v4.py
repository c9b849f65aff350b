"""V4, the form to write in an interview: separate projections, mask, dropout, output projection. Articles 002 and 004.

    x                 [B, L, E]    a sequence of L tokens; E is width
    attention_mask    [B, L, L]    True: token i may look at token j. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head.
Judged: all that V3 is judged by, and that each projection is used where it belongs.
"""

import math

import torch
from torch import nn


class SelfAttentionV4(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attention_mask=None):
        # solution: projections, scores, mask, softmax, dropout, values, output projection
        q = self.to_q(x)                                        # [B, L, E]
        k = self.to_k(x)                                        # [B, L, E]
        v = self.to_v(x)                                        # [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if attention_mask is not None:                          # fill before the softmax
            scores = scores.masked_fill(attention_mask == 0, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        if attention_mask is not None:                          # changes only a row that sees nothing: 0, not a mean
            weights = weights.masked_fill(attention_mask == 0, 0.0)
        weights = self.dropout(weights)                         # on the weights; does nothing after eval()
        return self.to_out(weights @ v)                         # [B, L, E]
        # end
