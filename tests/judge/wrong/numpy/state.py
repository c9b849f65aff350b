"""What one call leaves behind for the next, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def v1_scales_the_weight(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """*= writes into the caller's weight."""
    W_q *= x.shape[-1] ** -0.5
    q = x @ W_q + b_q * x.shape[-1] ** -0.5
    k, v = x @ W_k + b_k, x @ W_v + b_v
    return softmax(q @ k.swapaxes(-1, -2)) @ v


def sdpa_scales_the_caller(q, k, v, mask=None):
    """/= writes into the caller's array: at the second call it is scaled twice."""
    q /= np.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


EXPECTED = {"v1_scales_the_weight": "inputs-changed", "sdpa_scales_the_caller": "inputs-changed"}
TASK = {"v1_scales_the_weight": "v1", "sdpa_scales_the_caller": "sdpa"}
