"""More of the backward pass by hand gone wrong, in NumPy: of attention, and of a layer with one head."""

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


def jacobian_row(p, dp):
    return p * (dp - (p * dp).sum(axis=-1, keepdims=True))


def backward_own_row_term_of_dp(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = p * (dp - dp.sum(axis=-1, keepdims=True)) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_row_term_mean(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = p * (dp - (p * dp).mean(axis=-1, keepdims=True)) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_row_term_of_columns(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = p * (dp - (p * dp).sum(axis=-2, keepdims=True)) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_row_term_added(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = p * (dp + (p * dp).sum(axis=-1, keepdims=True)) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_softmax_skipped(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = dp * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_sign(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = p * ((p * dp).sum(axis=-1, keepdims=True) - dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_scaled_twice(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_scale_multiplied(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) / c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_scale_at_key(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp)
    return ds @ k, T(ds) @ q * c, T(p) @ dout


def backward_own_scale_at_values(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout * c


def backward_own_dq_of_queries(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ q, T(ds) @ q, T(p) @ dout


def backward_own_dk_of_keys(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ k, T(p) @ dout


def backward_own_dq_of_dp(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return dp @ k * c, T(ds) @ q, T(p) @ dout


def backward_own_dv_of_values(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ v


def backward_own_dk_dv_exchanged(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(p) @ dout, T(ds) @ q


def backward_own_weights_unscaled(q, k, v, dout, causal=False):
    p = weights_of(q * np.sqrt(q.shape[-1]), k, causal)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_dp_of_output(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = p @ v @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_dp_of_keys(q, k, v, dout, causal=False):
    p = weights_of(q, k, causal)
    dp, c = dout @ T(k), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def backward_own_always_causal(q, k, v, dout, causal=False):
    p = weights_of(q, k, True)
    dp, c = dout @ T(v), q.shape[-1] ** -0.5
    ds = jacobian_row(p, dp) * c
    return ds @ k, T(ds) @ q, T(p) @ dout


def outer(a, b):
    """Summed over batch and tokens."""
    return np.einsum("bti,btj->ij", a, b)


def layer_own_query_way_only(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_own_value_way_missing(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_own_weights_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ W_q + dk @ W_k + dv @ W_v
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_own_dw_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(dq, x), outer(dk, x), outer(dv, x), outer(p @ v, dout)


def layer_own_dwo_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(dout, p @ v)


def layer_own_batch_mean(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(x, dq) / len(x), outer(x, dk) / len(x), outer(x, dv) / len(x), outer(p @ v, dout) / len(x)


def layer_own_output_skipped(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_own_output_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ W_o
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_own_dwo_of_output(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p, d = softmax(q @ T(k) * c), dout @ T(W_o)
    ds = jacobian_row(p, d @ T(v)) * c
    dq, dk, dv = ds @ k, T(ds) @ q, T(p) @ d
    dx = dq @ T(W_q) + dk @ T(W_k) + dv @ T(W_v)
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v @ W_o, dout)


EXPECTED = {
    "backward_own_row_term_of_dp": "backward-row-term-without-weights",
    "backward_own_row_term_mean": "backward-row-term-mean",
    "backward_own_row_term_of_columns": "backward-row-term-over-queries",
    "backward_own_row_term_added": "backward-row-term-added",
    "backward_own_softmax_skipped": "backward-no-softmax",
    "backward_own_sign": "backward-sign",
    "backward_own_scaled_twice": "backward-scale-twice",
    "backward_own_scale_multiplied": "backward-scale-multiplied",
    "backward_own_scale_at_key": "backward-scale-on-key-only",
    "backward_own_scale_at_values": "backward-scale-on-values",
    "backward_own_dq_of_queries": "backward-dq-from-queries",
    "backward_own_dk_of_keys": "backward-dk-from-keys",
    "backward_own_dq_of_dp": "backward-dq-from-weights",
    "backward_own_dv_of_values": "backward-dv-from-values",
    "backward_own_dk_dv_exchanged": "backward-dk-dv-exchanged",
    "backward_own_weights_unscaled": "backward-forward-not-scaled",
    "backward_own_dp_of_output": "backward-dp-from-output",
    "backward_own_dp_of_keys": "backward-dp-from-keys",
    "backward_own_always_causal": "backward-causal-unasked",
    "layer_own_query_way_only": "backward-dx-one-path",
    "layer_own_value_way_missing": "backward-dx-path-missing",
    "layer_own_weights_across": "backward-dx-weight-not-transposed",
    "layer_own_dw_across": "backward-dw-transposed",
    "layer_own_dwo_across": "backward-dwo-transposed",
    "layer_own_batch_mean": "backward-dw-batch-mean",
    "layer_own_output_skipped": "backward-output-ignored",
    "layer_own_output_across": "backward-output-not-transposed",
    "layer_own_dwo_of_output": "backward-dwo-from-output",
}
TASK = {name: "backward" for name in EXPECTED}
