"""A right function of as many queries as keys: one length for both."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def flash_attention(queries, keys, values, tile=4):
    """(n, d) each, over tiles of keys."""
    n, d = queries.shape
    top, total, out = np.full((n, 1), -np.inf), np.zeros((n, 1)), np.zeros((n, d))
    for j in range(0, n, tile):
        scores = queries @ keys[j : j + tile].T / d**0.5
        higher = np.maximum(top, scores.max(-1, keepdims=True))
        shrink, shares = np.exp(top - higher), np.exp(scores - higher)
        top, total, out = higher, total * shrink + shares.sum(-1, keepdims=True), out * shrink + shares @ values[j : j + tile]
    return out / total


RIGHT = ["flash_attention"]
