"""More of scores and weights, in NumPy."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def scores_of(q, k, mask=None):
    """Right."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return s if mask is None else np.where(mask, s, -1e9)


def sdpa_root_of_keys(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(k.shape[-2])
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def sdpa_root_of_heads(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[1])
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def sdpa_squared_scores(q, k, v, mask=None):
    s = np.square(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def sdpa_cosines(q, k, v, mask=None):
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def sdpa_mean_scores(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = np.broadcast_to(s.mean(axis=1, keepdims=True), s.shape)
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def sdpa_mask_of_first_query(q, k, v, mask=None):
    return softmax(scores_of(q, k, None if mask is None else mask[:, :, :1])) @ v


def sdpa_lower_triangle(q, k, v):
    s = scores_of(q, k)
    return softmax(np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -1e9)) @ v


def v1_lower_triangle(x, W_q, b_q, W_k, b_k, W_v, b_v):
    L = x.shape[1]
    s = scores_of(x @ W_q + b_q, x @ W_k + b_k, np.tri(L, dtype=bool))
    return softmax(s) @ (x @ W_v + b_v)


def sdpa_over_matrix(q, k, v):
    s = scores_of(q, k)
    return softmax(s.reshape(*s.shape[:2], -1)).reshape(s.shape) @ v


def sdpa_tanh_weights(q, k, v):
    return np.tanh(scores_of(q, k)) @ v


def sdpa_divided_by_sum(q, k, v):
    s = scores_of(q, k)
    return s / s.sum(axis=-1, keepdims=True) @ v


def sdpa_powers_of_two(q, k, v, mask=None):
    s = scores_of(q, k, mask)
    e = np.exp2(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def sdpa_argmax(q, k, v, mask=None):
    s = scores_of(q, k, mask)
    return np.eye(k.shape[-2])[s.argmax(axis=-1)] @ v


def sdpa_average(q, k, v):
    return np.broadcast_to(v.mean(axis=2, keepdims=True), q.shape[:-1] + v.shape[-1:])


def v1_own_value_added(x, W_q, b_q, W_k, b_k, W_v, b_v):
    v = x @ W_v + b_v
    return softmax(scores_of(x @ W_q + b_q, x @ W_k + b_k)) @ v + v


def v1_weights_across(x, W_q, b_q, W_k, b_k, W_v, b_v):
    return softmax(scores_of(x @ W_q + b_q, x @ W_k + b_k)).swapaxes(1, 2) @ (x @ W_v + b_v)


EXPECTED = {
    "sdpa_root_of_keys": "scale-sqrt-length",
    "sdpa_root_of_heads": "scale-sqrt-heads",
    "sdpa_squared_scores": "squared-scores",
    "sdpa_cosines": "keys-normalised",
    "sdpa_mean_scores": "scores-mean-of-heads",
    "sdpa_mask_of_first_query": "mask-first-query-only",
    "sdpa_lower_triangle": "causal-unasked",
    "v1_lower_triangle": "causal-unasked",
    "sdpa_over_matrix": "softmax-over-all",
    "sdpa_tanh_weights": "tanh-weights",
    "sdpa_divided_by_sum": "scores-over-sum",
    "sdpa_powers_of_two": "softmax-base-2",
    "sdpa_argmax": "hard-maximum",
    "sdpa_average": "uniform-weights",
    "v1_own_value_added": "value-added",
    "v1_weights_across": "weights-transposed",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
