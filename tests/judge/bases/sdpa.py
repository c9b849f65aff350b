from header import softmax, xp


def sdpa(q, k, v, mask=None):
    d = q.shape[-1]
    products = q @ k.swapaxes(-1, -2)
    scaled = products / d**0.5
    scores = scaled if mask is None else xp.where(mask == 0, -1e9, scaled)
    weights = softmax(scores, -1)
    mixed = weights @ v
    return mixed
