"""Token by token gone wrong, in NumPy."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    """np.tril of (new, all) starts in the upper left corner."""
    B, L, E = x.shape
    q = (x @ W_q).reshape(B, L, num_heads, -1).transpose(0, 2, 1, 3)
    k = (x @ W_k).reshape(B, L, num_heads, -1).transpose(0, 2, 1, 3)
    v = (x @ W_v).reshape(B, L, num_heads, -1).transpose(0, 2, 1, 3)
    if cache is not None:
        k = np.concatenate([cache[0], k], axis=2)
        v = np.concatenate([cache[1], v], axis=2)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)
    out = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(B, L, E)
    return out @ W_o, (k, v)


def project(x, weight, num_heads):
    return (x @ weight).reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def attend(q, k, v, W_o, causal=True):
    """Right: the last query is the last key's."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool), scores, -np.inf)
    y = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    return y.reshape(*y.shape[:2], -1) @ W_o


def join(past, new):
    return new if past is None else np.concatenate((past, new), axis=2)


def cached_reads_new_only(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    k, v = project(x, W_k, num_heads), project(x, W_v, num_heads)
    cache = {"k": k, "v": v} if cache is None else {"k": join(cache["k"], k), "v": join(cache["v"], v)}
    return attend(project(x, W_q, num_heads), k, v, W_o), cache


def cached_exchanges(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_v, past_k = (None, None) if cache is None else cache
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o), (k, v)


def cached_appends_in_front(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    k, v = project(x, W_k, num_heads), project(x, W_v, num_heads)
    if cache is not None:
        k, v = np.concatenate((k, cache[0]), axis=2), np.concatenate((v, cache[1]), axis=2)
    return attend(project(x, W_q, num_heads), k, v, W_o), (k, v)


def cached_overwrites(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    cache = project(x, W_k, num_heads), project(x, W_v, num_heads)
    return attend(project(x, W_q, num_heads), join(past_k, cache[0]), join(past_v, cache[1]), W_o), cache


def cached_open_prefill(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o, causal=cache is not None), (k, v)


def cached_never_causal(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o, causal=False), (k, v)


def cached_drops_newest(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o), (k[:, :, :-1], v[:, :, :-1])


def cached_writes_at_zero(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    """A buffer and a length: the length grows, the place of writing stays 0."""
    if cache is None:
        shape = x.shape[0], num_heads, 64, x.shape[2] // num_heads
        cache = np.zeros(shape), np.zeros(shape), 0
    keys, values, length = cache
    n = x.shape[1]
    keys[:, :, :n], values[:, :, :n] = project(x, W_k, num_heads), project(x, W_v, num_heads)
    length += n
    return attend(project(x, W_q, num_heads), keys[:, :, :length], values[:, :, :length], W_o), (keys, values, length)


def cached_reads_then_appends(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    k, v = project(x, W_k, num_heads), project(x, W_v, num_heads)
    q = project(x, W_q, num_heads)
    if cache is None:
        return attend(q, k, v, W_o), (k, v)
    out = attend(q, cache[0], cache[1], W_o, causal=False)
    return out, (join(cache[0], k), join(cache[1], v))


def cached_skips_first(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    k, v = project(x, W_k, num_heads), project(x, W_v, num_heads)
    q = project(x, W_q, num_heads)
    if cache is None:
        return attend(q, k, v, W_o), (k, v)
    return attend(q, join(cache[0][:, :, 1:], k), join(cache[1][:, :, 1:], v), W_o), (join(cache[0], k), join(cache[1], v))


def cached_open_afterwards(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o, causal=cache is None), (k, v)


def cached_frozen(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    past_k, past_v = cache or (None, None)
    k, v = join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    return attend(project(x, W_q, num_heads), k, v, W_o), cache or (k, v)


def cached_sees_past_and_itself(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    """The mask of new tokens among themselves is the unit matrix."""
    past_k, past_v = cache or (None, None)
    q, k, v = project(x, W_q, num_heads), join(past_k, project(x, W_k, num_heads)), join(past_v, project(x, W_v, num_heads))
    new = x.shape[1]
    keep = np.concatenate([np.ones((new, k.shape[2] - new)), np.eye(new)], axis=1) > 0
    y = (softmax(np.where(keep, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)) @ v).transpose(0, 2, 1, 3)
    return y.reshape(x.shape) @ W_o, (k, v)


EXPECTED = {
    "cached_attention": "cache-position-not-advanced",
    "cached_reads_new_only": "cache-past-not-prepended",
    "cached_exchanges": "cache-keys-values-exchanged",
    "cached_appends_in_front": "cache-appended-in-front",
    "cached_overwrites": "cache-keeps-last-call",
    "cached_open_prefill": ("cache-no-causal-in-prefill", "no-causal"),
    "cached_never_causal": ("no-causal", "cache-no-causal-in-prefill"),
    "cached_drops_newest": "cache-last-token-missing",
    "cached_writes_at_zero": "cache-overwritten",
    "cached_reads_then_appends": "cache-last-token-missing",
    "cached_skips_first": "cache-first-token-missing",
    "cached_open_afterwards": "cache-no-causal-after-prefill",
    "cached_frozen": "cache-not-grown",
    "cached_sees_past_and_itself": "cache-past-causal-only",
}
TASK = {name: "cache" for name in EXPECTED}
