"""Dropout in attention: where it sits. Article 000.

    q           [B, H, Tq, d]    queries
    k, v        [B, H, Tk, d]    keys and values
    returns out [B, H, Tq, d]

p is the chance that a weight of the softmax is dropped, each by itself. The mean over many calls in training is the output
without dropout. After eval() nothing is dropped.
Judged: by statistics of many calls: what is dropped, how often, what the others are multiplied by; evaluation.
"""

import math

import torch
from torch import nn


class DropoutAttention(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, q, k, v):
        # solution: weights, dropout, values
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)   # [B, H, Tq, Tk]
        weights = self.dropout(weights)                         # the module knows train() and eval(), and divides by 1 - p
        return weights @ v                                      # [B, H, Tq, d]
        # end
