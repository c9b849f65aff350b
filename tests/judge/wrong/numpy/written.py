"""Wrong code whose mask, weights or form are found by trying: what names, docstrings and comments promise is kept to."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def keeps_what_is_hidden(q, k, v, keep=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if keep is None else np.where(keep, -1e30, scores)) @ v


def adds_the_mask(q, k, v, mask=None):
    """mask: 1 for tokens, 0 for padding"""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else scores + mask) @ v


def hides_what_it_shows(q, k, v, mask=None):
    """mask: 1 表示屏蔽"""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask == 0, -1e30, scores)) @ v


def heads_of_matrices(x, wq, wk, wv, wo, n_heads):
    """Matrices (out, in)."""
    q, k, v = (np.moveaxis((x @ w.T).reshape(*x.shape[:2], n_heads, -1), 2, 1) for w in (wq, wk, wv))
    y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return np.moveaxis(y, 1, 2).reshape(x.shape) @ wo


def causal_but_the_first(q, k, v):
    rows = np.maximum(np.arange(q.shape[-2]), 1)[:, None]
    return softmax(np.where(np.arange(k.shape[-2]) < rows, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)) @ v


def sees_nothing(q, k, v, allowed):
    """A query that may see nothing gets zeros."""
    return softmax(np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)) @ v


def swapped(q, k, v):
    """Returns the context and the weights."""
    weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return weights, weights @ v


def causal_from_the_top(q, k, v):
    """The queries are the last of the keys."""
    return softmax(np.where(np.tri(q.shape[-2], k.shape[-2]), q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)) @ v


def attends_to_the_future(x, wq, wk, wv):
    """Causal self-attention of a decoder."""
    return softmax(x @ wq @ (x @ wk).swapaxes(-1, -2) / np.sqrt(wq.shape[-1])) @ (x @ wv)


EXPECTED = {
    "causal_from_the_top": "causal-top-left",
    "attends_to_the_future": "no-causal",
    "keeps_what_is_hidden": "mask-polarity",
    "adds_the_mask": "mask-added-as-is",
    "hides_what_it_shows": "mask-polarity",
    "heads_of_matrices": "output-transposed-weight",
    "sees_nothing": "empty-row-mean",
    "swapped": "weights-first",
    "causal_but_the_first": "causal-off-by-one",
}
