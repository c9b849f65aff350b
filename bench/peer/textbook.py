"""Attention in f64 NumPy, and the error that each type may have against it. Shapes [B, H, T, D]; k and v heads are repeated."""

import numpy as np

# Largest difference from f64, as a share of the largest number, for inputs in [-1, 1] that are stored in the type.
TOLERANCE = {"f32": 256 * 2.0**-23, "bf16": 6 * 2.0**-8, "f16": 6 * 2.0**-11, "int8": 0.1, "int4": 0.4}  # fp8 is the coarsest of 8 bits


def _draws(seed):
    """draw(*sizes): numbers in [-1, 1] as f32."""
    random = np.random.default_rng(seed)
    return lambda *sizes: random.uniform(-1, 1, sizes).astype(np.float32)


def numbers(case, seed=17):
    """q, k, v, dout in [-1, 1] as f32."""
    draw = _draws(seed)
    q = draw(case.batch, case.heads, case.q_len, case.head_dim)
    k = draw(case.batch, case.hkv, case.tk, case.head_dim)
    v = draw(case.batch, case.hkv, case.tk, case.head_dim)
    return q, k, v, draw(*q.shape)


def linear_numbers(case, seed=19):
    """x [rows, E], weight [E, E], bias [E], dy [rows, E] as f32: y = x weight^T + bias."""
    draw, width = _draws(seed), case.embed_dim
    return draw(case.q_len, width), draw(width, width) / np.float32(np.sqrt(width)), draw(width), draw(case.q_len, width)


def linear(x, weight, bias):
    """x weight^T + bias in f64."""
    return x.astype(np.float64) @ weight.astype(np.float64).T + bias


def keep_of(case, rows=None):
    """Kept pairs as booleans [B, rows, Tk], or None when every pair is kept."""
    i = np.arange(case.q_len)[:, None] if rows is None else np.asarray(rows)[:, None]
    j = np.arange(case.tk)[None, :]
    keep = np.ones((case.batch, i.shape[0], case.tk), bool)
    if case.causal:
        keep &= j <= i + case.tk - case.q_len
    if case.extra == "window":
        keep &= (j <= i) & (j > i - case.window)
    if case.extra == "lengths":
        keep &= j < np.array(case.key_lengths())[:, None, None]
    return None if keep.all() else keep


def bias_of(case, seed=18):
    """[1, H, Tq, Tk]"""
    return _draws(seed)(1, case.heads, case.q_len, case.tk)


def weights_of(q, k, keep=None, bias=None):
    scores = q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2) / np.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def rows_of(case, q, k, v):
    """(rows, expected [rows, D]) of the last head of the last sequence: the first, a middle and the last query."""
    rows = sorted({0, case.q_len // 2, case.q_len - 1})
    keep = keep_of(case, rows)
    head = (case.heads - 1) // (case.heads // case.hkv)
    weights = weights_of(q[-1, -1, rows], k[-1, head], None if keep is None else keep[-1])
    return rows, weights @ v[-1, head].astype(np.float64)


def row_error(case, out, q, k, v):
    """Of the rows of rows_of; everything as f32 arrays [B, H, T, D]."""
    rows, expected = rows_of(case, q, k, v)
    return difference(out[-1, -1, rows], expected)


def caches(case, inputs, copy):
    """The keys and values of each run: to decode, copies of which none is cached when its turn comes, as in `qkv bench`."""
    copies = int(2**29 // case.cache_bytes()) if case.kind == "decode" else 0
    return [inputs, *([copy(x) for x in inputs] for _ in range(copies))]


def layer_numbers(case):
    """x [B, T, E] of an attention layer; its weight [3, E, E], bias [3, E], output's weight and bias."""
    draw, width = _draws(17), case.embed_dim
    shapes = (3, width, width), (3, width), (width, width), (width,)
    parameters = [draw(*sizes) / np.float32(np.sqrt(width)) for sizes in shapes]
    return draw(case.batch, case.q_len, width), parameters


def layer(case, x, weight, bias, out_weight, out_bias):
    """The layer in f64; weight [3, E, E] and out_weight multiply from the right."""
    shape = (case.batch, case.q_len, case.heads, -1)
    q, k, v = ((x @ weight[n].astype(np.float64) + bias[n]).reshape(shape).transpose(0, 2, 1, 3) for n in range(3))
    return (weights_of(q, k) @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ out_weight + out_bias


def gradients(case, q, k, v, dout):
    """out, dq, dk, dv, dbias in f64."""
    keep = keep_of(case)
    bias = bias_of(case) if case.extra == "bias" else None
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    p = weights_of(q, k, None if keep is None else keep[:, None], bias)
    out = p @ v
    dp = dout @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (dout * out).sum(-1, keepdims=True))
    scale = 1 / np.sqrt(case.head_dim)
    dbias = ds.sum(0, keepdims=True) if case.extra == "bias" else None
    return out, scale * ds @ k, scale * np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dout, dbias


def gradient_error(got, case, arrays):
    """The largest error of dq, dk, dv, dbias of `case`; arrays: q, k, v, dout as f32."""
    return max(difference(a, b) for a, b in zip(got, gradients(case, *arrays)[1:]) if b is not None)


def difference(got, expected):
    """Largest difference, relative to the largest expected number."""
    expected = np.asarray(expected, np.float64)
    return float(np.max(np.abs(np.asarray(got, np.float64) - expected)) / np.max(np.abs(expected)))
