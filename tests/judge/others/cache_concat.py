import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, t, c = x.shape
        shape = (b, t, self.num_heads, c // self.num_heads)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v)
        s = k.size(2)
        logits = q @ k.transpose(-2, -1) / (c // self.num_heads) ** 0.5
        keep = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)
        logits = logits.masked_fill(~keep, float('-inf'))
        y = torch.softmax(logits, dim=-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, c)), present
