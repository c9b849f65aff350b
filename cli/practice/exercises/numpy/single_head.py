"""One causal head with an output projection, as in a small language model. Article 003.

    x                       [B, L, E]    a sequence of L tokens
    W_q, W_k, W_v, W_o      [E, E]       y = x W, no biases
    returns out [B, L, E], or (out, weights) with weights [B, L, L]

Causal: token i sees the tokens 0 to i, itself included, and nothing of the future.
Judged: which side of the diagonal is hidden, and whether the diagonal is; the scale; the output projection.
"""

import numpy as np


def single_head(x, W_q, W_k, W_v, W_o):
    # solution: projections, causal scores, softmax, values, output projection
    q, k, v = x @ W_q, x @ W_k, x @ W_v                              # each [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    past = np.tril(np.ones(scores.shape[-2:], dtype=bool))           # [L, L]: key j <= query i
    scores = np.where(past, scores, -np.inf)                         # no row is empty: each token sees itself
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], 0 above the diagonal
    return (weights @ v) @ W_o, weights                              # [B, L, E]
    # end
