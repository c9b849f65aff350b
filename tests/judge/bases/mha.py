from header import nn, softmax, xp


def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    B, L, E = x.shape
    H, d = num_heads, E // num_heads
    queries, keys, values = x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v
    q, k, v = (y.reshape(B, L, H, d).swapaxes(1, 2) for y in (queries, keys, values))
    products = q @ k.swapaxes(-1, -2)
    scaled = products / d**0.5
    scores = scaled if mask is None else xp.where(mask == 0, -1e9, scaled)
    weights = softmax(scores, -1)
    mixed = weights @ v
    joined = mixed.swapaxes(1, 2).reshape(B, L, E)
    return joined @ W_o + b_o
