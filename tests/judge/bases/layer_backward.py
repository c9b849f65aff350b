from header import softmax, xp


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    q, k, v, scale = x @ W_q, x @ W_k, x @ W_v, x.shape[-1] ** -0.5
    p = softmax(q @ k.swapaxes(-1, -2) * scale, -1)
    out = p @ v
    dheads = dout @ W_o.T
    dp = dheads @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    dq, dk, dv = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dheads
    dx = dq @ W_q.T + dk @ W_k.T + dv @ W_v.T
    dW_q, dW_k, dW_v = (xp.einsum("bti,btj->ij", x, dy) for dy in (dq, dk, dv))
    dW_o = xp.einsum("bti,btj->ij", out, dout)
    return dx, dW_q, dW_k, dW_v, dW_o
