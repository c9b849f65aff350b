"""Values and output gone wrong, in NumPy."""

import numpy as np


def v4(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    """The last projection is forgotten."""
    q, k, v = x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(x.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e20)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attend(q, k, v, mask):
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -1e20)) @ v


def v3_output_bias_unused(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return attend(q, k, v, mask) @ W_o


def v3_residual(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return x + attend(q, k, v, mask) @ W_o + b_o


def v3_output_across(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return np.einsum("ble,fe->blf", attend(q, k, v, mask), W_o) + b_o


def v3_output_bias_twice(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    out = attend(q, k, v, mask) @ W_o + b_o
    out += b_o
    return out


def v3_weighs_keys(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return attend(q, k, k, mask) @ W_o + b_o


def v3_weighs_queries(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return attend(q, k, q, mask) @ W_o + b_o


def single_head_unprojected(x, W_q, W_k, W_v, W_o):
    L = x.shape[1]
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    return attend(q, k, v, np.tri(L, dtype=bool))


def v4_query_weight_at_the_end(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    return attend(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, mask) @ W_q + b_q


EXPECTED = {
    "v4_query_weight_at_the_end": "output-uses-q-weights",
    "v4": "no-output-projection",
    "single_head_unprojected": "no-output-projection",
    "v3_output_bias_unused": "no-output-bias",
    "v3_residual": "residual-added",
    "v3_output_across": "output-transposed-weight",
    "v3_output_bias_twice": "output-bias-twice",
    "v3_weighs_keys": "values-from-keys",
    "v3_weighs_queries": "queries-as-values",
}
TASK = {**{name: "v3" for name in EXPECTED}, "v4": "v4", "single_head_unprojected": "single-head"}
