"""V2: the same function as V1 with one matrix for q, k and v. Articles 000 and 004.

    x          [B, L, E]     a sequence of L tokens
    W_qkv      [E, 3E]       columns in the order q, k, v; y = x W + b
    b_qkv      [3E]
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head, no mask, no output projection. One product is faster than three where matrices are small.
Judged: the order of the three parts; scale, softmax and its axis.
"""

import numpy as np


def v2(x, W_qkv, b_qkv):
    # solution: one projection, split in three, attention
    qkv = x @ W_qkv + b_qkv                                          # [B, L, 3E]
    q, k, v = np.split(qkv, 3, axis=-1)                              # three times [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, E]
    # end
