"""Grouped queries gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    """np.tile lays the groups side by side; np.repeat was meant."""
    B, L, E = x.shape
    d = E // num_heads
    q = (x @ W_q).reshape(B, L, num_heads, d).transpose(0, 2, 1, 3)
    k = (x @ W_k).reshape(B, L, num_kv_heads, d).transpose(0, 2, 1, 3)
    v = (x @ W_v).reshape(B, L, num_kv_heads, d).transpose(0, 2, 1, 3)
    k = np.tile(k, (1, num_heads // num_kv_heads, 1, 1))
    v = np.tile(v, (1, num_heads // num_kv_heads, 1, 1))
    out = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(d)) @ v
    return out.transpose(0, 2, 1, 3).reshape(B, L, E) @ W_o


def by_head(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, group_of):
    """A loop over heads; group_of(h) says which head of keys and values is read."""
    d = x.shape[-1] // num_heads
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    outs = []
    for h in range(num_heads):
        g = group_of(h)
        q_h, k_g, v_g = q[..., h * d : (h + 1) * d], k[..., g * d : (g + 1) * d], v[..., g * d : (g + 1) * d]
        outs.append(softmax(q_h @ k_g.transpose(0, 2, 1) / np.sqrt(d)) @ v_g)
    return np.concatenate(outs, axis=-1) @ W_o


def gqa_modulo(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    return by_head(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, lambda h: h % num_kv_heads)


def gqa_first_group(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    return by_head(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, lambda h: 0)


def gqa_mean(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    """Multi-query attention of the mean head."""
    B, L, E = x.shape
    d = E // num_heads
    q = (x @ W_q).reshape(B, L, num_heads, d)
    k = (x @ W_k).reshape(B, L, num_kv_heads, d).mean(axis=2)
    v = (x @ W_v).reshape(B, L, num_kv_heads, d).mean(axis=2)
    weights = softmax(np.einsum("bqhd,bkd->bhqk", q, k) / np.sqrt(d))
    return np.einsum("bhqk,bkd->bqhd", weights, v).reshape(B, L, E) @ W_o


EXPECTED = {
    "gqa": "gqa-heads-interleaved",
    "gqa_modulo": "gqa-heads-interleaved",
    "gqa_first_group": "gqa-first-group-only",
    "gqa_mean": "gqa-mean-of-groups",
}
TASK = {name: "gqa" for name in EXPECTED}
