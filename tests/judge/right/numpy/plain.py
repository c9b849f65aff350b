"""Right, in NumPy: the tasks without parameters."""

import numpy as np


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


def sdpa(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    weights = softmax(scores)
    return weights @ v, weights


def sdpa_loops(Q, K, V, mask=None):
    """For every sequence, head and query."""
    out = np.zeros(Q.shape[:-1] + V.shape[-1:])
    for b in range(Q.shape[0]):
        for h in range(Q.shape[1]):
            for i in range(Q.shape[2]):
                s = np.array([np.dot(Q[b, h, i], key) for key in K[b, h]]) / np.sqrt(Q.shape[3])
                if mask is not None:
                    s[~mask[b, 0, i]] = -1e20
                e = np.exp(s - s.max())
                out[b, h, i] = sum(w * value for w, value in zip(e / e.sum(), V[b, h]))
    return out


def attention_by_einsum(query, key, value, mask=None):
    logits = np.einsum("bhqd,bhkd->bhqk", query * query.shape[-1] ** -0.5, key)
    if mask is not None:
        logits = logits + np.where(mask, 0.0, -1e30)
    return np.einsum("bhqk,bhkd->bhqd", softmax(logits), value)


def attention_in_single(q, k, v, mask=None):
    """Everything in f32."""
    q, k, v = (np.asarray(y, dtype=np.float32) for y in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-1e9))
    return softmax(scores) @ v


def causal_attention(q, k, v):
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores[..., np.triu(np.ones((Tq, Tk)), k=Tk - Tq + 1).astype(bool)] = -np.inf
    return softmax(scores) @ v


def rope(x, positions, base=10000.0):
    d = x.shape[-1]
    angles = np.outer(positions, base ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def flash(q, k, v, block_size, causal=False):
    """Blocks of queries and of keys."""
    out = np.empty(q.shape[:-1] + v.shape[-1:])
    Tq, Tk = q.shape[2], k.shape[2]
    for i in range(0, Tq, block_size):
        qi = q[:, :, i : i + block_size] / np.sqrt(q.shape[-1])
        m = np.full(qi.shape[:-1] + (1,), -np.inf)
        total, acc = np.zeros_like(m), np.zeros(qi.shape[:-1] + v.shape[-1:])
        for j in range(0, Tk, block_size):
            s = qi @ k[:, :, j : j + block_size].swapaxes(-1, -2)
            if causal:
                rows = np.arange(i, i + s.shape[-2])[:, None] + Tk - Tq
                s = np.where(np.arange(j, j + s.shape[-1])[None, :] <= rows, s, -1e30)
            new = np.maximum(m, s.max(axis=-1, keepdims=True))
            p, alpha = np.exp(s - new), np.exp(m - new)
            total = total * alpha + p.sum(axis=-1, keepdims=True)
            acc = acc * alpha + p @ v[:, :, j : j + block_size]
            m = new
        out[:, :, i : i + block_size] = acc / total
    return out


def linear_attention(q, k, v, causal=False):
    def feature(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    q, k = feature(q), feature(k)
    if not causal:
        return q @ (k.swapaxes(-1, -2) @ v) / (q * k.sum(axis=2, keepdims=True)).sum(axis=-1, keepdims=True)
    state, total = np.zeros(q.shape[:2] + (q.shape[-1], v.shape[-1])), np.zeros(q.shape[:2] + q.shape[-1:])
    out = np.empty(q.shape[:-1] + v.shape[-1:])
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        total = total + k[:, :, t]
        out[:, :, t] = np.einsum("bhd,bhde->bhe", q[:, :, t], state) / np.einsum("bhd,bhd->bh", q[:, :, t], total)[..., None]
    return out


def attention_backward(q, k, v, dout, causal=False):
    scale = 1 / np.sqrt(q.shape[-1])
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    p = softmax(s)
    # The row term by the output: sum_j p_ij dp_ij = dout_i . out_i
    delta = (dout * (p @ v)).sum(axis=-1, keepdims=True)
    ds = p * (dout @ v.swapaxes(-1, -2) - delta) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def dropout_attention(q, k, v, p, training):
    weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    if training and p > 0:
        weights = weights * (np.random.random(weights.shape) >= p) / (1 - p)
    return weights @ v


RIGHT = [
    "sdpa",
    "sdpa_loops",
    "attention_by_einsum",
    "attention_in_single",
    "causal_attention",
    "rope",
    "flash",
    "linear_attention",
    "attention_backward",
    "dropout_attention",
]
TASK = {"sdpa_loops": "sdpa", "attention_by_einsum": "sdpa", "attention_in_single": "sdpa"}
CONVENTION = {}
