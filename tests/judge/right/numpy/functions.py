"""Right functions in NumPy whose whole way is a person's own: loops, sums over heads, f32, adjacent pairs, blocks of queries."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def sdpa_loops(Q, K, V, mask=None):
    """For every sequence, head and query."""
    out = np.zeros(Q.shape[:-1] + V.shape[-1:])
    for b, h, i in np.ndindex(Q.shape[:3]):
        s = np.array([np.dot(Q[b, h, i], key) for key in K[b, h]]) / np.sqrt(Q.shape[3])
        if mask is not None:
            s[~mask[b, 0, i]] = -1e20
        e = np.exp(s - s.max())
        out[b, h, i] = sum(w * value for w, value in zip(e / e.sum(), V[b, h]))
    return out


def attention_in_single(q, k, v, mask=None):
    """Everything in f32."""
    q, k, v = (np.asarray(y, dtype=np.float32) for y in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    return softmax(scores if mask is None else np.where(mask, scores, np.float32(-1e9))) @ v


def rope(x, positions, base=10000.0):
    """Adjacent pairs."""
    angles = np.outer(positions, base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    cos, sin, out = np.cos(angles), np.sin(angles), np.empty_like(x)
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


def attention_backward(q, k, v, dout, causal=False):
    """The row term by the output: sum_j p_ij dp_ij = dout_i . out_i"""
    scale = 1 / np.sqrt(q.shape[-1])
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    p = softmax(s)
    ds = p * (dout @ v.swapaxes(-1, -2) - (dout * (p @ v)).sum(axis=-1, keepdims=True)) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def mha_loop(x, Wq, bq, Wk, bk, Wv, bv, Wo, bo, n_heads, mask=None):
    """The sum over heads of out_h W_o[h]: no concatenation at all."""
    d = x.shape[-1] // n_heads
    y = np.zeros_like(x) + bo
    for h in range(n_heads):
        s = slice(h * d, (h + 1) * d)
        q, k, v = x @ Wq[:, s] + bq[s], x @ Wk[:, s] + bk[s], x @ Wv[:, s] + bv[s]
        scores = np.einsum("bqd,bkd->bqk", q, k) / d**0.5
        y = y + softmax(scores if mask is None else np.where(mask[:, 0], scores, -1e30)) @ v @ Wo[s]
    return y


def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    B, L, E = x.shape
    q, k, v = (np.reshape(x @ W, (B, L, -1, E // num_heads)) for W in (W_q, W_k, W_v))
    out = np.empty_like(q)
    for h in range(num_heads):
        g = h * num_kv_heads // num_heads
        out[:, :, h] = softmax(q[:, :, h] @ k[:, :, g].transpose(0, 2, 1) / np.sqrt(E // num_heads)) @ v[:, :, g]
    return out.reshape(B, L, E) @ W_o


def weights_before_output(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    w = e / e.sum(-1, keepdims=True)
    return w, w @ v


def multi_query_attention(h, Wq, Wk, Wv, Wo, n_head):
    B, T, E = h.shape
    q, k, v = (h @ Wq).reshape(B, T, n_head, -1), h @ Wk, h @ Wv
    s = np.einsum("bthd,bsd->bhts", q, k) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhts,bsd->bthd", e / e.sum(-1, keepdims=True), v).reshape(B, T, E) @ Wo


def tiled_attention(q, k, v, block=4):
    """causal"""
    rows, d = q.shape[-2:]
    m, total, out = np.full((*q.shape[:-1], 1), -1e30), np.zeros((*q.shape[:-1], 1)), np.zeros((*q.shape[:-1], v.shape[-1]))
    for j in range(0, rows, block):
        s = q @ k[..., j : j + block, :].swapaxes(-1, -2) / np.sqrt(d)
        s = np.where(np.arange(j, j + s.shape[-1]) <= np.arange(rows)[:, None], s, -1e30)
        new = np.maximum(m, s.max(-1, keepdims=True))
        p, shrink = np.exp(s - new), np.exp(m - new)
        m, total, out = new, total * shrink + p.sum(-1, keepdims=True), out * shrink + p @ v[..., j : j + block, :]
    return out / total


RIGHT = ["weights_before_output", "tiled_attention", "multi_query_attention"]
RIGHT += ["sdpa_loops", "attention_in_single", "rope", "flash", "attention_backward", "mha_loop", "gqa"]
TASK = {"sdpa_loops": "sdpa", "attention_in_single": "sdpa", "mha_loop": "mha"}
