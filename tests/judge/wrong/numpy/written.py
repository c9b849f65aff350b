"""Wrong code whose form is found by trying, or that shows on some calls alone; loops over heads, buffers; what docstrings promise."""

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


def gqa_modulo(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    """A loop over heads; head h reads group h % Hkv."""
    d, outs = x.shape[-1] // num_heads, []
    for h in range(num_heads):
        mine, theirs = slice(h * d, (h + 1) * d), slice(h % num_kv_heads * d, (h % num_kv_heads + 1) * d)
        scores = x @ W_q[:, mine] @ (x @ W_k[:, theirs]).transpose(0, 2, 1)
        outs.append(softmax(scores / np.sqrt(d)) @ (x @ W_v[:, theirs]))
    return np.concatenate(outs, axis=-1) @ W_o


def cache_writes_at_zero(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    """A buffer and a length: the length grows, new keys are written at 0."""
    q, k, v = ((x @ W).reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for W in (W_q, W_k, W_v))
    keys, values, length = cache or (np.zeros((*k.shape[:2], 64, k.shape[3])), np.zeros((*k.shape[:2], 64, k.shape[3])), 0)
    n = x.shape[1]
    keys[:, :, :n], values[:, :, :n] = k, v
    length += n
    keep = np.tri(n, length, length - n, dtype=bool)
    scores = np.where(keep, q @ keys[:, :, :length].swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return (softmax(scores) @ values[:, :, :length]).swapaxes(1, 2).reshape(x.shape) @ W_o, (keys, values, length)


def heads_of_matrices(x, wq, wk, wv, wo, n_heads):
    """Matrices (out, in)."""
    q, k, v = (np.moveaxis((x @ w.T).reshape(*x.shape[:2], n_heads, -1), 2, 1) for w in (wq, wk, wv))
    y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return np.moveaxis(y, 1, 2).reshape(x.shape) @ wo


def attends_to_the_future(x, wq, wk, wv):
    """Causal self-attention of a decoder."""
    return softmax(x @ wq @ (x @ wk).swapaxes(-1, -2) / np.sqrt(wq.shape[-1])) @ (x @ wv)


EXPECTED = {
    "sample_nucleus": "sampling-temperature-last",
    "attention": "scale-sqrt-length",
    "gqa_modulo": "gqa-heads-interleaved",
    "cache_writes_at_zero": "cache-overwritten",
    "heads_of_matrices": "output-transposed-weight",
    "attends_to_the_future": "no-causal",
}
TASK = {"gqa_modulo": "gqa", "cache_writes_at_zero": "cache"}
