"""Dropout in attention: where it sits and what it multiplies. Article 000.

    q           [B, H, Tq, d]    queries
    k, v        [B, H, Tk, d]    keys and values
    p           0 <= p < 1       the chance that a weight is dropped
    training    bool             False: nothing is dropped
    returns out [B, H, Tq, d]

Each weight of the softmax is dropped by itself. The mean over many calls is the output without dropout. Draw the random numbers
as you like, fresh in each call; no seed is asked for.
Judged: by statistics of many calls: what is dropped, how often, what the others are multiplied by; evaluation.
"""

import numpy as np

generator = np.random.default_rng()


def dropout_attention(q, k, v, p, training):
    # solution: weights, dropout, values
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, H, Tq, Tk]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    if training:
        kept = generator.random(weights.shape) >= p                  # each weight by itself
        weights = weights * kept / (1 - p)                           # so that the mean stays; rows no longer sum to 1
    return weights @ v                                               # [B, H, Tq, d]
    # end
