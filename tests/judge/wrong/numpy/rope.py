"""Rotary positions gone wrong, in NumPy."""

import numpy as np


def rope_first_is_one(x, positions, base=10000.0):
    """Positions count from 1."""
    d = x.shape[-1]
    inverse = 1.0 / base ** (np.arange(0, d, 2) / d)
    angles = np.outer(np.asarray(positions) + 1, inverse)
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def turn(x, angles):
    """Right: adjacent pairs."""
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    pairs = pairs * np.exp(1j * angles)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def angles_of(x, positions, base):
    """Right."""
    return np.asarray(positions)[:, None] * base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])


def rope_small_base(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions, 100.0))


def rope_large_base(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions, 500000.0))


def rope_exponent(x, positions, base=10000.0):
    i = np.arange(x.shape[-1] // 2)
    return turn(x, np.outer(positions, base ** (-i / x.shape[-1])))


def rope_other_way(x, positions, base=10000.0):
    return turn(x, -angles_of(x, positions, base))


def rope_halves_with_adjacent_angles(x, positions, base=10000.0):
    d = x.shape[-1]
    angles = np.repeat(angles_of(x, positions, base), 2, axis=-1)
    rotated = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
    return x * np.cos(angles) + rotated * np.sin(angles)


def rope_single_angle(x, positions, base=10000.0):
    return turn(x, np.asarray(positions, dtype=float)[:, None])


def attend(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def rope_attention_of_all_three(q, k, v, positions, base=10000.0):
    """All three are turned."""
    q, k, v = (turn(y, angles_of(y, positions, base)) for y in (q, k, v))
    return attend(q, k, v)


def rope_attention_of_queries(q, k, v, positions, base=10000.0):
    return attend(turn(q, angles_of(q, positions, base)), k, v)


def rope_attention_of_keys(q, k, v, positions, base=10000.0):
    return attend(q, turn(k, angles_of(k, positions, base)), v)


def rope_index_doubled(x, positions, base=10000.0):
    """2 i of an i that counts in twos."""
    i = np.arange(0, x.shape[-1], 2)
    return turn(x, np.outer(positions, base ** (-2 * i / x.shape[-1])))


def rope_growing(x, positions, base=10000.0):
    return turn(x, np.outer(positions, base ** (np.arange(0, x.shape[-1], 2) / x.shape[-1])))


def rope_from_second_frequency(x, positions, base=10000.0):
    i = np.arange(1, x.shape[-1] // 2 + 1)
    return turn(x, np.outer(positions, base ** (-2 * i / x.shape[-1])))


def rope_frequencies_backwards(x, positions, base=10000.0):
    return turn(x, angles_of(x, positions, base)[:, ::-1])


def rope_without_minus(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.cos(angles) + x[..., 1::2] * np.sin(angles)
    out[..., 1::2] = x[..., 1::2] * np.cos(angles) + x[..., 0::2] * np.sin(angles)
    return out


def rope_sin_for_cos(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.sin(angles) - x[..., 1::2] * np.cos(angles)
    out[..., 1::2] = x[..., 0::2] * np.cos(angles) + x[..., 1::2] * np.sin(angles)
    return out


def rope_cosine_alone(x, positions, base=10000.0):
    return x * np.repeat(np.cos(angles_of(x, positions, base)), 2, axis=-1)


def rope_added(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    return x + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(angles.shape[0], -1)


def rope_counts_itself(x, positions, base=10000.0):
    return turn(x, angles_of(x, np.arange(x.shape[-2]), base))


def rope_attention_forgotten(q, k, v, positions, base=10000.0):
    return attend(q, k, v)


def rope_attention_twice(q, k, v, positions, base=10000.0):
    angles = angles_of(q, positions, base)
    return attend(turn(turn(q, angles), angles), turn(turn(k, angles), angles), v)


def rope_by_head(x, positions, base=10000.0):
    """[B, H, T, d] is taken for [B, T, H, d]."""
    angles = angles_of(x, np.arange(x.shape[1]), base)
    return turn(x, angles[:, None, :])


EXPECTED = {
    "rope_first_is_one": "rope-positions-from-one",
    "rope_small_base": "rope-wrong-base",
    "rope_large_base": "rope-wrong-base",
    "rope_exponent": "rope-exponent-halved",
    "rope_other_way": "rope-direction-reversed",
    "rope_halves_with_adjacent_angles": "rope-pairs-mixed",
    "rope_single_angle": "rope-same-angle",
    "rope_attention_of_all_three": "rope-value-turned",
    "rope_attention_of_queries": "rope-query-only",
    "rope_attention_of_keys": "rope-key-only",
    "rope_index_doubled": "rope-exponent-doubled",
    "rope_growing": "rope-exponent-sign",
    "rope_from_second_frequency": "rope-exponents-from-two",
    "rope_frequencies_backwards": "rope-angles-reversed",
    "rope_without_minus": "rope-sign-missing",
    "rope_sin_for_cos": "rope-sine-cosine-exchanged",
    "rope_cosine_alone": "rope-cosine-only",
    "rope_added": "rope-added",
    "rope_counts_itself": "rope-positions-not-used",
    "rope_attention_forgotten": "rope-not-used",
    "rope_attention_twice": "rope-turned-twice",
    "rope_by_head": "rope-positions-per-head",
}
TASK = {name: "rope" for name in EXPECTED}
