"""Of decoders: causal heads, caches, a block; as numpy_exercises.py."""

import numpy as np


# [causal-mha]
def causal_mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads):
    # solution: projections, heads, causal scores, softmax, values, heads joined, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, L, E] -> [B, H, L, d]
        return y.reshape(B, L, num_heads, d).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ W_q + b_q), heads(x @ W_k + b_k), heads(x @ W_v + b_v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]
    scores = np.where(np.tri(L, dtype=bool), scores, -np.inf)        # key j <= query i, in every head
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, L, L], 0 above the diagonal
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)   # [B, L, E]
    return context @ W_o + b_o, weights


# [gqa-cache]
def grouped_cached_attention(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, cache=None):
    # solution: project the new tokens, append keys and values, share them, attend over all of them
    B, n, E = x.shape
    d, group = E // num_heads, num_heads // num_kv_heads
    q, k, v = ((x @ W).reshape(B, n, -1, d).transpose(0, 2, 1, 3) for W in (W_q, W_k, W_v))
    if cache is not None:
        k, v = (np.concatenate(pair, axis=2) for pair in zip(cache, (k, v)))
    cache = k, v                                                     # [B, Hkv, T, d] twice: before heads are repeated
    T = k.shape[2]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)  # [B, H, T, d]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, n, T]
    scores = np.where(np.tri(n, T, T - n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(B, n, E) @ W_o, cache


# [llama-attention]
def llama_attention(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, start, cache=None):
    # solution: project, turn queries and keys, append keys and values, share them, attend over all of them
    B, n, E = x.shape
    d, group = E // num_heads, num_heads // num_kv_heads

    def turn(y, positions):                                          # y [B, heads, n, d]
        angles = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)      # [n, d / 2]
        angles = np.concatenate([angles, angles], axis=-1)
        return y * np.cos(angles) + np.concatenate([-y[..., d // 2 :], y[..., : d // 2]], axis=-1) * np.sin(angles)

    q, k, v = ((x @ W).reshape(B, n, -1, d).transpose(0, 2, 1, 3) for W in (W_q, W_k, W_v))
    positions = start + np.arange(n)                                 # of the new tokens, among all
    q, k = turn(q, positions), turn(k, positions)
    if cache is not None:
        k, v = (np.concatenate(pair, axis=2) for pair in zip(cache, (k, v)))
    cache = k, v                                                     # keys are turned once, and kept so
    T = k.shape[2]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)  # [B, H, T, d]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, n, T]
    scores = np.where(np.tri(n, T, T - n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(B, n, E) @ W_o, cache


# [window-cache]
def windowed_attention(x, W_q, W_k, W_v, W_o, num_heads, window, cache=None):
    # solution: project the new tokens, append keys and values, attend over the window of each token
    B, n, E = x.shape
    q, k, v = ((x @ W).reshape(B, n, num_heads, -1).transpose(0, 2, 1, 3) for W in (W_q, W_k, W_v))
    if cache is not None:
        k, v = (np.concatenate(pair, axis=2) for pair in zip(cache, (k, v)))
    cache = k[:, :, -window:], v[:, :, -window:]                     # what lies further back no later token will see
    T = k.shape[2]                                                   # rows that are here, not all that came
    i, j = np.arange(T - n, T)[:, None], np.arange(T)
    visible = (j <= i) & (i - j < window)                            # [n, T]
    scores = np.where(visible, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(B, n, E) @ W_o, cache


# [block]
def layer_norm(x, gain, bias):
    # solution: mean and variance over the features, gain, bias
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)             # over E, not over E - 1
    return centred / np.sqrt(variance + 1e-5) * gain + bias


def gelu(x):                                                         # by tanh: NumPy has no erf
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def block(x, params, num_heads):
    # solution: a norm, causal heads, a residual; a norm, the feed-forward part, a residual
    B, L, E = x.shape
    d = E // num_heads
    y = layer_norm(x, params["gain_1"], params["bias_1"])            # attention reads the norm, the residual adds x itself

    def heads(name):                                                 # [B, L, E] -> [B, H, L, d]
        return (y @ params[f"W_{name}"] + params[f"b_{name}"]).reshape(B, L, num_heads, d).transpose(0, 2, 1, 3)

    q, k, v = heads("q"), heads("k"), heads("v")
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]
    scores = np.where(np.tri(L, dtype=bool), scores, -np.inf)        # key j <= query i
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)
    stream = x + context @ params["W_o"] + params["b_o"]             # the first residual
    y = layer_norm(stream, params["gain_2"], params["bias_2"])
    hidden = gelu(y @ params["W_up"] + params["b_up"])               # [B, L, F]
    return stream + hidden @ params["W_down"] + params["b_down"]     # [B, L, E]
