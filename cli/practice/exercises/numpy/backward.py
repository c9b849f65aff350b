"""The gradients of attention by hand, without autograd. Behind article 003; docs/maths/by-hand.md does one row with a pencil.

    q       [B, H, Tq, d]     queries
    k, v    [B, H, Tk, d]     keys and values
    dout    [B, H, Tq, d]     gradient of the loss with respect to out
    causal  False             True: query i sees the keys up to i + Tk - Tq
    attention_backward returns (dq, dk, dv), each of the shape of its tensor

    x                       [B, L, E]    a sequence of L tokens
    W_q, W_k, W_v, W_o      [E, E]       y = x W, no biases; one head, no mask
    dout                    [B, L, E]    gradient with respect to the layer's output
    layer_backward returns (dx, dW_q, dW_k, dW_v, dW_o)

layer_backward is optional: delete it and only the first is judged.
Judged: each gradient by value, so the line of the derivation that is wrong can be named.
"""

import numpy as np


def attention_backward(q, k, v, dout, causal=False):
    # solution: weights again, then back through values, softmax, scale and scores
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ np.swapaxes(k, -1, -2) * scale                      # [..., Tq, Tk]
    if causal:
        Tq, Tk = scores.shape[-2:]
        scores = np.where(np.arange(Tk) <= np.arange(Tq)[:, None] + (Tk - Tq), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [..., Tq, Tk]

    dv = np.swapaxes(weights, -1, -2) @ dout                         # out = weights v
    dweights = dout @ np.swapaxes(v, -1, -2)                         # [..., Tq, Tk]
    row = (weights * dweights).sum(axis=-1, keepdims=True)           # [..., Tq, 1]: softmax binds the weights of a row
    dscores = weights * (dweights - row)                             # [..., Tq, Tk]; 0 where masked, since weights are
    dq = dscores @ k * scale                                         # scores = scale q k^T
    dk = np.swapaxes(dscores, -1, -2) @ q * scale
    return dq, dk, dv
    # end


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    # solution: forward again, then back through output projection, attention, projections
    q, k, v = x @ W_q, x @ W_k, x @ W_v                              # [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L]
    context = weights @ v                                            # [B, L, E]

    dW_o = np.einsum("ble,blf->ef", context, dout)                   # out = context W_o; sums over batch and tokens
    dq, dk, dv = attention_backward(q, k, v, dout @ W_o.T)
    dx = dq @ W_q.T + dk @ W_k.T + dv @ W_v.T                        # x goes three ways, so three gradients meet in it
    dW_q, dW_k, dW_v = (np.einsum("ble,blf->ef", x, d) for d in (dq, dk, dv))
    return dx, dW_q, dW_k, dW_v, dW_o
    # end
