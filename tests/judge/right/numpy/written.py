"""Right code whose form is found by trying: names in other languages, matrices [out, in], dicts, lists, a mask's own meaning."""

import math

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def masked_attention(q, k, v, allowed):
    """No causal mask: `allowed` says what is visible."""
    return softmax(np.where(allowed, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -1e30)) @ v


def attend_behind_tokens(q, k, v, scale=None):
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return np.einsum("bhij,bjhd->bihd", softmax(scores), v)


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
    *("masked_attention", "attend_behind_tokens", "cross_attention_rows", "multi_head_dicts", "multi_head_lists"),
    *("causal_linear_attention", "tiled_rows", "Tête"),
]
CONVENTION = {"Tête": "causal-unasked"}
TASK = {"Tête": "self-attention"}
