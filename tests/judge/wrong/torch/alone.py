"""A wrong layer that shows where sizes differ."""

import torch
from torch import nn

n_embd = 32


class Head(nn.Module):
    """Of a width of its own; its scale is that of the whole embedding."""

    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5
        hidden = torch.ones_like(scores).triu(1).bool()
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x)


EXPECTED = {"Head": "scale-sqrt-embed"}
