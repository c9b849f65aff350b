"""Functions with one mistake each, as people write them: loops, slices with steps, buffers, arrays changed in place."""

import numpy as np


def softmax(x):
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)


def sdpa_where_without_result(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        np.where(mask, scores, -1e9)
    return softmax(scores) @ v


def sdpa_filled_in_place(q, k, v, mask=None):
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores[~np.broadcast_to(mask, scores.shape)] = 0
    return softmax(scores) @ v


def sdpa_added_the_wrong_way(q, k, v, mask=None):
    """mask * -1e9, where (1 - mask) * -1e9 was meant."""
    scores = np.matmul(q, k.transpose(0, 1, 3, 2)) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else scores + mask.astype(float) * -1e9) @ v


def sdpa_eighth(q, k, v, mask=None):
    """1 / sqrt(64), from an example."""
    scores = q @ k.swapaxes(-1, -2) * 0.125
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


def sdpa_scales_the_caller(q, k, v, mask=None):
    """/= writes into the caller's array: at the second call it is scaled twice."""
    q /= np.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


def v1_scales_the_weight(x, W_q, b_q, W_k, b_k, W_v, b_v):
    """*= writes into the caller's weight."""
    W_q *= x.shape[-1] ** -0.5
    q, k, v = x @ W_q + b_q * x.shape[-1] ** -0.5, x @ W_k + b_k, x @ W_v + b_v
    return softmax(q @ k.swapaxes(-1, -2)) @ v


def v3_across(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.array_split(x @ W_qkv + b_qkv, 3, axis=2)
    scores = np.einsum("bid,bjd->bij", q, k) / np.sqrt(q.shape[-1])
    weights = softmax(scores if mask is None else np.where(mask, scores, -1e20))
    return np.einsum("bij,bje,fe->bif", weights, v, W_o) + b_o


def single_head_flipped(x, W_q, W_k, W_v, W_o):
    """tril of -inf: the past is hidden."""
    scores = (x @ W_q) @ (x @ W_k).transpose(0, 2, 1) / np.sqrt(W_q.shape[1])
    return softmax(scores + np.tril(np.full(scores.shape[1:], -1e9), -1)) @ (x @ W_v) @ W_o


def causal_without_diagonal(q, k, v):
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores[..., np.triu(np.ones((Tq, Tk)), k=Tk - Tq).astype(bool)] = -1e9
    return softmax(scores) @ v


def mha_strided(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads, mask=None):
    """Slices with a step, written back with the same step."""
    q, k, v = x @ wq + bq, x @ wk + bk, x @ wv + bv
    y = np.zeros_like(q)
    for h in range(n_heads):
        scores = q[:, :, h::n_heads] @ k[:, :, h::n_heads].swapaxes(1, 2) / np.sqrt(x.shape[-1] // n_heads)
        if mask is not None:
            scores = np.where(mask[:, 0], scores, -np.inf)
        y[:, :, h::n_heads] = softmax(scores) @ v[:, :, h::n_heads]
    return y @ wo + bo


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


def rope_other_way(x, positions, base=10000.0):
    """Adjacent pairs as complex numbers, turned clockwise."""
    angle = np.outer(positions, base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(-1j * angle)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def rope_halves_with_adjacent_angles(x, positions, base=10000.0):
    d = x.shape[-1]
    angle = np.repeat(np.outer(positions, base ** (-np.arange(0, d, 2) / d)), 2, axis=-1)
    return x * np.cos(angle) + np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1) * np.sin(angle)


def flash_coarse(q, k, v, block_size, causal=False):
    """One query at a time; whole tiles of the future are left out, and nothing else is hidden."""
    out = np.empty(q.shape[:-1] + v.shape[-1:])
    for i in range(q.shape[2]):
        last = (i + k.shape[2] - q.shape[2]) // block_size if causal else k.shape[2]
        end = min((last + 1) * block_size, k.shape[2])
        out[:, :, i] = (softmax(q[:, :, i : i + 1] @ k[:, :, :end].swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v[:, :, :end])[:, :, 0]
    return out


EXPECTED = {
    "sdpa_where_without_result": "no-mask",
    "sdpa_filled_in_place": ("fill-zero", "mask-multiplies-scores", "fill-small"),
    "sdpa_added_the_wrong_way": "mask-polarity",
    "sdpa_eighth": ("scale-other", "scale-1-over-d", "scale-twice"),
    "sdpa_scales_the_caller": "inputs-changed",
    "v1_scales_the_weight": "inputs-changed",
    "v3_across": "output-transposed-weight",
    "single_head_flipped": "causal-flipped",
    "causal_without_diagonal": "causal-off-by-one",
    "mha_strided": "heads-interleaved",
    "gqa_modulo": "gqa-heads-interleaved",
    "cache_writes_at_zero": "cache-overwritten",
    "rope_other_way": "rope-direction-reversed",
    "rope_halves_with_adjacent_angles": "rope-pairs-mixed",
    "flash_coarse": "flash-causal-by-block",
}
TASK = {name: name.split("_")[0] for name in EXPECTED} | {"single_head_flipped": "single-head"}
