from header import softmax, xp


def flash(q, k, v, block_size, causal=False):
    Tq, Tk, d = q.shape[-2], k.shape[-2], q.shape[-1]
    i = xp.arange(Tq)[:, None] + Tk - Tq
    blocks = [(begin, min(begin + block_size, Tk)) for begin in range(0, Tk, block_size)]
    out, total, top = xp.zeros_like(q), xp.zeros_like(q[..., :1]), xp.zeros_like(q[..., :1]) - xp.inf
    for begin, end in blocks:
        j = xp.arange(begin, end)[None, :]
        products = q @ k[..., begin:end, :].swapaxes(-1, -2) / d**0.5
        scores = xp.where((j > i) & causal, -1e30, products)
        new = xp.maximum(top, xp.amax(scores, -1, keepdims=True))
        p, alpha = xp.exp(scores - new), xp.exp(top - new)
        total = alpha * total + p.sum(-1, keepdims=True)
        out = alpha * out + p @ v[..., begin:end, :]
        top = new
    return out / total
