"""Multi-head attention: H small heads side by side. Articles 001, 002 and 004.

    x                       [B, L, E]       a sequence of L tokens
    W_q, W_k, W_v, W_o      [E, E]          y = x W + b
    b_q, b_k, b_v, b_o      [E]
    num_heads               H               a head has d = E / H columns; head h takes the columns h d to (h + 1) d
    mask                    [B, 1, L, L]    bool, True: token i may look at token j, in every head. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, H, L, L]

Judged: how heads are cut and joined, and which width scales the scores; the mask in every head and every sequence.
"""

import numpy as np


def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    # solution: projections, heads, attention, heads joined, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, L, E] -> [B, H, L, d]
        return y.reshape(B, L, num_heads, d).transpose(0, 2, 1, 3)   # cut the columns first, then move the heads forward

    q, k, v = heads(x @ W_q + b_q), heads(x @ W_k + b_k), heads(x @ W_v + b_v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]: the width of a head, not E
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # [B, 1, L, L] serves all heads
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, H, L, d]
    context = context.transpose(0, 2, 1, 3).reshape(B, L, E)         # back: heads beside columns, then joined
    return context @ W_o + b_o, weights                              # [B, L, E]
    # end
