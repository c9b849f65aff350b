"""The backward pass by hand gone wrong."""

import math

import torch


def forward(q, k, causal):
    """(scores, weights)"""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if causal:
        queries, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(queries, keys).triu(keys - queries + 1).bool(), float("-inf"))
    return scores, torch.softmax(scores, dim=-1)


def attention_backward(q, k, v, dout, causal=False):
    """The Jacobian of softmax without its second term."""
    scale = 1 / math.sqrt(q.size(-1))
    _, p = forward(q, k, causal)
    dv = p.transpose(-2, -1) @ dout
    dp = dout @ v.transpose(-2, -1)
    ds = p * dp
    dq = ds @ k * scale
    dk = ds.transpose(-2, -1) @ q * scale
    return dq, dk, dv


def softmax_backward(p, dp):
    return p * (dp - (p * dp).sum(dim=-1, keepdim=True))


def backward_unscaled(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    ds = softmax_backward(p, dout @ v.mT)
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_scaled_once(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    ds = softmax_backward(p, dout @ v.mT)
    return ds @ k / math.sqrt(q.size(-1)), ds.mT @ q, p.mT @ dout


def backward_of_diagonal(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    ds = p * (1 - p) * (dout @ v.mT) / q.size(-1) ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_ds_transposed(q, k, v, dout, causal=False):
    """For as many queries as keys."""
    _, p = forward(q, k, causal)
    ds = softmax_backward(p, dout @ v.mT) / q.size(-1) ** 0.5
    return ds.mT @ k, ds @ q, p.mT @ dout


def backward_dv_of_untransposed(q, k, v, dout, causal=False):
    """For as many queries as keys."""
    _, p = forward(q, k, causal)
    ds = softmax_backward(p, dout @ v.mT) / q.size(-1) ** 0.5
    return ds @ k, ds.mT @ q, p @ dout


def backward_without_weights(q, k, v, dout, causal=False):
    """ds = dp - row sum; the factor p is forgotten."""
    _, p = forward(q, k, causal)
    dp = dout @ v.mT
    ds = (dp - (p * dp).sum(-1, keepdim=True)) / q.size(-1) ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_without_mask(q, k, v, dout, causal=False):
    _, p = forward(q, k, False)
    ds = softmax_backward(p, dout @ v.mT) / q.size(-1) ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_returned_exchanged(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    ds = softmax_backward(p, dout @ v.mT) / q.size(-1) ** 0.5
    return ds.mT @ q, ds @ k, p.mT @ dout


def backward_dv_of_scores(q, k, v, dout):
    scores, p = forward(q, k, False)
    ds = softmax_backward(p, dout @ v.mT) / q.size(-1) ** 0.5
    return ds @ k, ds.mT @ q, scores.mT @ dout


EXPECTED = {
    "attention_backward": "backward-no-row-term",
    "backward_unscaled": "backward-no-scale",
    "backward_scaled_once": "backward-scale-on-query-only",
    "backward_of_diagonal": "backward-diagonal-jacobian",
    "backward_ds_transposed": "backward-ds-transposed",
    "backward_dv_of_untransposed": "backward-dv-weights-not-transposed",
    "backward_without_weights": "backward-dp-without-weights",
    "backward_without_mask": "backward-causal-ignored",
    "backward_returned_exchanged": "backward-dq-dk-exchanged",
    "backward_dv_of_scores": "backward-dv-from-scores",
}
TASK = {name: "backward" for name in EXPECTED}
