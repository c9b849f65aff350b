"""Right functions that lean on PyTorch: its own sdpa, complex numbers, cumulative sums, autograd."""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x, positions, base=10000.0):
    """Adjacent pairs as complex numbers."""
    angles = positions.to(x.dtype)[:, None] * base ** (-torch.arange(0, x.size(-1), 2, dtype=x.dtype) / x.size(-1))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def attention_with_rope(q, k, v, positions, base=10000.0):
    return F.scaled_dot_product_attention(rope(q, positions, base), rope(k, positions, base), v)


def linear_attention(q, k, v, causal=False):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if causal:
        state, total = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2), k.cumsum(2)
        return torch.einsum("bhtd,bhtde->bhte", q, state) / (q * total).sum(-1, keepdim=True)
    return q @ (k.mT @ v) / (q @ k.sum(2).unsqueeze(-1))


def attention_backward(q, k, v, dout, causal=False):
    """Autograd does it."""
    q, k, v = (y.detach().clone().requires_grad_(True) for y in (q, k, v))
    keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2)) if causal else None
    with torch.enable_grad():
        F.scaled_dot_product_attention(q, k, v, attn_mask=keep).backward(dout)
    return q.grad, k.grad, v.grad


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    leaves = [y.detach().clone().requires_grad_(True) for y in (x, W_q, W_k, W_v, W_o)]
    with torch.enable_grad():
        x, W_q, W_k, W_v, W_o = leaves
        (F.scaled_dot_product_attention(x @ W_q, x @ W_k, x @ W_v) @ W_o).backward(dout)
    return [y.grad for y in leaves]


class DropoutBySdpa(nn.Module):
    def __init__(self, dropout_p):
        super().__init__()
        self.dropout_p = dropout_p

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout_p if self.training else 0.0)


def flash_one_tile(q, k, v, block=4):
    """Returns the output and logsumexp."""
    logits = q @ k.mT / q.size(-1) ** 0.5
    return logits.softmax(-1) @ v, logits.logsumexp(-1)


RIGHT = ["flash_one_tile", "layer_backward", "rope", "linear_attention", "attention_backward"]
TASK = {"attention_with_rope": "rope", "DropoutBySdpa": "dropout"}
RIGHT += TASK
