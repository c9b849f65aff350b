"""V1, self-attention as the formula says it: three projections, one head. Articles 000 and 004.

    x                  [B, L, E]    a sequence of L tokens
    W_q, W_k, W_v      [E, E]       y = x W + b
    b_q, b_k, b_v      [E]
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

One head, so the width of a key is E. No mask, no output projection.
Judged: which weight makes what; scale, softmax and its axis; every number of the output.
"""

import numpy as np


def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    # solution: projections, scores, softmax, values
    q = x @ W_q + b_q                                                # [B, L, E] what each token looks for
    k = x @ W_k + b_k                                                # [B, L, E] how it can be found
    v = x @ W_v + b_v                                                # [B, L, E] what it hands over
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, E]
    # end
