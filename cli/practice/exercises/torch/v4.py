# qkv practice v4 --torch ; when done: qkv judge v4.py
"""V4, the form to write in an interview: separate projections, mask, dropout, output projection. Articles 002 and 004.

    x                 [B, L, E]    a sequence of L tokens; E is hidden_dim
    attention_mask    [B, L, L]    True: token i may look at token j. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head.
Judged: all that V3 is judged by, and that each projection is used where it belongs.
"""

import math

import torch
from torch import nn


class SelfAttentionV4(nn.Module):
    def __init__(self, hidden_dim, dropout_rate=0.1):
        super().__init__()
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)
        self.attention_dropout = nn.Dropout(dropout_rate)
        self.output_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, attention_mask=None):
        # solution: projections, scores, mask, softmax, dropout, values, output projection
        q = self.query_proj(x)                                  # [B, L, E]
        k = self.key_proj(x)                                    # [B, L, E]
        v = self.value_proj(x)                                  # [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if attention_mask is not None:                          # fill before the softmax
            scores = scores.masked_fill(attention_mask == 0, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        if attention_mask is not None:                          # changes only a row that sees nothing: 0, not a mean
            weights = weights.masked_fill(attention_mask == 0, 0.0)
        weights = self.attention_dropout(weights)               # on the weights; does nothing after eval()
        return self.output_proj(weights @ v)                    # [B, L, E]
        # end
