"""More of the backward pass by hand gone wrong: of attention, and of a layer with one head."""

import math

import torch


def forward(q, k, causal):
    """(scores, weights)"""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if causal:
        queries, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(queries, keys).triu(keys - queries + 1).bool(), float("-inf"))
    return scores, torch.softmax(scores, dim=-1)


def softmax_backward(p, dp):
    return p * (dp - (p * dp).sum(dim=-1, keepdim=True))


def backward_hand_row_term_of_dp(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = p * (dp - dp.sum(-1, keepdim=True)) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_row_term_mean(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = p * (dp - (p * dp).mean(-1, keepdim=True)) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_row_term_of_columns(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = p * (dp - (p * dp).sum(-2, keepdim=True)) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_row_term_added(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = p * (dp + (p * dp).sum(-1, keepdim=True)) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_softmax_skipped(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = dp * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_sign(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = p * ((p * dp).sum(-1, keepdim=True) - dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_scaled_twice(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_scale_multiplied(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) / c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_scale_at_key(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp)
    return ds @ k, ds.mT @ q * c, p.mT @ dout


def backward_hand_scale_at_values(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout * c


def backward_hand_dq_of_queries(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ q, ds.mT @ q, p.mT @ dout


def backward_hand_dk_of_keys(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ k, p.mT @ dout


def backward_hand_dq_of_dp(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return dp @ k * c, ds.mT @ q, p.mT @ dout


def backward_hand_dv_of_values(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ v


def backward_hand_dk_dv_exchanged(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, p.mT @ dout, ds.mT @ q


def backward_hand_weights_unscaled(q, k, v, dout, causal=False):
    p = forward(q * q.size(-1) ** 0.5, k, causal)[1]
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_dp_of_output(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = p @ v @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_dp_of_keys(q, k, v, dout, causal=False):
    _, p = forward(q, k, causal)
    dp, c = dout @ k.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def backward_hand_always_causal(q, k, v, dout, causal=False):
    _, p = forward(q, k, True)
    dp, c = dout @ v.mT, q.size(-1) ** -0.5
    ds = softmax_backward(p, dp) * c
    return ds @ k, ds.mT @ q, p.mT @ dout


def outer(a, b):
    """Summed over batch and tokens."""
    return torch.einsum("bti,btj->ij", a, b)


def layer_hand_query_way_only(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_hand_value_way_missing(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_hand_weights_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q + dk @ W_k + dv @ W_v
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_hand_dw_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(dq, x), outer(dk, x), outer(dv, x), outer(p @ v, dout)


def layer_hand_dwo_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(dout, p @ v)


def layer_hand_batch_mean(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(x, dq) / len(x), outer(x, dk) / len(x), outer(x, dv) / len(x), outer(p @ v, dout) / len(x)


def layer_hand_output_skipped(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_hand_output_across(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v, dout)


def layer_hand_dwo_of_output(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, c = x @ W_q, x @ W_k, x @ W_v, x.size(-1) ** -0.5
    p, d = torch.softmax(q @ k.mT * c, dim=-1), dout @ W_o.mT
    ds = softmax_backward(p, d @ v.mT) * c
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ d
    dx = dq @ W_q.mT + dk @ W_k.mT + dv @ W_v.mT
    return dx, outer(x, dq), outer(x, dk), outer(x, dv), outer(p @ v @ W_o, dout)


EXPECTED = {
    "backward_hand_row_term_of_dp": "backward-row-term-without-weights",
    "backward_hand_row_term_mean": "backward-row-term-mean",
    "backward_hand_row_term_of_columns": "backward-row-term-over-queries",
    "backward_hand_row_term_added": "backward-row-term-added",
    "backward_hand_softmax_skipped": "backward-no-softmax",
    "backward_hand_sign": "backward-sign",
    "backward_hand_scaled_twice": "backward-scale-twice",
    "backward_hand_scale_multiplied": "backward-scale-multiplied",
    "backward_hand_scale_at_key": "backward-scale-on-key-only",
    "backward_hand_scale_at_values": "backward-scale-on-values",
    "backward_hand_dq_of_queries": "backward-dq-from-queries",
    "backward_hand_dk_of_keys": "backward-dk-from-keys",
    "backward_hand_dq_of_dp": "backward-dq-from-weights",
    "backward_hand_dv_of_values": "backward-dv-from-values",
    "backward_hand_dk_dv_exchanged": "backward-dk-dv-exchanged",
    "backward_hand_weights_unscaled": "backward-forward-not-scaled",
    "backward_hand_dp_of_output": "backward-dp-from-output",
    "backward_hand_dp_of_keys": "backward-dp-from-keys",
    "backward_hand_always_causal": "backward-causal-unasked",
    "layer_hand_query_way_only": "backward-dx-one-path",
    "layer_hand_value_way_missing": "backward-dx-path-missing",
    "layer_hand_weights_across": "backward-dx-weight-not-transposed",
    "layer_hand_dw_across": "backward-dw-transposed",
    "layer_hand_dwo_across": "backward-dwo-transposed",
    "layer_hand_batch_mean": "backward-dw-batch-mean",
    "layer_hand_output_skipped": "backward-output-ignored",
    "layer_hand_output_across": "backward-output-not-transposed",
    "layer_hand_dwo_of_output": "backward-dwo-from-output",
}
TASK = {name: "backward" for name in EXPECTED}
