"""The tasks' right answers for the corpus, in NumPy and f64, from the formulas; the judge has textbooks of its own, in C++.

Each function has the contract's arguments. Not: conventions, mistakes, anything fast.
"""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal_mask(queries, keys):
    return np.tri(queries, keys, keys - queries, dtype=bool)


def sdpa(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


def causal(q, k, v):
    return sdpa(q, k, v, causal_mask(q.shape[-2], k.shape[-2]))


def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    return sdpa(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v)


self_attention = v1


def v2(x, W_qkv, b_qkv):
    return sdpa(*np.split(x @ W_qkv + b_qkv, 3, axis=-1))


def v3(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    return sdpa(*np.split(x @ W_qkv + b_qkv, 3, axis=-1), mask) @ W_o + b_o


def v4(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    return sdpa(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v, mask) @ W_o + b_o


def single_head(x, W_q, W_k, W_v, W_o):
    return causal(x @ W_q, x @ W_k, x @ W_v) @ W_o


def split(y, heads):
    return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge(y):
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def cross(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    q, k, v = split(x @ W_q + b_q, num_heads), split(memory @ W_k + b_k, num_heads), split(memory @ W_v + b_v, num_heads)
    return merge(sdpa(q, k, v, mask)) @ W_o + b_o


def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    return cross(x, x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask)


def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    k, v = (np.repeat(split(x @ W, num_kv_heads), num_heads // num_kv_heads, axis=1) for W in (W_k, W_v))
    return merge(sdpa(split(x @ W_q, num_heads), k, v)) @ W_o


def cache(x, W_q, W_k, W_v, W_o, num_heads):
    """All tokens at once: what the steps must give together."""
    return merge(causal(split(x @ W_q, num_heads), split(x @ W_k, num_heads), split(x @ W_v, num_heads))) @ W_o


def rope(x, positions, base=10000.0, halves=False):
    angles = np.asarray(positions)[:, None] * base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = np.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.concatenate(turned, axis=-1) if halves else np.stack(turned, axis=-1).reshape(x.shape)


def rope_attention(q, k, v, positions, base=10000.0, halves=False):
    return sdpa(rope(q, positions, base, halves), rope(k, positions, base, halves), v)


def flash(q, k, v, block_size, causal=False):
    return sdpa(q, k, v, causal_mask(q.shape[-2], k.shape[-2]) if causal else None)


def linear(q, k, v, causal=False):
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    weights = q @ k.swapaxes(-1, -2)
    if causal:
        weights = np.where(causal_mask(q.shape[-2], k.shape[-2]), weights, 0)
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def backward(q, k, v, dout, causal=False):
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    p = softmax(np.where(causal_mask(*scores.shape[-2:]), scores, -np.inf) if causal else scores)
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    """Gradients of sdpa(x W_q, x W_k, x W_v) W_o."""
    q, k, v = x @ W_q, x @ W_k, x @ W_v

    def of(a, b):
        return np.einsum("bti,btj->ij", a, b)

    dq, dk, dv = backward(q, k, v, dout @ W_o.T)
    return dq @ W_q.T + dk @ W_k.T + dv @ W_v.T, of(x, dq), of(x, dk), of(x, dv), of(sdpa(q, k, v), dout)


def train_step(params, tokens, lr):
    """One step; gradients by central differences: no backward pass to get wrong. (loss, params)"""

    def loss():
        seen, targets = tokens[:, :-1], tokens[:, 1:]
        h = params["embed"][seen] + params["position"][: seen.shape[1]]
        a = causal(h @ params["W_q"], h @ params["W_k"], h @ params["W_v"])
        p = softmax(a @ params["head"] + params["head_bias"])
        return -np.log(np.take_along_axis(p, targets[..., None], axis=-1)).mean()

    gradients, step = {}, 1e-5
    for name, values in params.items():
        gradients[name] = np.zeros_like(values)
        for place in np.ndindex(values.shape):
            kept = values[place]
            values[place] = kept + step
            above = loss()
            values[place] = kept - step
            gradients[name][place] = (above - loss()) / (2 * step)
            values[place] = kept
    return loss(), {name: values - lr * gradients[name] for name, values in params.items()}
