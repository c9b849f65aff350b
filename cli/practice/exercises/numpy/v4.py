"""V4, the form to write in an interview: separate projections, mask, output projection. Articles 002 and 004.

    x                       [B, L, E]    a sequence of L tokens
    W_q, W_k, W_v, W_o      [E, E]       y = x W + b
    b_q, b_k, b_v, b_o      [E]
    mask                    [B, L, L]    bool, mask[b, i, j] True: token i may look at token j. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head. No dropout here: the PyTorch exercise has it.
Judged: all that V3 is judged by, and that each projection is used where it belongs.
"""

import numpy as np


def v4(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    # solution: projections, scores, mask, softmax, values, output projection
    q = x @ W_q + b_q                                                # [B, L, E]
    k = x @ W_k + b_k                                                # [B, L, E]
    v = x @ W_v + b_v                                                # [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # fill before the softmax
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, L, E]
    return context @ W_o + b_o, weights                              # [B, L, E]
    # end
