"""Projections gone wrong, in NumPy: y = x W + b with W of [in, out]."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def heads_of(y, num_heads):
    batch, length, embed = y.shape
    return y.reshape(batch, length, num_heads, embed // num_heads).transpose(0, 2, 1, 3)


def attend(q, k, v, W_o, b_o, num_heads, mask=None):
    """Right."""
    q, k, v = heads_of(q, num_heads), heads_of(k, num_heads), heads_of(v, num_heads)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e30)
    out = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    return out.reshape(*out.shape[:2], -1) @ W_o + b_o


def mha_keys_of_query_weight(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    q = x @ W_q + b_q
    k = x @ W_q + b_q
    v = x @ W_v + b_v
    return attend(q, k, v, W_o, b_o, num_heads, mask)


def mha_weights_across(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    """As PyTorch writes it; these weights are [in, out]."""
    return attend(x @ W_q.T + b_q, x @ W_k.T + b_k, x @ W_v.T + b_v, W_o, b_o, num_heads, mask)


def mha_biases_unused(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return attend(x @ W_q, x @ W_k, x @ W_v, W_o, b_o, num_heads, mask)


def mha_raw_values(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return attend(x @ W_q + b_q, x @ W_k + b_k, x, W_o, b_o, num_heads, mask)


def mha_queries_for_values(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    q = x @ W_q + b_q
    return attend(q, x @ W_k + b_k, q, W_o, b_o, num_heads, mask)


def mha_arguments_exchanged(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return attend(x @ W_k + b_k, x @ W_q + b_q, x @ W_v + b_v, W_o, b_o, num_heads, mask)


def scaled(q, k, v):
    """Right."""
    return softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])) @ v


def v2_keys_first(x, W_qkv, b_qkv):
    k, q, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v2_values_first(x, W_qkv, b_qkv):
    v, k, q = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v2_values_second(x, W_qkv, b_qkv):
    q, v, k = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v2_keys_values_queries(x, W_qkv, b_qkv):
    k, v, q = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v2_values_queries_keys(x, W_qkv, b_qkv):
    v, q, k = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v2_without_bias(x, W_qkv, b_qkv):
    q, k, v = np.split(x @ W_qkv, 3, axis=-1)
    return scaled(q, k, v)


def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """The first rung in full, keys from the query's weight."""
    q = np.einsum("ble,ef->blf", x, W_q) + b_q
    k = np.einsum("ble,ef->blf", x, W_q) + b_q
    v = np.einsum("ble,ef->blf", x, W_v) + b_v
    scores = np.einsum("bqe,bke->bqk", q, k) / np.sqrt(x.shape[-1])
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bqk,bke->bqe", weights, v)


EXPECTED = {
    "mha_keys_of_query_weight": "k-uses-q-weights",
    "v1": "k-uses-q-weights",
    "mha_weights_across": "weight-not-transposed",
    "mha_biases_unused": "no-qkv-bias",
    "v2_without_bias": "no-qkv-bias",
    "mha_raw_values": "v-unprojected",
    "mha_queries_for_values": "queries-as-values",
    "mha_arguments_exchanged": ("order-kqv", "scores-transposed"),
    "v2_keys_first": ("order-kqv", "scores-transposed"),
    "v2_values_first": "order-vkq",
    "v2_values_second": "order-qvk",
    "v2_keys_values_queries": "order-kvq",
    "v2_values_queries_keys": "order-vqk",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
