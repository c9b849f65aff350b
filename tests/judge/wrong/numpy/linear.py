"""Linear attention gone wrong, in NumPy."""

import numpy as np


def feature(x):
    """elu(x) + 1"""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def linear_attention(q, k, v, causal=False):
    """Weights of a row do not sum to one."""
    q, k = feature(q), feature(k)
    if not causal:
        return q @ (k.swapaxes(-1, -2) @ v)
    out = np.zeros(q.shape[:-1] + v.shape[-1:])
    state = np.zeros(q.shape[:2] + (q.shape[-1], v.shape[-1]))
    for t in range(q.shape[2]):
        state += k[:, :, t, :, None] * v[:, :, t, None, :]
        out[:, :, t] = np.einsum("bhd,bhde->bhe", q[:, :, t], state)
    return out


def weigh(q, k, v, causal):
    """Right for q and k behind the feature map."""
    weights = q @ k.swapaxes(-1, -2)
    if causal:
        weights = np.tril(weights)
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def linear_plain(q, k, v, causal=False):
    return weigh(q, k, v, causal)


def linear_mapped_values(q, k, v, causal=False):
    return weigh(feature(q), feature(k), feature(v), causal)


def linear_sees_all(q, k, v, causal=False):
    return weigh(feature(q), feature(k), v, causal=False)


def linear_sum_of_queries(q, k, v, causal=False):
    q, k = feature(q), feature(k)
    below, above = q @ q.swapaxes(-1, -2), q @ k.swapaxes(-1, -2)
    if causal:
        below, above = np.tril(below), np.tril(above)
    return above @ v / below.sum(axis=-1, keepdims=True)


def linear_elu_alone(q, k, v, causal=False):
    return weigh(feature(q) - 1, feature(k) - 1, v, causal)


def linear_relu(q, k, v, causal=False):
    return weigh(np.maximum(q, 0), np.maximum(k, 0), v, causal)


def linear_mean(q, k, v, causal=False):
    weights = feature(q) @ feature(k).swapaxes(-1, -2)
    return (np.tril(weights) if causal else weights) @ v / v.shape[2]


def linear_by_columns(q, k, v, causal=False):
    weights = feature(q) @ feature(k).swapaxes(-1, -2)
    weights = np.tril(weights) if causal else weights
    return weights / weights.sum(axis=-2, keepdims=True) @ v


def linear_total_of_all(q, k, v, causal=False):
    q, k = feature(q), feature(k)
    weights = q @ k.swapaxes(-1, -2)
    return (np.tril(weights) if causal else weights) @ v / np.einsum("bhtd,bhd->bht", q, k.sum(axis=2))[..., None]


def linear_of_bare_queries(q, k, v, causal=False):
    return weigh(q, feature(k), v, causal)


def linear_of_bare_keys(q, k, v, causal=False):
    return weigh(feature(q), k, v, causal)


def linear_elu_plus_two(q, k, v, causal=False):
    return weigh(feature(q) + 1, feature(k) + 1, v, causal)


def linear_exponential(q, k, v, causal=False):
    return weigh(np.exp(q), np.exp(k), v, causal)


def linear_twice_mapped(q, k, v, causal=False):
    """Of a positive number it is the number plus one."""
    return weigh(feature(feature(q)), feature(feature(k)), v, causal)


def linear_softmax_features(q, k, v, causal=False):
    return weigh(*(np.exp(y) / np.exp(y).sum(axis=-1, keepdims=True) for y in (q, k)), v, causal)


def linear_with_scale(q, k, v, causal=False):
    return weigh(feature(q / np.sqrt(q.shape[-1])), feature(k), v, causal)


def linear_is_softmax(q, k, v, causal=False):
    e = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    e = np.tril(e) if causal else e
    return e / e.sum(axis=-1, keepdims=True) @ v


def linear_causal_at_all_times(q, k, v, causal=False):
    weights = np.tril(feature(q) @ feature(k).swapaxes(-1, -2), k.shape[2] - q.shape[2])
    return weights @ v / weights.sum(axis=-1, keepdims=True)


EXPECTED = {
    "linear_attention": "linear-not-normalised",
    "linear_plain": "linear-no-feature-map",
    "linear_mapped_values": "linear-map-on-values",
    "linear_sees_all": "linear-causal-ignored",
    "linear_sum_of_queries": "linear-normaliser-of-query",
    "linear_elu_alone": "linear-elu-without-one",
    "linear_relu": "linear-relu-map",
    "linear_mean": "linear-divided-by-length",
    "linear_by_columns": "linear-normalised-over-queries",
    "linear_total_of_all": "linear-normaliser-not-causal",
    "linear_of_bare_queries": "linear-query-not-mapped",
    "linear_of_bare_keys": "linear-key-not-mapped",
    "linear_elu_plus_two": "linear-elu-two",
    "linear_exponential": "linear-exp-map",
    "linear_twice_mapped": "linear-elu-two",
    "linear_softmax_features": "linear-softmax-map",
    "linear_with_scale": "linear-scaled",
    "linear_is_softmax": "linear-softmax-instead",
    "linear_causal_at_all_times": "linear-causal-unasked",
}
TASK = {name: "linear" for name in EXPECTED}
