"""The scale of the scores gone wrong, in NumPy."""

import math

import numpy as np


def sdpa(q, k, v, mask=None):
    """Not scaled."""
    scores = q @ np.swapaxes(k, -1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    scores = scores - np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return weights @ v


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v, mask, scale):
    """Right, but for its scale."""
    scores = np.einsum("...qd,...kd->...qk", q, k) * scale
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ v


def sdpa_by_width(q, k, v, mask=None):
    return attend(q, k, v, mask, 1.0 / q.shape[-1])


def sdpa_scaled_twice(query, key, value, mask=None):
    """Queries and scores are each scaled by what would do once."""
    root = math.sqrt(query.shape[-1])
    return attend(query / root, key, value, mask, 1 / root)


def sdpa_multiplied(query, key, value, mask=None):
    return attend(query, key, value, mask, math.sqrt(query.shape[-1]))


def sdpa_some_constant(query, key, value, mask=None):
    return attend(query, key, value, mask, 0.37)


def sdpa_eighth(Q, K, V, mask=None):
    """1 / sqrt(64), copied from an example."""
    return attend(Q, K, V, mask, 0.125)


def sdpa_negative(Q, K, V, mask=None):
    return attend(Q, K, V, mask, -1 / np.sqrt(Q.shape[-1]))


def mha_scale_of_embed(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    B, L, E = x.shape
    q, k, v = ((x @ W + b).reshape(B, L, num_heads, -1).swapaxes(1, 2) for W, b in ((W_q, b_q), (W_k, b_k), (W_v, b_v)))
    y = attend(q, k, v, mask, E**-0.5)
    return y.swapaxes(1, 2).reshape(B, L, E) @ W_o + b_o


def gqa_scale_of_embed(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    B, L, E = x.shape
    d = E // num_heads
    q = (x @ W_q).reshape(B, L, num_heads, d).swapaxes(1, 2)
    k = (x @ W_k).reshape(B, L, num_kv_heads, d).swapaxes(1, 2).repeat(num_heads // num_kv_heads, axis=1)
    v = (x @ W_v).reshape(B, L, num_kv_heads, d).swapaxes(1, 2).repeat(num_heads // num_kv_heads, axis=1)
    return attend(q, k, v, None, E**-0.5).swapaxes(1, 2).reshape(B, L, E) @ W_o


EXPECTED = {
    "sdpa": "no-scale",
    "sdpa_by_width": ("scale-1-over-d", "scale-twice"),
    "sdpa_scaled_twice": ("scale-twice", "scale-1-over-d"),
    "sdpa_multiplied": "scale-multiplied",
    "sdpa_some_constant": "scale-other",
    "sdpa_eighth": ("scale-other", "scale-1-over-d", "scale-twice"),
    "sdpa_negative": "scale-negative",
    "mha_scale_of_embed": "scale-sqrt-embed",
    "gqa_scale_of_embed": "scale-sqrt-embed",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
