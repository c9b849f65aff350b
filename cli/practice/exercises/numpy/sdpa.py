"""Scaled dot-product attention: the formula itself. Article 003.

Each query is compared with every key, scaled by the width of a key; the softmax of these scores weighs the values.

    q       [B, H, Tq, d]     queries
    k, v    [B, H, Tk, d]     keys and values; Tk need not be Tq
    mask    [B, 1, Tq, Tk]    bool, True: may look. None: may look everywhere
    returns out [B, H, Tq, d], or (out, weights) with weights [B, H, Tq, Tk]

A query that may look nowhere gives zeros, a mean or NaN: each is accepted, and named.
Judged: out and weights; the mask; scores in the hundreds, which must not overflow.
"""

import numpy as np


def sdpa(q, k, v, mask=None):
    # solution: scores, scale, mask, softmax, values
    scores = q @ np.swapaxes(k, -1, -2)                              # [B, H, Tq, Tk]: query i times key j
    scores = scores / np.sqrt(k.shape[-1])                           # otherwise they grow with d, and softmax picks one key
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # before the softmax, so that the rest still sums to 1
    scores = scores - scores.max(axis=-1, keepdims=True)             # the same softmax; exp of 0 at most cannot overflow
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, Tq, Tk]: over the keys, each row sums to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    out = weights @ v                                                # [B, H, Tq, d]: a mean of values for each query
    return out, weights
    # end
