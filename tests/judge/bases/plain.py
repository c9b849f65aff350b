from header import softmax, xp


def sdpa(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    weights = softmax(scores, -1)
    return weights @ v
