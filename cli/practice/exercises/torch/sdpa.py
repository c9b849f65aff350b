"""Scaled dot-product attention: the formula itself. Article 003.

Each query is compared with every key, scaled by the width of a key; the softmax of these scores weighs the values.

    q       [B, H, Tq, d]     queries
    k, v    [B, H, Tk, d]     keys and values; Tk need not be Tq
    mask    [B, 1, Tq, Tk]    bool, True: may look. None: may look everywhere
    returns out [B, H, Tq, d], or (out, weights) with weights [B, H, Tq, Tk]

A query that may look nowhere gives zeros, a mean or NaN: each is accepted, and named.
Judged: out, weights and gradients; the mask; scores in the hundreds.
"""

import math

import torch


def sdpa(q, k, v, mask=None):
    # solution: scores, scale, mask, softmax, values
    scores = q @ k.transpose(-2, -1)                            # [B, H, Tq, Tk]: query i times key j
    scores = scores / math.sqrt(k.size(-1))                     # otherwise they grow with d, and softmax picks one key
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e20)               # before the softmax, so that the rest still sums to 1
    weights = torch.softmax(scores, dim=-1)                     # [B, H, Tq, Tk]: over the keys, each row sums to 1
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)               # a row that sees nothing: 0, not a mean
    return weights @ v, weights                                 # [B, H, Tq, d]: a mean of values for each query
    # end
