"""More of projections and heads, in NumPy: which weight, which bias, which sequence; how features are ordered."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def heads_of(y, n):
    return y.reshape(y.shape[0], y.shape[1], n, y.shape[2] // n).transpose(0, 2, 1, 3)


def mix(q, k, v, n, mask=None):
    """Right; [B, H, L, d]."""
    q, k, v = heads_of(q, n), heads_of(k, n), heads_of(v, n)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ v


def flat(y):
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def mha_queries_of_key_weight(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_k + b_k, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask)) @ W_o + b_o


def mha_values_of_key_weight(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_k + b_k, num_heads, mask)) @ W_o + b_o


def mha_values_of_query_weight(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_q + b_q, num_heads, mask)) @ W_o + b_o


def mha_query_bias_forgotten(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask)) @ W_o + b_o


def mha_value_bias_forgotten(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v, num_heads, mask)) @ W_o + b_o


def mha_raw_queries(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask)) @ W_o + b_o


def mha_raw_keys(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x, x @ W_v + b_v, num_heads, mask)) @ W_o + b_o


def cross_of_x_alone(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, num_heads)) @ W_o + b_o


def cross_exchanged(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads):
    return flat(mix(memory @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, num_heads)) @ W_o + b_o


def mha_value_weight_at_the_end(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask)) @ W_v + b_v


def mha_residual_too_early(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return (x + flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask))) @ W_o + b_o


def mha_features_before_heads(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    y = mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, num_heads, mask)
    return y.transpose(0, 2, 3, 1).reshape(x.shape) @ W_o + b_o


def mha_of_one_head(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return flat(mix(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, 1, mask)) @ W_o + b_o


def gqa_groups_backwards(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    q = heads_of(x @ W_q, num_heads)
    k, v = (np.repeat(heads_of(x @ W, num_kv_heads)[:, ::-1], num_heads // num_kv_heads, axis=1) for W in (W_k, W_v))
    return flat(softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v) @ W_o


EXPECTED = {
    "mha_queries_of_key_weight": "q-uses-k-weights",
    "mha_values_of_key_weight": ("v-uses-k-weights", "values-from-keys"),
    "mha_values_of_query_weight": ("v-uses-q-weights", "queries-as-values"),
    "mha_query_bias_forgotten": "no-q-bias",
    "mha_value_bias_forgotten": "no-v-bias",
    "mha_raw_queries": "q-unprojected",
    "mha_raw_keys": "k-unprojected",
    "cross_of_x_alone": "memory-ignored",
    "cross_exchanged": "queries-from-memory",
    "mha_value_weight_at_the_end": "output-uses-v-weights",
    "mha_residual_too_early": "residual-before-output",
    "mha_features_before_heads": "merge-interleaved",
    "mha_of_one_head": "heads-not-split",
    "gqa_groups_backwards": "gqa-groups-reversed",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
