from header import softmax, xp


def phi(x):
    return xp.where(x > 0, x + 1, xp.exp(xp.clip(x, None, 0)))


def linear_attention(q, k, v, causal=False):
    f, g, w = phi(q), phi(k), v
    products = f @ g.swapaxes(-1, -2)
    weights = xp.tril(products) if causal else products
    total = weights.sum(-1, keepdims=True)
    return weights @ w / total
