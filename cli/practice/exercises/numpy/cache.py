"""Attention with a cache of keys and values, as text is generated. Named in article 003, an extension here.

    x                       [B, n, E]    the n new tokens of this call; n differs from call to call
    W_q, W_k, W_v, W_o      [E, E]       y = x W, no biases
    num_heads               H            a head has d = E / H columns
    cache                   None at first, later what the previous call returned; its form is yours
    returns (out, cache): out [B, n, E] of the new tokens

Causal over all tokens so far: a new token sees every earlier one, of this call and of those before, and itself.
Judged: calls of 3, 1, 1 ... tokens, joined, equal one call on the whole; a second sequence starts with a fresh cache.
"""

import numpy as np


def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    # solution: project the new tokens, append keys and values, attend over all of them
    B, n, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, n, E] -> [B, H, n, d]
        return y.reshape(B, n, num_heads, d).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)         # of the new tokens only
    if cache is not None:
        past_k, past_v = cache
        k = np.concatenate([past_k, k], axis=2)                      # [B, H, T, d]: the past first
        v = np.concatenate([past_v, v], axis=2)
    T = k.shape[2]                                                   # tokens so far
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, n, T]
    query = np.arange(T - n, T)[:, None]                             # [n, 1]: the new tokens are the last n
    scores = np.where(np.arange(T) <= query, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, n, E)
    return context @ W_o, (k, v)
    # end
