"""Functions with one mistake each, as people write them: for as many queries as keys only, a step of training with a model."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


def sdpa_across(q, k, v):
    """For as many queries as keys."""
    return F.softmax(torch.einsum("bhqd,bhkd->bhkq", q, k) / q.shape[-1] ** 0.5, dim=-1) @ v


class OneBehind(nn.Module):
    """Gradients are asked for, the step is taken with the old ones, and only then are they stored."""

    def __init__(self, vocab_size, context_len, width):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, width), nn.Embedding(context_len, width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        h = self.tok(tokens) + self.pos.weight[: tokens.size(1)]
        return self.head(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), is_causal=True))


def train_step(model, optimizer, tokens):
    loss = F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    optimizer.step()
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    return loss.item()


@dataclass
class Config:
    n_embd: int = 8
    n_head: int = 1


class CausalAttention(nn.Module):
    """Of the configuration only forward reads the number of heads."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, self.qkv, self.out = config, *(nn.Linear(config.n_embd, n * config.n_embd) for n in (3, 1))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.config.n_head, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


EXPECTED = {
    "CausalAttention": "merge-without-transpose",
    "sdpa_across": ("scores-transposed", "order-kqv"),
    "OneBehind": "lm-step-one-behind",
}
TASK = {"sdpa_across": "sdpa", "OneBehind": "lm"}
