"""The backward pass by hand gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def weights_of(q, k, causal):
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    return softmax(s)


def T(x):
    return x.swapaxes(-1, -2)


def attention_backward(q, k, v, dout, causal=False):
    """dq and dk without 1 / sqrt(d)."""
    p = weights_of(q, k, causal)
    dv = T(p) @ dout
    dp = dout @ T(v)
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
    return ds @ k, T(ds) @ q, dv


def backward_first_term_only(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    ds = p * (dout @ T(v)) / np.sqrt(q.shape[-1])
    return ds @ k, T(ds) @ q, T(p) @ dout


def jacobian_row(p, dp):
    return p * (dp - (p * dp).sum(axis=-1, keepdims=True))


def backward_scale_at_query(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    ds = jacobian_row(p, dout @ T(v))
    return ds @ k * q.shape[-1] ** -0.5, T(ds) @ q, T(p) @ dout


def backward_sigmoid_like(q, k, v, dout, causal=False):
    """p (1 - p): the diagonal of the Jacobian."""
    p = weights_of(q, k, causal)
    ds = (dout @ T(v)) * p * (1.0 - p) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_ds_across(q, k, v, dout, causal=False):
    """For as many queries as keys."""
    p = weights_of(q, k, causal)
    ds = T(jacobian_row(p, dout @ T(v))) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_p_across(q, k, v, dout, causal=False):
    """For as many queries as keys."""
    p = weights_of(q, k, causal)
    ds = jacobian_row(p, dout @ T(v)) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, p @ dout


def backward_factor_forgotten(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp = dout @ T(v)
    ds = (dp - np.sum(dp * p, axis=-1, keepdims=True)) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_uncaused(q, k, v, dout, causal=False):
    p = weights_of(q, k, False)
    ds = jacobian_row(p, dout @ T(v)) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_exchanged(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    ds = jacobian_row(p, dout @ T(v)) * q.shape[-1] ** -0.5
    dk, dq = ds @ k, T(ds) @ q
    return dq, dk, T(p) @ dout


def backward_scores_for_weights(q, k, v, dout):
    p = weights_of(q, k, False)
    ds = jacobian_row(p, dout @ T(v)) * q.shape[-1] ** -0.5
    scores = q @ T(k) * q.shape[-1] ** -0.5
    return ds @ k, T(ds) @ q, T(scores) @ dout


EXPECTED = {
    "attention_backward": "backward-no-scale",
    "backward_first_term_only": "backward-no-row-term",
    "backward_scale_at_query": "backward-scale-on-query-only",
    "backward_sigmoid_like": "backward-diagonal-jacobian",
    "backward_ds_across": "backward-ds-transposed",
    "backward_p_across": "backward-dv-weights-not-transposed",
    "backward_factor_forgotten": "backward-dp-without-weights",
    "backward_uncaused": "backward-causal-ignored",
    "backward_exchanged": "backward-dq-dk-exchanged",
    "backward_scores_for_weights": "backward-dv-from-scores",
}
TASK = {name: "backward" for name in EXPECTED}
