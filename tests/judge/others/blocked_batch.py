import numpy as np


def attend(query, key, value, blocked=None):
    """blocked: bool, True where a position is hidden; returns (context, probabilities)."""
    scale = 1.0 / query.shape[-1] ** 0.5
    logits = scale * np.matmul(query, np.swapaxes(key, -1, -2))
    if blocked is not None:
        logits = np.where(blocked, np.finfo(logits.dtype).min, logits)
    logits -= logits.max(axis=-1)[..., None]
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(axis=-1)[..., None]
    context = np.matmul(probabilities, value)
    return context, probabilities
