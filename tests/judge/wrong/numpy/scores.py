"""Scores and weights gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def hide(scores, mask):
    return scores if mask is None else np.where(mask, scores, -np.inf)


def sdpa_keys_ask(q, k, v):
    """For as many queries as keys."""
    return softmax(k @ q.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def self_attention(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """K Q^T."""
    q, k, v = x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v
    return softmax(k @ q.transpose(0, 2, 1) / np.sqrt(W_q.shape[1])) @ v


def sdpa_absolute(q, k, v, mask=None):
    scores = np.abs(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return softmax(hide(scores, mask)) @ v


def sdpa_tanh(q, k, v, mask=None):
    scores = np.tanh(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return softmax(hide(scores, mask)) @ v


def sdpa_sharpened(q, k, v, mask=None):
    """Weights squared, then brought back to a sum of one."""
    weights = np.square(softmax(hide(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), mask)))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def sdpa_squared(q, k, v, mask=None):
    weights = softmax(hide(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), mask))
    return weights * weights @ v


EXPECTED = {
    "sdpa_keys_ask": ("scores-transposed", "order-kqv"),
    "self_attention": ("scores-transposed", "order-kqv"),
    "sdpa_absolute": "absolute-scores",
    "sdpa_tanh": "tanh-scores",
    "sdpa_sharpened": ("squared-weights", "scale-other"),
    "sdpa_squared": "squared-weights",
}
TASK = {name: "sdpa" for name in EXPECTED if name != "self_attention"}
