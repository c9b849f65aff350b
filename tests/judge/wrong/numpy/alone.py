"""Wrong code that shows on some calls alone: two settings at once, as many keys as queries, scores far below zero."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sample_nucleus(logits, temperature=1.0, top_p=1.0):
    """The nucleus is that of the logits as they are."""
    likely = np.argsort(-logits, axis=-1)
    shares = np.take_along_axis(softmax(logits), likely, -1)
    out = np.take_along_axis(logits / temperature, likely, -1)
    out = softmax(np.where(np.cumsum(shares, -1) - shares < top_p, out, -np.inf))
    return np.take_along_axis(out, np.argsort(likely, axis=-1), -1)


def attention(queries, keys, values):
    """(n, d) each, number by number."""
    n = len(queries)
    scores = np.array([[queries[i] @ keys[j] for j in range(n)] for i in range(n)])
    return softmax(scores / n**0.5) @ values


EXPECTED = {
    "sample_nucleus": "sampling-temperature-last",
    "attention": "scale-sqrt-length",
}
