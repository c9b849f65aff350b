"""V2: the same function as V1 with one matrix for q, k and v. Articles 000 and 004.

    x          [B, L, E]    a sequence of L tokens; E is width
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

The rows of qkv.weight [3E, E] are those of q, then k, then v. One head, no mask, no output projection.
Judged: the order of the three parts; scale, softmax and its axis; gradients.
"""

import math

import torch
from torch import nn


class SelfAttentionV2(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        # solution: one projection, split in three, attention
        q, k, v = self.qkv(x).chunk(3, dim=-1)                  # [B, L, 3E] into three times [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, E]
        # end
