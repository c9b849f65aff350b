"""V1, self-attention as the formula says it: three projections, one head. Articles 000 and 004.

    x          [B, L, E]    a sequence of L tokens; E is width
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head, so the width of a key is E. No mask, no output projection.
Judged: which projection makes what; scale, softmax and its axis; every number of the output, and every gradient.
"""

import math

import torch
from torch import nn


class SelfAttentionV1(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q = self.query(x)                                       # [B, L, E] what each token looks for
        k = self.key(x)                                         # [B, L, E] how it can be found
        v = self.value(x)                                       # [B, L, E] what it hands over
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, E]
        # end
