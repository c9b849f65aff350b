"""V3: merged projection, a mask, an output projection. Articles 000 and 004.

    x          [B, L, E]     a sequence of L tokens
    W_qkv      [E, 3E]       columns in the order q, k, v; y = x W + b
    b_qkv      [3E]
    W_o        [E, E]        output projection
    b_o        [E]
    mask       [B, L, L]     bool, mask[b, i, j] True: token i may look at token j. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

Sequences of one batch have different lengths; the mask hides what fills up the short ones (padding). One head. No dropout here:
the PyTorch exercise has it.
A token that may look nowhere gets zeros, a mean or NaN (before the output projection): each is accepted, and named.
Judged: where the mask acts and which axis it hides; the output projection.
"""

import numpy as np


def v3(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    # solution: projection, scores, mask, softmax, values, output projection
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)                # three times [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # before the softmax: exp makes 0 of it
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, L, E]
    return context @ W_o + b_o, weights                              # [B, L, E]
    # end
