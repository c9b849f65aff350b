"""Causal attention: no query sees the future. Article 003.

    q       [B, H, Tq, d]     queries
    k, v    [B, H, Tk, d]     keys and values; Tk >= Tq
    returns out [B, H, Tq, d], or (out, weights) with weights [B, H, Tq, Tk]

With Tq = Tk query i sees the keys 0 to i. With more keys than queries, as behind a cache, the queries are the last tokens:
the last query sees every key.
Judged: which keys a query sees, by one exactly; Tk > Tq; that a changed future changes nothing.
"""

import numpy as np


def causal_attention(q, k, v):
    # solution: scores, causal mask, softmax, values
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, H, Tq, Tk]
    query = np.arange(Tq)[:, None] + (Tk - Tq)                       # [Tq, 1]: place of a query among all tokens
    key = np.arange(Tk)[None, :]                                     # [1, Tk]
    scores = np.where(key <= query, scores, -np.inf)                 # <= : a token sees itself
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, Tq, Tk]
    return weights @ v, weights                                      # [B, H, Tq, d]
    # end
