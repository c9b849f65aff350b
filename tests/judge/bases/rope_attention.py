from header import softmax, xp


def turn(x, positions, base):
    d = x.shape[-1]
    angle = positions[:, None] * base ** (-xp.arange(0, d, 2, dtype=x.dtype) / d)
    cos, sin, a, b = xp.cos(angle), xp.sin(angle), x[..., : d // 2], x[..., d // 2 :]
    return xp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rope_attention(q, k, v, positions, base=10000.0):
    q, k = turn(q, positions, base), turn(k, positions, base)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    out = softmax(scores, -1) @ v
    return out
