import numpy as np


def attention_streamed(q, k, v):
    """One key at a time."""
    top, total, out = np.full((*q.shape[:-1], 1), -np.inf), 0.0, np.zeros_like(q)
    for j in range(k.shape[-2]):
        score = (q * k[..., j : j + 1, :]).sum(-1, keepdims=True) / np.sqrt(q.shape[-1])
        higher = np.maximum(top, score)
        total = total * np.exp(top - higher) + np.exp(score - higher)
        out = out * np.exp(top - higher) + np.exp(score - higher) * v[..., j : j + 1, :]
        top = higher
    return out / total
