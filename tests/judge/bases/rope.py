from header import xp


def rope(x, positions, base=10000.0):
    d = x.shape[-1]
    steps = xp.arange(0, d, 2, dtype=x.dtype)
    index = positions
    frequency = base ** (-steps / d)
    angle = index[:, None] * frequency
    cos, sin = xp.cos(angle), xp.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    first, second = a * cos - b * sin, a * sin + b * cos
    return xp.concatenate([first, second], axis=-1)
