from header import softmax, xp


def attention_backward(q, k, v, dout, causal=False):
    Tq, Tk, scale = q.shape[-2], k.shape[-2], q.shape[-1] ** -0.5
    products = q @ k.swapaxes(-1, -2) * scale
    scores = xp.where(xp.tril(xp.ones((Tq, Tk)), Tk - Tq) == 0, -1e30, products) if causal else products
    p = softmax(scores, -1)
    dv = p.swapaxes(-1, -2) @ dout
    dp = dout @ v.swapaxes(-1, -2)
    row = (p * dp).sum(-1, keepdims=True)
    ds = p * (dp - row)
    dq = ds @ k * scale
    dk = ds.swapaxes(-1, -2) @ q * scale
    return dq, dk, dv
