import torch
from torch import nn


class MultiHead(nn.Module):
    """mask: 1 表示可以看, 0 表示不能看"""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.wq(query), self.wk(key), self.wv(value)))
        s = q @ k.mT / q.size(-1) ** 0.5
        if mask is not None:
            s = s + (1 - mask.to(s.dtype)) * torch.finfo(s.dtype).min
        w = nn.functional.dropout(s.softmax(-1), 0.1, self.training)
        return self.wo((w @ v).transpose(1, 2).flatten(2))
