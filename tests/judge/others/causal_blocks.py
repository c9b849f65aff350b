import numpy as np


def causal_attention_by_blocks(q, k, v, block=3):
    """Blocks of queries, each of which sees the keys up to itself; as many queries as keys."""
    out = np.zeros_like(v)
    for i in range(0, q.shape[-2], block):
        rows, seen = np.s_[..., i : i + block, :], np.s_[..., : i + block, :]
        scores = q[rows] @ k[seen].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        later = np.arange(scores.shape[-1]) > i + np.arange(scores.shape[-2])[:, None]
        scores = np.where(later, -np.inf, scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out[rows] = shares / shares.sum(-1, keepdims=True) @ v[seen]
    return out
