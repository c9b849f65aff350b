"""Attention in blocks of keys with an online softmax: what FlashAttention does. Named in article 003, an extension here.

    q             [B, H, Tq, d]    queries
    k, v          [B, H, Tk, d]    keys and values
    block_size    n                keys taken at once; it need not divide Tk, and may be 1 or more than Tk
    causal        False            True: query i sees the keys up to i + Tk - Tq
    returns out [B, H, Tq, d]

The same numbers as plain attention, without an array of Tq x Tk. What is kept for each query from block to block: the largest
score so far, the sum of exponentials, the unfinished output.
Judged: several block sizes, blocks in which the maximum grows, the short last block, causal.
"""

import numpy as np


def flash(q, k, v, block_size, causal=False):
    # solution: for each block: scores, new maximum, rescale what was summed, add
    Tq, Tk = q.shape[-2], k.shape[-2]
    query = np.arange(Tq)[:, None] + (Tk - Tq)                       # [Tq, 1]
    largest = np.full(q.shape[:-1] + (1,), -1e30)                    # [B, H, Tq, 1]; finite: -inf - -inf would be NaN
    total = np.zeros_like(largest)                                   # [B, H, Tq, 1]
    out = np.zeros_like(q)                                           # [B, H, Tq, d]
    for begin in range(0, Tk, block_size):
        keys = np.arange(begin, min(begin + block_size, Tk))         # the last block may be short
        scores = q @ np.swapaxes(k[..., keys, :], -1, -2) / np.sqrt(q.shape[-1])     # [B, H, Tq, n]
        if causal:
            scores = np.where(keys <= query, scores, -np.inf)
        new = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        rescale = np.exp(largest - new)                              # sums so far had the old maximum in their exponents
        weights = np.exp(scores - new)                               # [B, H, Tq, n], not yet divided
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        out = out * rescale + weights @ v[..., keys, :]
        largest = new
    return out / total                                               # once, at the end
    # end
