"""Heads gone wrong, in NumPy."""

import numpy as np


def softmax(x, axis=-1):
    x = x - x.max(axis=axis, keepdims=True)
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    """reshape to [B, H, L, d] at once."""
    B, L, E = x.shape
    d = E // num_heads
    q = (x @ W_q + b_q).reshape(B, num_heads, L, d)
    k = (x @ W_k + b_k).reshape(B, num_heads, L, d)
    v = (x @ W_v + b_v).reshape(B, num_heads, L, d)
    scores = np.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(d)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    out = np.matmul(softmax(scores), v)
    return out.swapaxes(1, 2).reshape(B, L, E) @ W_o + b_o


def split(y, h):
    """Right."""
    return y.reshape(y.shape[0], y.shape[1], h, -1).transpose(0, 2, 1, 3)


def merge(y):
    """Right."""
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def weights_of(q, k, mask):
    """Right."""
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return softmax(scores if mask is None else np.where(mask, scores, -1e20))


def mha_merged_in_memory_order(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    q, k, v = split(x @ wq + bq, n_heads), split(x @ wk + bk, n_heads), split(x @ wv + bv, n_heads)
    return (weights_of(q, k, mask) @ v).reshape(x.shape) @ wo + bo


def mha_never_transposed(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    shape = x.shape[0], n_heads, x.shape[1], x.shape[2] // n_heads
    q, k, v = (x @ wq + bq).reshape(shape), (x @ wk + bk).reshape(shape), (x @ wv + bv).reshape(shape)
    return (weights_of(q, k, mask) @ v).reshape(x.shape) @ wo + bo


def mha_features_outside(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    """Head h has the features h, h + H, h + 2 H ..."""

    def interleaved(y):
        return y.reshape(*y.shape[:2], -1, n_heads).transpose(0, 3, 1, 2)

    q, k, v = interleaved(x @ wq + bq), interleaved(x @ wk + bk), interleaved(x @ wv + bv)
    return merge(weights_of(q, k, mask) @ v) @ wo + bo


def mha_strided(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    """Slices with a step, written back with the same step."""
    q, k, v = x @ wq + bq, x @ wk + bk, x @ wv + bv
    y = np.zeros_like(q)
    for h in range(n_heads):
        scores = q[:, :, h::n_heads] @ k[:, :, h::n_heads].swapaxes(1, 2) / np.sqrt(x.shape[-1] // n_heads)
        if mask is not None:
            scores = np.where(mask[:, 0], scores, -np.inf)
        y[:, :, h::n_heads] = softmax(scores) @ v[:, :, h::n_heads]
    return y @ wo + bo


def mha_mean_of_weights(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    q, k, v = split(x @ wq + bq, n_heads), split(x @ wk + bk, n_heads), split(x @ wv + bv, n_heads)
    weights = weights_of(q, k, mask).mean(axis=1)
    return merge(np.einsum("bqk,bhkd->bhqd", weights, v)) @ wo + bo


def mha_mean_of_outputs(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    """The mean, laid side by side so that W_o fits."""
    q, k, v = split(x @ wq + bq, n_heads), split(x @ wk + bk, n_heads), split(x @ wv + bv, n_heads)
    mean = (weights_of(q, k, mask) @ v).mean(axis=1)
    return np.tile(mean, (1, 1, n_heads)) @ wo + bo


def mha_heads_backwards(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    q, k, v = split(x @ wq + bq, n_heads), split(x @ wk + bk, n_heads), split(x @ wv + bv, n_heads)
    return merge((weights_of(q, k, mask) @ v)[:, ::-1]) @ wo + bo


EXPECTED = {
    "mha": "split-without-transpose",
    "mha_merged_in_memory_order": "merge-without-transpose",
    "mha_never_transposed": "split-and-merge-without-transpose",
    "mha_features_outside": "heads-interleaved",
    "mha_strided": "heads-interleaved",
    "mha_mean_of_weights": "weights-mean-of-heads",
    "mha_mean_of_outputs": "heads-averaged",
    "mha_heads_backwards": "heads-reversed",
}
TASK = {name: "mha" for name in EXPECTED}
