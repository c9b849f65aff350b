"""The tiled online softmax gone wrong, in NumPy. Each is written out."""

import numpy as np


def tile(q, k, start, end, causal):
    """Scores of all queries with the keys of one block; hidden ones are very small."""
    s = q @ k[:, :, start:end].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        i = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        s = np.where(np.arange(start, end)[None, :] <= i, s, -1e30)
    return s


def begin(q, v):
    acc = np.zeros(q.shape[:-1] + v.shape[-1:])
    return acc, np.full(q.shape[:-1] + (1,), -np.inf), np.zeros(q.shape[:-1] + (1,))


def flash(q, k, v, block_size, causal=False):
    """O is not brought to the new maximum."""
    o, m, l = begin(q, v)  # noqa: E741
    Tk = k.shape[2]
    for start in range(0, Tk, block_size):
        end = min(start + block_size, Tk)
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p = np.exp(s - m_new)
        l = l * np.exp(m - m_new) + p.sum(axis=-1, keepdims=True)  # noqa: E741
        o = o + p @ v[:, :, start:end]
        m = m_new
    return o / l


def flash_sum(q, k, v, block_size, causal=False):
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p = np.exp(s - m_new)
        total = total + p.sum(axis=-1, keepdims=True)
        o = o * np.exp(m - m_new) + p @ v[:, :, start:end]
        m = m_new
    return o / total


def flash_old_maximum(q, k, v, block_size):
    """m is never written."""
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, False)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
    return o / total


def flash_no_division(q, k, v, block_size, causal=False):
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
        m = m_new
    return o


def flash_division_in_loop(q, k, v, block_size, causal=False):
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = (alpha * o + p @ v[:, :, start:end]) / total
        m = m_new
    return o


def flash_short(q, k, v, block_size, causal=False):
    """Tk // block_size blocks; a rest is lost."""
    o, m, total = begin(q, v)
    for block in range(k.shape[2] // block_size):
        start, end = block * block_size, (block + 1) * block_size
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
        m = m_new
    return o / total


def flash_returns_early(q, k, v, block_size, causal=False):
    """return is indented one step too far."""
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
        m = m_new
        return o / total


def flash_local_columns(q, k, v, block_size, causal=False):
    """np.tri of each block: its columns count from 0 again."""
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, False)
        if causal:
            s = np.where(np.tri(q.shape[2], end - start, k.shape[2] - q.shape[2], dtype=bool), s, -1e30)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
        m = m_new
    return o / total


def loop(q, k, v, size, causal=False, old=lambda a: a, new=lambda a: 1.0, own=False, last=lambda o, m, total: o / total):
    """Right; `old` and `new` make the factors of what was summed up before and of the tile."""
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], size):
        end = min(start + size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = s.max(axis=-1, keepdims=True) if own else np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = old(alpha) * total + new(alpha) * p.sum(axis=-1, keepdims=True)
        o = old(alpha) * o + new(alpha) * (p @ v[:, :, start:end])
        m = m_new
    return last(o, m, total)


def flash_tile_maximum(q, k, v, block_size):
    """Exponentials under each tile's own maximum are added up."""
    return loop(q, k, v, block_size, old=lambda a: 1.0, own=True)


def flash_alpha_squared(q, k, v, block_size, causal=False):
    return loop(q, k, v, block_size, causal, old=lambda a: a * a)


def flash_alpha_on_tile(q, k, v, block_size):
    """Nothing was summed up before the first tile: its alpha, 0, is not used."""
    return loop(q, k, v, block_size, old=lambda a: 1.0, new=lambda a: np.where(a == 0, 1.0, a))


def flash_twice_divided(q, k, v, block_size, causal=False):
    return loop(q, k, v, block_size, causal, last=lambda o, m, total: o / total**2)


def flash_over_maximum(q, k, v, block_size, causal=False):
    return loop(q, k, v, block_size, causal, last=lambda o, m, total: o / m)


def flash_replaces(q, k, v, block_size):
    return loop(q, k, v, block_size, old=lambda a: 0.0)


def flash_tiles_added(q, k, v, block_size):
    out = 0
    for j in range(0, k.shape[2], block_size):
        s = tile(q, k, j, min(j + block_size, k.shape[2]), False)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        out = out + p @ v[:, :, j : j + block_size] / p.sum(axis=-1, keepdims=True)
    return out


def flash_tiles_averaged(q, k, v, block_size):
    return flash_tiles_added(q, k, v, block_size) / -(-k.shape[2] // block_size)


def flash_overlaps(q, k, v, block_size):
    """range(start, end + 1): the next tile's first key is read twice."""
    o, m, total = begin(q, v)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size + 1, k.shape[2])
        s = tile(q, k, start, end, False)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total, o, m = alpha * total + p.sum(axis=-1, keepdims=True), alpha * o + p @ v[:, :, start:end], m_new
    return o / total


def flash_padded_with_zeros(q, k, v, block_size):
    rest = -k.shape[2] % block_size
    k, v = (np.concatenate([y, np.zeros(y.shape[:2] + (rest,) + y.shape[3:])], axis=2) for y in (k, v))
    return loop(q, k, v, block_size)


def flash_coarse(q, k, v, block_size, causal=False):
    """Whole tiles of the future are skipped, and nothing else is hidden. One query at a time."""
    out = np.empty(q.shape[:-1] + v.shape[-1:])
    for i in range(q.shape[2]):
        row = i + k.shape[2] - q.shape[2]
        end = min((row // block_size + 1) * block_size, k.shape[2]) if causal else k.shape[2]
        out[:, :, i : i + 1] = loop(q[:, :, i : i + 1], k[:, :, :end], v[:, :, :end], block_size)
    return out


def flash_coarse_too_short(q, k, v, block_size, causal=False):
    """Only tiles that are wholly in the past; a row that sees none gives NaN (0 / 0)."""
    out = np.empty(q.shape[:-1] + v.shape[-1:])
    for i in range(q.shape[2]):
        row = i + k.shape[2] - q.shape[2]
        whole = row + 1 == k.shape[2] or not causal
        end = k.shape[2] if whole else (row + 1) // block_size * block_size
        out[:, :, i : i + 1] = loop(q[:, :, i : i + 1], k[:, :, :end], v[:, :, :end], block_size)
    return out


def flash_starts_at_zero(q, k, v, block_size, causal=False):
    """The first maximum is 0."""
    o, m, total = begin(q, v)
    m = np.zeros_like(m)
    for start in range(0, k.shape[2], block_size):
        end = min(start + block_size, k.shape[2])
        s = tile(q, k, start, end, causal)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p, alpha = np.exp(s - m_new), np.exp(m - m_new)
        total = alpha * total + p.sum(axis=-1, keepdims=True)
        o = alpha * o + p @ v[:, :, start:end]
        m = m_new
    return o / total


EXPECTED = {
    "flash_starts_at_zero": "flash-maximum-from-zero",
    "flash": "flash-output-not-rescaled",
    "flash_sum": "flash-sum-not-rescaled",
    "flash_old_maximum": "flash-last-block-only",
    "flash_no_division": "flash-not-divided",
    "flash_division_in_loop": "flash-divided-per-block",
    "flash_short": "flash-last-block-short",
    "flash_returns_early": "flash-first-block-only",
    "flash_local_columns": "flash-causal-per-block",
    "flash_tile_maximum": "flash-maximum-not-carried",
    "flash_alpha_squared": "flash-factor-squared",
    "flash_alpha_on_tile": "flash-new-tile-rescaled",
    "flash_twice_divided": "flash-divided-twice",
    "flash_over_maximum": "flash-divided-by-maximum",
    "flash_replaces": "flash-last-block-only",
    "flash_tiles_added": "flash-blocks-added",
    "flash_tiles_averaged": "flash-blocks-averaged",
    "flash_overlaps": "flash-blocks-overlap",
    "flash_padded_with_zeros": "flash-last-block-padded",
    "flash_coarse": "flash-causal-by-block",
    "flash_coarse_too_short": "flash-diagonal-block-missing",
}
TASK = {name: "flash" for name in EXPECTED}
