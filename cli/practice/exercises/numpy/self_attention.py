"""Self-attention whose head is narrower or wider than the input. Article 001.

    x                  [B, L, E]      a sequence of L tokens
    W_q, W_k, W_v      [E, d_k]       y = x W + b; d_k is not E
    b_q, b_k, b_v      [d_k]
    returns out [B, L, d_k], or (out, weights) with weights [B, L, L]

One head, no mask, no output projection.
Judged: which of the two widths the scale takes; shapes; every number of the output.
"""

import numpy as np


def self_attention(x, W_q, b_q, W_k, b_k, W_v, b_v):
    # solution: projections, scores, softmax, values
    q = x @ W_q + b_q                                                # [B, L, d_k]
    k = x @ W_k + b_k                                                # [B, L, d_k]
    v = x @ W_v + b_v                                                # [B, L, d_k]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]: a score sums d_k products, not E
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, d_k]
    # end
