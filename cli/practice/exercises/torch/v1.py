# qkv practice v1 --torch ; when done: qkv judge v1.py
"""V1, self-attention as the formula says it: three projections, one head. Articles 000 and 004.

    x          [B, L, E]    a sequence of L tokens; E is hidden_dim
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head, so the width of a key is E. No mask, no output projection.
Judged: which projection makes what; scale, softmax and its axis; every number of the output, and every gradient.
"""

import math

import torch
from torch import nn


class SelfAttentionV1(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q = self.query_proj(x)                                  # [B, L, E] what each token looks for
        k = self.key_proj(x)                                    # [B, L, E] how it can be found
        v = self.value_proj(x)                                  # [B, L, E] what it hands over
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, E]
        # end
