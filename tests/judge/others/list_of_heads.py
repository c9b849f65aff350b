import torch
from torch import nn
from torch.nn import functional as F


class OneHead(nn.Module):
    def __init__(self, d_model, d_head):
        super().__init__()
        self.q = nn.Linear(d_model, d_head)
        self.k = nn.Linear(d_model, d_head)
        self.v = nn.Linear(d_model, d_head)

    def forward(self, x, mask=None):
        q, k, v = self.q(x), self.k(x), self.v(x)
        score = torch.bmm(q, k.transpose(1, 2)) / k.size(-1) ** 0.5
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e9)
        return F.softmax(score, dim=-1).bmm(v)


class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(d_model, d_model // n_heads) for _ in range(n_heads)])
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        y = torch.cat([h(x, mask) for h in self.heads], dim=-1)
        return self.linear(y)
