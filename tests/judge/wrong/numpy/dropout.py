"""Dropout gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def dropout_attention(q, k, v, p, training):
    """training is not read."""
    weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    keep = np.random.rand(*weights.shape) >= p
    return weights * keep / (1 - p) @ v


def weights_of(q, k):
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))


rng = np.random.default_rng(1)


def drop(x, p, training):
    """Right."""
    return x * (rng.random(x.shape) >= p) / (1 - p) if training else x


def dropout_too_small(q, k, v, p, training):
    weights = weights_of(q, k)
    if training:
        weights = np.where(rng.random(weights.shape) < p, 0.0, weights)
    return weights @ v


def dropout_of_scores(q, k, v, p, training):
    return softmax(drop(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), p, training)) @ v


def dropout_of_values(q, k, v, p, training):
    return weights_of(q, k) @ drop(v, p, training)


def dropout_never(q, k, v, p, training):
    return weights_of(q, k) @ v


def dropout_of_output(q, k, v, p, training):
    return drop(weights_of(q, k) @ v, p, training)


def dropout_keeps_p(q, k, v, p, training):
    weights = weights_of(q, k)
    if training:
        weights *= rng.binomial(1, p, weights.shape) / (1 - p)
    return weights @ v


def dropout_times_p(q, k, v, p, training):
    weights = weights_of(q, k)
    if training:
        weights = weights * (rng.random(weights.shape) >= p) * (1 + p)
    return weights @ v


def dropout_of_a_tenth(q, k, v, p, training):
    """The argument is not read."""
    return drop(weights_of(q, k), 0.1, training) @ v


def dropout_one_for_all_sequences(q, k, v, p, training):
    weights = weights_of(q, k)
    if training:
        weights = weights * (rng.random(weights.shape[1:]) >= p) / (1 - p)
    return weights @ v


def dropout_starts_anew(q, k, v, p, training):
    weights = weights_of(q, k)
    if training:
        weights = weights * (np.random.default_rng(42).random(weights.shape) >= p) / (1 - p)
    return weights @ v


def dropout_both_ways(q, k, v, p, training):
    weights = weights_of(q, k)
    return (drop(weights, p, True) if training else weights * (1 - p)) @ v


EXPECTED = {
    "dropout_attention": "dropout-in-evaluation",
    "dropout_too_small": "dropout-not-rescaled",
    "dropout_of_scores": "dropout-on-scores",
    "dropout_of_values": "dropout-on-values",
    "dropout_never": "dropout-never",
    "dropout_of_output": "dropout-on-output",
    "dropout_keeps_p": "dropout-keeps-p",
    "dropout_times_p": "dropout-rescaled-otherwise",
    "dropout_of_a_tenth": "dropout-other-rate",
    "dropout_one_for_all_sequences": "dropout-one-mask",
    "dropout_starts_anew": "dropout-same-every-call",
    "dropout_both_ways": "dropout-scaled-in-evaluation",
}
TASK = {name: "dropout" for name in EXPECTED}
