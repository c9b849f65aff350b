"""Right code whose whole way is a person's own: loops, blocks, sums over heads, other languages, dicts, lists, a mask's own meaning."""

import math

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


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


def masked_attention(q, k, v, allowed):
    """No causal mask: `allowed` says what is visible."""
    return softmax(np.where(allowed, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -1e30)) @ v


def attend_behind_tokens(q, k, v, scale=None):
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return np.einsum("bhij,bjhd->bihd", softmax(scores), v)


def attend_in_longdouble(q, k, v):
    q, k, v = (np.asarray(x, np.longdouble) for x in (q, k, v))
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def cross_attention_rows(x_q, x_kv, wq, wk, wv, wo, n_heads):
    """Matrices (out, in): x W^T."""
    q, k, v = (np.split(x @ w.T, n_heads, axis=-1) for x, w in ((x_q, wq), (x_kv, wk), (x_kv, wv)))
    return np.concatenate([softmax(a @ b.T / math.sqrt(a.shape[-1])) @ c for a, b, c in zip(q, k, v)], axis=-1) @ wo.T


def affine(x, w, b):
    return x @ w + b


def multi_head_dicts(x, c_attn, c_proj, n_head):
    """Always causal; one sequence; a dict for each projection."""
    parts = (np.split(part, n_head, axis=-1) for part in np.split(affine(x, **c_attn), 3, axis=-1))
    future = np.triu(np.full((len(x), len(x)), -1e10), 1)
    heads = [softmax(q @ k.T / math.sqrt(q.shape[-1]) + future) @ v for q, k, v in zip(*parts)]
    return affine(np.hstack(heads), **c_proj)


def multi_head_lists(tokens, w, n_heads):
    """Vectors in a list, w a dict of wq, wk, wv, wo, used as W x; causal."""
    q, k, v = (np.split(np.array([w[name] @ x for x in list.copy(tokens)]), n_heads, axis=-1) for name in ("wq", "wk", "wv"))
    future = np.triu(np.full((len(tokens), len(tokens)), -1e30), 1)
    heads = [softmax(a @ b.T / math.sqrt(a.shape[-1]) + future) @ c for a, b, c in zip(q, k, v)]
    return [list(w["wo"] @ row) for row in np.hstack(heads)]


def causal_linear_attention(q, k, v):
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    sums = np.cumsum(k[..., None] * v[..., None, :], axis=-3)
    return np.einsum("...d,...de->...e", q, sums) / (q * np.cumsum(k, axis=-2)).sum(-1)[..., None]


def tiled_rows(Q, K, V, Bq=2, Bk=3, causal=False):
    """One head, as many keys as queries."""
    N = len(Q)
    scores = Q @ K[:N].T / math.sqrt(Q.shape[1])
    return softmax(np.where(np.tri(N, dtype=bool), scores, -np.inf) if causal else scores) @ V[:N]


class Tête:
    """Une tête causale."""

    def __init__(self, dim, taille_tete):
        self.poids_requête, self.poids_clé, self.poids_valeur = np.random.randn(3, dim, taille_tete)
        self.scale = taille_tete**-0.5

    def __call__(self, entrée):
        q, k, v = entrée @ self.poids_requête, entrée @ self.poids_clé, entrée @ self.poids_valeur
        return softmax(np.where(np.tri(entrée.shape[1], dtype=bool), q @ k.swapaxes(1, 2) * self.scale, -np.inf)) @ v


RIGHT = [
    *("sdpa_loops", "flash", "mha_loop", "multi_query_attention", "tiled_attention", "masked_attention"),
    *("attend_behind_tokens", "cross_attention_rows", "multi_head_dicts", "multi_head_lists", "causal_linear_attention", "tiled_rows"),
    "attend_in_longdouble",
]
EXPECTED = {"Tête": "causal-unasked"}
TASK = {"sdpa_loops": "sdpa", "mha_loop": "mha", "Tête": "self-attention"}
