import torch
from torch import nn


class MaskedSelfAttention(nn.Module):

    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(-2)
        pos = torch.arange(n, device=x.device)
        allowed = pos[None, :] <= pos[:, None]
        q, k, v = self.query(x), self.key(x), self.value(x)
        e = torch.einsum('...id,...jd->...ij', q, k) * q.size(-1) ** -0.5
        e = torch.where(allowed, e, torch.full_like(e, -torch.inf))
        a = e.softmax(-1)
        return torch.einsum('...ij,...jd->...id', a, v)
