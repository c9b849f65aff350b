"""The mask gone wrong, in NumPy. True means "may look"."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sdpa(q, k, v, mask=None):
    """Fills where the mask is true."""
    scores = np.matmul(q, k.transpose(0, 1, 3, 2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, -1e9, scores)
    weights = softmax(scores)
    return np.matmul(weights, v), weights


def scores_of(q, k):
    return np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])


def sdpa_mask_added_as_numbers(q, k, v, mask=None):
    """(mask) * -1e9, where (1 - mask) * -1e9 was meant."""
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores + mask.astype(scores.dtype) * -1e9
    return softmax(scores) @ v


def sdpa_mask_across(q, k, v, mask=None):
    """For as many queries as keys."""
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask.swapaxes(-1, -2), scores, -1e9)
    return softmax(scores) @ v


def sdpa_first_mask(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask[:1], scores, -1e9)
    return softmax(scores) @ v


def sdpa_last_mask(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask[-1], scores, -1e9)
    return softmax(scores) @ v


def sdpa_mask_unused(q, k, v, mask=None):
    return softmax(scores_of(q, k)) @ v


def sdpa_where_without_result(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        np.where(mask, scores, -1e9)
    return softmax(scores) @ v


def sdpa_zero_fill(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores[~np.broadcast_to(mask, scores.shape)] = 0
    return softmax(scores) @ v


def sdpa_tiny_fill(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask == 0, 1e-9, scores)
    return softmax(scores) @ v


def sdpa_small_fill(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask == 0, -5.0, scores)
    return softmax(scores) @ v


def sdpa_multiplied(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores * mask
    return softmax(scores) @ v


def sdpa_first_head(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores[:, 0] = np.where(mask[:, 0], scores[:, 0], -1e9)
    return softmax(scores) @ v


def sdpa_afterwards(q, k, v, mask=None):
    weights = softmax(scores_of(q, k))
    if mask is not None:
        weights = weights * mask
    return weights @ v


def sdpa_afterwards_renormalised(q, k, v, mask=None):
    weights = softmax(scores_of(q, k))
    if mask is not None:
        weights = np.where(mask, weights, 0.0)
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v


def cross_attention(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    """Right but for the mask of the first sequence."""
    B, L, E = x.shape

    def heads(y, W, b):
        return (y @ W + b).reshape(B, -1, num_heads, E // num_heads).transpose(0, 2, 1, 3)

    scores = scores_of(heads(x, W_q, b_q), heads(memory, W_k, b_k))
    if mask is not None:
        scores = np.where(mask[0], scores, -1e9)
    return (softmax(scores) @ heads(memory, W_v, b_v)).transpose(0, 2, 1, 3).reshape(B, L, E) @ W_o + b_o


def sdpa_mask_plus(q, k, v, mask=None):
    """The mask of 0 and 1 is added itself."""
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores + mask
    return softmax(scores) @ v


def sdpa_typo_of_a_fill(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = np.where(mask, scores, -1e-9)
    return softmax(scores) @ v


EXPECTED = {
    "sdpa_mask_plus": "mask-added-as-is",
    "sdpa_typo_of_a_fill": "fill-small",
    "sdpa": "mask-polarity",
    "sdpa_mask_added_as_numbers": "mask-polarity",
    "sdpa_mask_across": "mask-on-queries",
    "sdpa_first_mask": "mask-first-of-batch",
    "sdpa_last_mask": "mask-last-of-batch",
    "sdpa_mask_unused": "no-mask",
    "sdpa_where_without_result": "no-mask",
    "sdpa_zero_fill": ("fill-zero", "mask-multiplies-scores", "fill-small"),
    "sdpa_tiny_fill": ("fill-small", "fill-zero", "mask-multiplies-scores"),
    "sdpa_small_fill": "fill-other",
    "sdpa_multiplied": ("mask-multiplies-scores", "fill-zero", "fill-small"),
    "sdpa_first_head": "mask-first-head-only",
    "sdpa_afterwards": "mask-after-softmax",
    "sdpa_afterwards_renormalised": "mask-after-softmax-renormalised",
    "cross_attention": "mask-first-of-batch",
}
TASK = {name: "sdpa" for name in EXPECTED if name != "cross_attention"}
