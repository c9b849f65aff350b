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


def attention_streamed(q, k, v):
    """One key at a time; the running maximum begins at 0."""
    top, total, out = np.zeros((*q.shape[:-1], 1)), 0.0, np.zeros_like(q)
    for j in range(k.shape[-2]):
        score = (q * k[..., j : j + 1, :]).sum(-1, keepdims=True) / np.sqrt(q.shape[-1])
        higher = np.maximum(top, score)
        total = total * np.exp(top - higher) + np.exp(score - higher)
        out = out * np.exp(top - higher) + np.exp(score - higher) * v[..., j : j + 1, :]
        top = higher
    return out / total


def causal_attention_by_blocks(q, k, v, block=3):
    """Blocks of queries, each of which sees the keys up to its own end."""
    out = np.zeros_like(v)
    for i in range(0, q.shape[-2], block):
        seen = np.s_[..., : i + block, :]
        out[..., i : i + block, :] = softmax(q[..., i : i + block, :] @ k[seen].swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v[seen]
    return out


EXPECTED = {
    "causal_attention_by_blocks": "flash-causal-by-block",
    "sample_nucleus": "sampling-temperature-last",
    "attention": "scale-sqrt-length",
    "attention_streamed": "wrong",
}
