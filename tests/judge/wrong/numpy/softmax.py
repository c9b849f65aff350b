"""The softmax gone wrong, in NumPy."""

import numpy as np


def sdpa(q, k, v, mask=None):
    """exp of the bare scores."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    e = np.exp(scores)
    return e / e.sum(axis=-1, keepdims=True) @ v


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def scores_of(q, k, mask=None, fill=-1e9):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return scores if mask is None else np.where(mask, scores, fill)


def sdpa_over_queries(q, k, v, mask=None):
    return softmax(scores_of(q, k, mask), axis=-2) @ v


def sdpa_over_heads(q, k, v, mask=None):
    return softmax(scores_of(q, k, mask), axis=1) @ v


def sdpa_over_batch(q, k, v, mask=None):
    return softmax(scores_of(q, k, mask), axis=0) @ v


def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """axis=0 was right for one sequence of [L, L]; here it is the batch."""
    q, k, v = x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v
    return softmax(scores_of(q, k), axis=0) @ v


def sdpa_sigmoid(q, k, v, mask=None):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-scores_of(q, k, mask))) @ v


def sdpa_twice(q, k, v, mask=None):
    return softmax(softmax(scores_of(q, k, mask))) @ v


def sdpa_relu(q, k, v, mask=None):
    return np.maximum(scores_of(q, k, mask), 0) @ v


def sdpa_not_normalised(q, k, v, mask=None):
    return np.exp(scores_of(q, k, mask, -np.inf)) @ v


def sdpa_divided_by_length(q, k, v, mask=None):
    return softmax(scores_of(q, k, mask)) / k.shape[-2] @ v


def sdpa_without_softmax(q, k, v):
    return scores_of(q, k) @ v


def sdpa_and_its_scores(q, k, v, mask=None):
    weights = scores_of(q, k, mask)
    return softmax(weights) @ v, weights


EXPECTED = {
    "sdpa": "no-max-subtraction",
    "sdpa_over_queries": "softmax-over-queries",
    "sdpa_over_heads": "softmax-over-heads",
    "sdpa_over_batch": "softmax-over-batch",
    "v1": "softmax-over-batch",
    "sdpa_sigmoid": "sigmoid",
    "sdpa_twice": "softmax-twice",
    "sdpa_relu": "relu-weights",
    "sdpa_not_normalised": "weights-not-normalised",
    "sdpa_divided_by_length": "normalised-by-length",
    "sdpa_without_softmax": "no-softmax",
    "sdpa_and_its_scores": "weights-are-scores",
}
TASK = {name: name.split("_")[0] for name in EXPECTED}
