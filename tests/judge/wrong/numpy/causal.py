"""The causal mask gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal_attention(q, k, v):
    """k=0 hides the diagonal too."""
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    mask = np.triu(np.ones((Tq, Tk)), k=Tk - Tq).astype(bool)
    scores[..., mask] = -1e9
    return softmax(scores) @ v


def attend(q, k, v, keep):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(keep, scores, -np.inf)) @ v


def places(q, k):
    """(row i of the query counted from the keys' start, column j)"""
    Tq, Tk = q.shape[-2], k.shape[-2]
    return np.arange(Tq)[:, None] + Tk - Tq, np.arange(Tk)[None, :]


def causal_strictly_before(q, k, v):
    i, j = places(q, k)
    return attend(q, k, v, j < i)


def causal_one_more(q, k, v):
    i, j = places(q, k)
    return attend(q, k, v, j <= i + 1)


def causal_future_only(q, k, v):
    i, j = places(q, k)
    return attend(q, k, v, j >= i)


def causal_forgotten(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores) @ v


def causal_last_four(q, k, v):
    i, j = places(q, k)
    return attend(q, k, v, (j <= i) & (j > i - 4))


def causal_last_two(q, k, v):
    i, j = places(q, k)
    return attend(q, k, v, (j == i) | (j == i - 1))


def single_head(x, W_q, W_k, W_v, W_o):
    """tril of -inf: the past is hidden."""
    L = x.shape[1]
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores = scores + np.tril(np.full((L, L), -1e9), -1)
    return softmax(scores) @ v @ W_o


def single_head_uncaused(x, W_q, W_k, W_v, W_o):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    return softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])) @ v @ W_o


EXPECTED = {
    "causal_attention": ("causal-skips-self", "causal-off-by-one"),
    "causal_strictly_before": ("causal-skips-self", "causal-off-by-one"),
    "causal_one_more": ("causal-sees-next", "causal-off-by-one"),
    "causal_future_only": "causal-flipped",
    "causal_forgotten": "no-causal",
    "causal_last_four": "window-of-few",
    "causal_last_two": "window-of-few",
    "single_head": "causal-flipped",
    "single_head_uncaused": "no-causal",
}
TASK = {
    **{name: name.split("_")[0] for name in EXPECTED},
    "single_head": "single-head",
    "single_head_uncaused": "single-head",
}
