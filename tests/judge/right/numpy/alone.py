"""Right functions of as many queries as keys: a row for each key, or one length for both."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal_attention_by_blocks(q, k, v, block=3):
    """Blocks of queries, each of which sees the keys up to itself."""
    out = np.zeros_like(v)
    for i in range(0, q.shape[-2], block):
        rows, seen = np.s_[..., i : i + block, :], np.s_[..., : i + block, :]
        scores = q[rows] @ k[seen].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        later = np.arange(scores.shape[-1]) > i + np.arange(scores.shape[-2])[:, None]
        out[rows] = softmax(np.where(later, -np.inf, scores)) @ v[seen]
    return out


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


RIGHT = ["causal_attention_by_blocks", "flash_attention"]
