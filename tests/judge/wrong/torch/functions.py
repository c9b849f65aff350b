"""Functions with one mistake each, as people write them: PyTorch's own sdpa, complex numbers, cumulative sums, split tiles."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def sdpa_of_keys(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)


def sdpa_across(q, k, v):
    """For as many queries as keys."""
    return F.softmax(torch.einsum("bhqd,bhkd->bhkq", q, k) / q.shape[-1] ** 0.5, dim=-1) @ v


def sdpa_squared(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    return (s if mask is None else s.masked_fill(mask.logical_not(), float("-inf"))).softmax(-1).pow(2) @ v


def sdpa_by_heads(q, k, v, mask=None):
    """size(1) of [B, H, T, d] was meant to be the width."""
    s = q @ k.mT / q.size(1)
    return (s if mask is None else s.masked_fill(~mask.bool(), float("-inf"))).softmax(-1) @ v


def causal_sees_next(q, k, v):
    keep = torch.ones(q.size(-2), k.size(-2)).tril(k.size(-2) - q.size(-2) + 1).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def causal_last_four(q, k, v):
    ones, shift = torch.ones(q.size(-2), k.size(-2)), k.size(-2) - q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(ones.tril(shift) * ones.triu(shift - 3)).bool())


def rope_from_one(x, positions, base=10000.0):
    """Adjacent pairs as complex numbers; positions from 1."""
    speed = base ** (-torch.arange(0, x.size(-1), 2, dtype=x.dtype) / x.size(-1))
    angle = (positions + 1).to(x.dtype)[:, None] * speed
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def rope_without_minus(x, positions, base=10000.0):
    """roll moves the halves; nobody changes a sign."""
    half = x.size(-1) // 2
    angle = torch.outer(positions.to(x.dtype), base ** (-torch.arange(half, dtype=x.dtype) / half)).repeat(1, 2)
    return x * angle.cos() + x.roll(half, dims=-1) * angle.sin()


def linear_not_divided(q, k, v, causal=False):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if causal:
        return torch.einsum("bhtd,bhtde->bhte", q, torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2))
    return q @ (k.mT @ v)


def flash_sum_of_softmaxes(q, k, v, block_size):
    """A softmax for each tile; outputs are added."""
    tiles = zip(k.split(block_size, dim=2), v.split(block_size, dim=2))
    return sum(torch.softmax(q @ keys.mT / math.sqrt(q.size(-1)), dim=-1) @ values for keys, values in tiles)


def flash_padded(q, k, v, block_size):
    """Filled up with zeros to whole tiles; the zeros are keys too."""
    k, v = (F.pad(y, (0, 0, 0, -k.size(2) % block_size)) for y in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def backward_of_autograd_unscaled(q, k, v, dout, causal=False):
    """Autograd of the unscaled scores at the weights of the scaled ones."""
    keep = torch.ones(q.size(2), k.size(2)).tril(k.size(2) - q.size(2)).bool() if causal else torch.ones(1, dtype=torch.bool)
    with torch.enable_grad():
        scores = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~keep, float("-inf")).detach().requires_grad_(True)
        (ds,) = torch.autograd.grad(scores.softmax(-1) @ v, scores, dout)
    return ds @ k, ds.mT @ q, scores.softmax(-1).detach().mT @ dout


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


EXPECTED = {
    "sdpa_of_keys": "values-from-keys",
    "sdpa_across": ("scores-transposed", "order-kqv"),
    "sdpa_squared": "squared-weights",
    "sdpa_by_heads": "scale-sqrt-heads",
    "causal_sees_next": "causal-sees-next",
    "causal_last_four": "window-of-few",
    "rope_from_one": "rope-positions-from-one",
    "rope_without_minus": "rope-sign-missing",
    "linear_not_divided": "linear-not-normalised",
    "flash_sum_of_softmaxes": "flash-blocks-added",
    "flash_padded": "flash-last-block-padded",
    "backward_of_autograd_unscaled": "backward-no-scale",
    "OneBehind": "lm-step-one-behind",
}
TASK = {name: name.split("_")[0] for name in EXPECTED} | {"OneBehind": "lm"}
