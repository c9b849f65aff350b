from header import nn, softmax, xp


def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    B, n, E = x.shape
    H, d = num_heads, E // num_heads
    q, k, v = (y.reshape(B, n, H, d).swapaxes(1, 2) for y in (x @ W_q, x @ W_k, x @ W_v))
    past = (k[:, :, :0], v[:, :, :0]) if cache is None else cache
    keys, values = xp.concatenate([past[0], k], 2), xp.concatenate([past[1], v], 2)
    kept = keys, values
    T = keys.shape[2]
    i, j = xp.arange(n)[:, None] + T - n, xp.arange(T)[None, :]
    scores = xp.where(j <= i, q @ keys.swapaxes(-1, -2) / d**0.5, -1e9)
    joined = (softmax(scores, -1) @ values).swapaxes(1, 2).reshape(B, n, E)
    return joined @ W_o, kept
