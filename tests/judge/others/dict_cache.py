import torch
from torch import nn


class Remembering(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(n_state, n_state, bias=n != 1) for n in range(4))

    def forward(self, h, kv_cache=None):
        q, k, v = self.query(h), self.key(h), self.value(h)
        if kv_cache is not None:
            if "k" in kv_cache:
                k = torch.cat((kv_cache["k"], k), dim=1)
                v = torch.cat((kv_cache["v"], v), dim=1)
            kv_cache["k"], kv_cache["v"] = k, v
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in (q, k, v))
        (rows, width), keys = q.shape[-2:], k.shape[-2]
        keep = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        scores = (q @ k.transpose(-1, -2) * width**-0.5).masked_fill(~keep, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
