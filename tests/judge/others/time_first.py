import torch
from torch import nn


class GPTAttention(nn.Module):
    """x: (time, batch, channels)"""

    def __init__(self, channels, heads, dropout=0.1):
        super().__init__()
        self.heads, self.qkv, self.out, self.drop = heads, nn.Linear(channels, 3 * channels), nn.Linear(channels, channels), nn.Dropout(dropout)

    def forward(self, x):
        T, B, C = x.shape
        q, k, v = self.qkv(x).view(T, B, 3, self.heads, -1).permute(2, 1, 3, 0, 4)
        s = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(torch.ones(T, T).triu(1) > 0, float("-inf"))
        w = self.drop(s.softmax(-1))
        return self.out((w @ v).permute(2, 0, 1, 3).reshape(T, B, C))
