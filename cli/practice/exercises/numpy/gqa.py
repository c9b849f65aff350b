"""Grouped-query attention: several query heads share one head of keys and values. Named in article 003, an extension here.

    x               [B, L, E]       a sequence of L tokens
    W_q, W_o        [E, E]          y = x W, no biases
    W_k, W_v        [E, Hkv d]      d = E / H
    num_heads       H               heads of queries
    num_kv_heads    Hkv             heads of keys and values; H is a multiple of it
    returns out [B, L, E], or (out, weights) with weights [B, H, L, L]

Neighbours share: with H = 6 and Hkv = 2 the query heads 0, 1, 2 read keys and values 0, the heads 3, 4, 5 read 1. No mask.
Judged: which query head reads which keys; how heads are cut and joined; the scale.
"""

import numpy as np


def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    # solution: projections, heads, keys and values for each group, attention, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, L, n d] -> [B, n, L, d]
        return y.reshape(B, L, -1, d).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)         # [B, H, L, d], and twice [B, Hkv, L, d]
    group = num_heads // num_kv_heads
    k = np.repeat(k, group, axis=1)                                  # [B, H, L, d] as 0 0 0 1 1 1; tile would give 0 1 0 1 0 1
    v = np.repeat(v, group, axis=1)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)   # [B, L, E]
    return context @ W_o, weights
    # end
