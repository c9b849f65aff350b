"""Functions with one mistake each, as people write them: loops over heads, buffers, arrays changed in place."""

import numpy as np


def softmax(x):
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)


def sdpa_scales_the_caller(q, k, v, mask=None):
    """/= writes into the caller's array: at the second call it is scaled twice."""
    q /= np.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


def v1_scales_the_weight(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """*= writes into the caller's weight."""
    W_q *= x.shape[-1] ** -0.5
    q, k, v = x @ W_q + b_q * x.shape[-1] ** -0.5, x @ W_k + b_k, x @ W_v + b_v
    return softmax(q @ k.swapaxes(-1, -2)) @ v


def gqa_modulo(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    """A loop over heads; head h reads group h % Hkv."""
    d, outs = x.shape[-1] // num_heads, []
    for h in range(num_heads):
        mine, theirs = slice(h * d, (h + 1) * d), slice(h % num_kv_heads * d, (h % num_kv_heads + 1) * d)
        scores = x @ W_q[:, mine] @ (x @ W_k[:, theirs]).transpose(0, 2, 1)
        outs.append(softmax(scores / np.sqrt(d)) @ (x @ W_v[:, theirs]))
    return np.concatenate(outs, axis=-1) @ W_o


def cache_writes_at_zero(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    """A buffer and a length: the length grows, new keys are written at 0."""
    q, k, v = ((x @ W).reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for W in (W_q, W_k, W_v))
    keys, values, length = cache or (np.zeros((*k.shape[:2], 64, k.shape[3])), np.zeros((*k.shape[:2], 64, k.shape[3])), 0)
    n = x.shape[1]
    keys[:, :, :n], values[:, :, :n] = k, v
    length += n
    keep = np.tri(n, length, length - n, dtype=bool)
    scores = np.where(keep, q @ keys[:, :, :length].swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return (softmax(scores) @ values[:, :, :length]).swapaxes(1, 2).reshape(x.shape) @ W_o, (keys, values, length)


EXPECTED = {
    "sdpa_scales_the_caller": "inputs-changed",
    "v1_scales_the_weight": "inputs-changed",
    "gqa_modulo": "gqa-heads-interleaved",
    "cache_writes_at_zero": "cache-overwritten",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
