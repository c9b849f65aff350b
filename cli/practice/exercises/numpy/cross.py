"""Cross-attention: queries of one sequence, keys and values of another, as a decoder reads an encoder. Article 002.

    x                       [B, L, E]       asks
    memory                  [B, M, E]       answers; M is not L
    W_q, W_k, W_v, W_o      [E, E]          y = x W + b
    b_q, b_k, b_v, b_o      [E]
    num_heads               H               a head has d = E / H columns
    mask                    [B, 1, L, M]    bool, True: token i of x may look at token j of memory. None: at all
    returns out [B, L, E], or (out, weights) with weights [B, H, L, M]

Judged: what is projected from which sequence; heads; the mask.
"""

import numpy as np


def cross_attention(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    # solution: queries of x, keys and values of memory, attention in heads, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, T, E] -> [B, H, T, d]; T is L or M
        return y.reshape(B, -1, num_heads, d).transpose(0, 2, 1, 3)

    q = heads(x @ W_q + b_q)                                         # [B, H, L, d]
    k = heads(memory @ W_k + b_k)                                    # [B, H, M, d]
    v = heads(memory @ W_v + b_v)                                    # [B, H, M, d]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, M]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # over the tokens of memory
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)   # [B, L, E]
    return context @ W_o + b_o, weights
    # end
