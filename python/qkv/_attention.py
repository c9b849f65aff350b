"""Attention on arrays of any library: NumPy, PyTorch (CPU), JAX (CPU), whatever speaks the buffer protocol or DLPack.

    s[i,j]  = softcap(scale * q[i].k[j]) + bias[i,j]
    w[i,j]  = keep(i,j) ? exp(s[i,j] - lse[i]) : 0            lse[i] = log sum_j exp(s[i,j]) over kept j
    out[i]  = sum_j dropout(w)[i,j] * v[j]

Letters: B sequences, H query heads, Hkv key/value heads (H % Hkv == 0), Tq queries, Tk keys, D width of q and k, Dv width of v.
Arrays are read where they lie, without a copy, in any strides, but the last axis must have stride 1. Results are of q's library
and type. 16-bit types are summed in float32. Nothing of size Tq x Tk is made unless it is asked for.
PyTorch's and JAX's derivatives do not go through these functions: use qkv.torch and qkv.jax for them.
Vaswani 2017 (arXiv:1706.03762) eq. 1; Dao 2023 (2307.08691).
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import (
    _is_torch,
    check_inputs,
    check_layout,
    dtype_name,
    empty,
    finish,
    heads_first,
    integers,
    operand,
    operands,
    require_float,
    require_lse,
    require_untraced,
    sum_dtype,
)
from ._core import OptionError, ShapeError
from ._options import PositionBias, ScoreMod, build_options, options_of, require_64_bits
from .capture import Capture, Captured
from .kv_cache import KVCache
from .masks import Mask

__all__ = [
    "Gradients",
    "PositionBias",
    "ScoreMod",
    "attention",
    "attention_backward",
    "attention_plan",
    "attention_weights",
    "dropout_factors",
    "merge_attention",
    "top_keys",
]


class Gradients(NamedTuple):
    """The gradients from attention_backward; None where not asked for or there is nothing to differentiate."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None
    dposition_bias: Any = None


_NO_GRADIENT = "the choice of keys has no gradient"
DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks", "position_bias")


def empty_gradients(function: str, need: Sequence[str], made: Any, *, q: Any, k: Any, v: Any, **options: Any) -> dict[str, Any]:
    """By the names of :class:`Gradients`: a new array for each name in `need`, None for the others. Raises ValueError for a name
    without an input."""
    need = (need,) if isinstance(need, str) else need
    unknown = set(need) - set(DIFFERENTIABLE)
    if unknown:
        raise ValueError(f"[{function}] need names what has no gradient: got {sorted(unknown)}")
    of: dict[str, Any] = dict.fromkeys(Gradients._fields)
    for name in need:
        array = {"q": q, "k": k, "v": v}.get(name)
        if array is not None:
            of[f"d{name}"] = empty(q, tuple(array.shape), dtype_name(q))
            continue
        if options.get(name) is None:
            raise ValueError(f"[{function}] need names {name!r}, but there is none")
        shape = made.position_bias_shape if name == "position_bias" else tuple(options[name].shape)
        of[f"d{name}"] = empty(q, shape, sum_dtype(q))
    return of


_KINDS = {"all": "softmax", "applied": "applied", "scores": "scores"}  # of weights, as _core names them


def attention(
    q: Any,
    k: Any,
    v: Any = None,
    *,
    causal: bool | str = False,
    mask: Any = None,
    keep: Any = None,
    drop: Any = None,
    mask_axes: str | None = None,
    bias: Any = None,
    window: tuple[int, int] | None = None,
    key_lengths: Sequence[int] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    first_sequence: int = 0,
    empty_row: str = "zero",
    sinks: Any = None,
    position_bias: PositionBias | None = None,
    score_mod: Any = None,
    bits: str = "fast",
    return_lse: bool | str = False,
    weights: str | Capture | None = None,
    out: Any = None,
    layout: str | None = None,
    sequences: Sequence[int] | None = None,
) -> Any:
    """softmax(q k^T scale) v.

    Args:
        q: [B, H, Tq, D], or without batch [H, Tq, D], or one head [Tq, D]. float32, float64, bfloat16 or float16.
        k, v: [B, Hkv, Tk, D], [B, Hkv, Tk, Dv], of q's type and number of axes. Or k a :class:`KVCache` and no v.
        causal: True (only when Tq == Tk), "top_left" (query 0 sees key 0) or "bottom_right" (the last query sees the last key).
        mask: a :class:`Mask`. A key is attended only where every mask that is given allows it.
        keep, drop: arrays, non-zero = may attend (keep) or may not (drop): four axes [B|1, H|1, Tq|1, Tk|1], or fewer that
            ``mask_axes`` names: "bk", "qk", "bqk", "hqk".
        bias: added to scores, [B|1, H|1, Tq|1, Tk|1], float32 (float64 for float64); -inf = not kept.
        window: (left, right), how many tokens on each side of its own a query may attend; -1 = unbounded. Aligned as
            ``causal`` says.
        key_lengths: [B], whole numbers: the keys of sequence b from key_lengths[b] on are padding. With more than one query,
            "bottom_right" beside it is an OptionError: Mask.causal(offsets=...). A KVCache knows its own lengths.
        scale: the factor on q.k, default 1/sqrt(D).  softcap: c > 0: scores become c tanh(score / c).
        dropout, seed: the probability that a weight is dropped, and the 64-bit seed that fixes the pattern.
            ``first_sequence``: the number that sequence 0 has in the pattern.
        empty_row: what a row without keys gives: "zero", "mean" (of all values) or "nan".
        sinks: [H], a learned logit per head.  position_bias: :class:`PositionBias`.  score_mod: :class:`ScoreMod`.
        bits: "invariant": a row of the result has the same bits alone and among any others, on a cache or not (also where
            :func:`set_bits` says so). "fast": the same bits for any number of threads.
        return_lse: also return lse [B, H, Tq], float32 (float64 for float64), natural log. "low": and behind it its rounding
            error, with which backward computes less (NaN where that is not known).
        weights: "all": also return the weights [B, H, Tq, Tk] before dropout; "applied": after it; "scores": what the softmax is
            taken of, after soft cap, biases and score_mod, -inf where not attended; a :class:`Capture`: what
            it asks for.
        out: where to write, [B, H, Tq, Dv]; default: a new array.
        layout: "bhtd", or "bthd" of q, k, v and out [B, T, H, D] (or [T, H, D]); no copy is made for it. lse and weights stay
            [B, H, Tq] and [B, H, Tq, Tk]. None is "bhtd", with a warning where the shapes are those of "bthd".
        sequences: of a KVCache, which, in that order; none: all. On a cache Tk is the longest sequence's length.

    Returns:
        out, or a tuple of out, lse (and lse_low; return_lse) and weights or :class:`Captured` (weights).

    Raises:
        TypeError: for element types of q, k, v that are not supported or differ. OptionError (a ValueError): for those of bias, sinks,
            position_bias or a cache. ValueError: for wrong shapes, strides or options, a read-only ``out``, or an array that is not
            on the CPU.
        UnsupportedError (a NotImplementedError): for the combinations that docs/concepts/limits.md lists.
    """
    cache = k if isinstance(k, KVCache) else None
    if cache is not None and v is not None:
        raise TypeError("[attention] a KVCache holds keys and values: leave v out")
    if cache is None and sequences is not None:
        raise TypeError(f"[attention] sequences are those of a KVCache: got k {type(k).__name__}")
    chosen = None if sequences is None else integers(sequences, "[attention] sequences")
    shape = check_inputs("attention", q=q) if cache is not None else check_inputs("attention", q=q, k=k, v=v)
    check_layout("attention", layout if cache is None else layout or "bhtd", q, q if cache is not None else k)
    made = build_options(
        len(shape), causal=causal, mask=mask, keep=keep, drop=drop, mask_axes=mask_axes, bias=bias, window=window,
        key_lengths=key_lengths, scale=scale, softcap=softcap, dropout=dropout, seed=seed, first_sequence=first_sequence,
        empty_row=empty_row, sinks=sinks, position_bias=position_bias, score_mod=score_mod, bits=bits,
    )  # fmt: skip
    require_lse("attention", return_lse, (True, "low"))
    if cache is None:
        _check_window("attention", layout, q, k, window, causal)
    width = v.shape[-1] if cache is None else cache.v_head_dim
    result = empty(q, (*shape[:-1], width), dtype_name(q)) if out is None else out
    rows = heads_first(shape, layout)[:-1]
    lse = empty(q, rows, sum_dtype(q)) if return_lse else None
    low = empty(q, rows, sum_dtype(q)) if return_lse == "low" else None
    capture = weights._make("attention") if isinstance(weights, Capture) else None
    all_weights = None
    if weights is not None and capture is None:
        if not isinstance(weights, str) or weights not in _KINDS:
            raise ValueError(f'[attention] weights must be None, "all", "applied", "scores" or a Capture: got {weights!r}')
        if cache is None:
            kv_len = heads_first(k.shape, layout)[-2]
        else:
            kv_len = max(map(cache.length, cache.sequences if chosen is None else chosen), default=0)
        all_weights = empty(q, (*rows, kv_len), sum_dtype(q))
    kind = "softmax" if all_weights is None else _KINDS[weights]  # type: ignore[index]
    if cache is None:
        arrays = operands(layout, q=q, k=k, v=v, out=result, lse=lse, weights=all_weights, lse_low=low)
        _core.forward(made, capture, kind, *arrays)
    else:
        arrays = operands(layout, q=q, out=result, lse=lse, weights=all_weights, lse_low=low)
        cache._forward(made, capture, kind, chosen, *arrays)
    captured = None if capture is None else Captured(**capture.result())
    if out is None:
        result = finish(q, result)
    elif _is_torch(out) and not out.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(out)  # autograd learns that it was written
    if lse is None and weights is None:
        return result
    return tuple([x for x in (result, finish(q, lse), finish(q, low), finish(q, all_weights), captured) if x is not None])


def _check_window(function: str, layout: str | None, q: Any, k: Any, window: Any, causal: bool | str) -> None:
    """Raises OptionError where a window alone would have its diagonal nowhere: `causal` would move it, and hide keys as well."""
    if window is None or causal or max(window) < 0:
        return
    q_len, kv_len = (heads_first(x.shape, layout)[-2] for x in (q, k))
    if q_len != kv_len:
        text = f"qkv.Mask.window({window[0]}, {window[1]}, "
        raise OptionError(
            f"[{function}] window={tuple(window)} needs Tq == Tk: got Tq {q_len}, Tk {kv_len}; otherwise mask={text}\"bottom_right\"), where the "
            f"last query stands at the last key, or {text}\"top_left\")"
        )


def _options_of(function: str, rank: int, layout: str | None, q: Any, k: Any, options: dict[str, Any]) -> Any:
    made = options_of(function, rank, options)
    _check_window(function, layout, q, k, options.get("window"), options.get("causal", False))
    return made


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    dlse: Any = None,
    lse_low: Any = None,
    need: Sequence[str] = ("q", "k", "v"),
    weights: Capture | None = None,
    layout: str | None = None,
    **options: Any,
) -> Any:
    """Gradients of sum(out * dout) (+ sum(lse * dlse)).

    Args:
        dout: the gradient of the loss by out, [B, H, Tq, Dv]; q, k, v: what :func:`attention` was given; out, lse: what it
            returned (with return_lse=True).
        dlse: the gradient of the loss by lse, [B, H, Tq]; optional.  lse_low: from attention(return_lse="low"): in less time
            where |lse| is above 16, with the same bits but for rows whose sums of v overflowed.
        need: any of "q", "k", "v", "bias", "sinks", "position_bias".
        weights: a Capture with of="gradient": also return maps of weights times their gradient.
        layout, options: the keyword arguments that :func:`attention` was given (causal, mask, bias, dropout, seed, ...).

    Returns:
        :class:`Gradients`, of the inputs' types (bias, sinks, position_bias: float32, or float64 for float64); with
        weights a tuple of them and :class:`Captured`.
    """
    if weights is not None and not isinstance(weights, Capture):
        raise TypeError(f'[attention_backward] weights must be a Capture(of="gradient", ...): got {type(weights).__name__}')
    shape = check_inputs("attention_backward", q=q, k=k, v=v, out=out, dout=dout)
    check_layout("attention_backward", layout, q, k)
    made = _options_of("attention_backward", len(shape), layout, q, k, options)
    of = empty_gradients("attention_backward", need, made, q=q, k=k, v=v, **options)
    capture = None if weights is None else weights._make("attention_backward", backward=True)
    inputs = operands(layout, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse, lse_low=lse_low)
    _core.backward(made, capture, *inputs, *operands(layout, **of))
    results = Gradients(*(finish(q, x) for x in of.values()))
    return results if capture is None else (results, Captured(**capture.result()))


def attention_weights(q: Any, k: Any, *, applied: bool = False, layout: str | None = None, **options: Any) -> Any:
    """The weights alone, [B, H, Tq, Tk], float32 (float64 for float64): before dropout, or with ``applied`` after it.

    q [B, H, Tq, D], k [B, Hkv, Tk, D], no KVCache. layout, options: as :func:`attention`, but for return_lse, weights, out and sequences.
    """
    shape = check_inputs("attention_weights", q=q, k=k)
    check_layout("attention_weights", layout, q, k)
    made = _options_of("attention_weights", len(shape), layout, q, k, options)
    result = empty(q, (*heads_first(shape, layout)[:-1], heads_first(k.shape, layout)[-2]), sum_dtype(q))
    arrays = operands(layout, q=q, k=k, v=None, out=None, lse=None, weights=result, lse_low=None)
    _core.forward(made, None, "applied" if applied else "softmax", *arrays)
    return finish(q, result)


def attention_plan(q: Any, k: Any, v: Any, *, layout: str | None = None, **options: Any) -> dict[str, Any]:
    """The plan of a call, without running it: algorithm, tiles (full, partial, skipped), FLOPs, bytes, and why other
    algorithms were not chosen."""
    shape = check_inputs("attention_plan", q=q, k=k, v=v)
    check_layout("attention_plan", layout, q, k)
    return _core.plan(_options_of("attention_plan", len(shape), layout, q, k, options), *operands(layout, q=q, k=k, v=v))


def merge_attention(outs: Sequence[Any], lses: Sequence[Any]) -> tuple[Any, Any]:
    """Attention over disjoint sets of keys, merged: outs[n] [B, H, Tq, Dv], lses[n] [B, H, Tq] -> out, lse."""
    if len(outs) == 0:
        raise ValueError("[merge_attention] outs must hold at least one part")
    shape = check_inputs("merge_attention", **{f"outs[{n}]": part for n, part in enumerate(outs)})
    out, lse = empty(outs[0], shape, dtype_name(outs[0])), empty(outs[0], shape[:-1], sum_dtype(outs[0]))
    parts = ([operand(part, name) for part in all_parts] for all_parts, name in ((outs, "outs"), (lses, "lses")))
    _core.merge(*parts, *operands(out=out, lse=lse))
    return finish(outs[0], out), finish(outs[0], lse)


def dropout_factors(shape: tuple[int, int, int, int], p: float, seed: int, *, first_sequence: int = 0) -> Any:
    """The pattern that attention(dropout=p, seed=seed) applies, float32: for every weight [B, H, Tq, Tk] 0 or about 1/(1 - p).

    To the bit it is 65536 / (65536 - t), t = round(65536 p), rounded to float32. OptionError (a ValueError): for a p outside [0, 1] or,
    above 0, below 2^-17. TypeError: for a seed that is no whole number of 64 bits.
    """
    require_64_bits("dropout_factors", seed=seed, first_sequence=first_sequence)
    factors = np.empty(shape, np.float32)
    _core.dropout_factors(p, seed, first_sequence, factors)
    return factors


def top_keys(
    q_index: Any,
    k_index: Any,
    weights: Any,
    k: int,
    *,
    causal: bool = False,
    offset: int | None = None,
    mask: Mask | None = None,
) -> Any:
    """The k keys that an indexer scores highest for each query, for :meth:`Mask.keys`: int32 [B, 1, Tq, k], ascending, -1 for none.

        score[b,i,j] = sum_h weights[b,h,i] * relu(q_index[b,h,i] . k_index[b,j])

    The "lightning indexer" of DeepSeek's sparse attention (DeepSeek-V3.2-Exp, 2025, eq. 1). q_index [B, H, Tq, D], k_index
    [B, Tk, D] or [B, 1, Tk, D], both float32, bfloat16 or float16; weights [B, H, Tq], widened to float32. Of equal scores the
    lower key wins; a NaN counts as the largest. causal: key j <= i + offset, by default offset = Tk - Tq. mask: any mask of all
    heads, joined to it by ``&``. Memory O(Tq k). Nothing is differentiated: the choice has no gradient.
    ShapeError, OptionError, TypeError: what does not fit.
    """
    shape = check_inputs("top_keys", q_index=q_index)
    if len(shape) != 4:
        raise ShapeError(f"[top_keys] q_index must be [B, H, Tq, D]: got {list(shape)}")
    require_float(k_index, "k_index", "top_keys")
    keys = k_index[:, 0] if len(k_index.shape) == 4 and k_index.shape[1] == 1 else k_index
    if len(keys.shape) != 3:
        raise ShapeError(f"[top_keys] k_index must be [B, Tk, D] or [B, 1, Tk, D]: got {list(k_index.shape)}")
    if dtype_name(q_index) == "float64":
        raise TypeError("[top_keys] q_index must be float32, bfloat16 or float16: got float64; scores are float32 sums")
    if not isinstance(causal, (bool, np.bool_)):
        raise OptionError(f"[top_keys] causal must be True or False, offset= moves its diagonal: got causal={causal!r}")
    if offset is not None and not causal:
        raise OptionError(f"[top_keys] offset moves the diagonal of causal=True: got offset={offset} with causal=False")
    for name, n, kind in (("k", k, "a number of keys"), ("offset", offset or 0, "a distance in keys")):
        if not isinstance(n, (int, np.integer)):
            raise TypeError(f"[top_keys] {name} must be {kind}, a whole number: got {n!r}")
    if k < 1:
        raise OptionError(f"[top_keys] k must be at least 1: got {k}")
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"[top_keys] mask must be a qkv.Mask: got {type(mask).__name__}; Mask.keep(array) makes one of an array")
    chosen = mask if mask is not None else Mask()
    if causal:
        chosen = chosen & (Mask.causal("bottom_right") if offset is None else Mask.causal(offsets=[offset] * shape[0]))
    require_float(weights, "weights", "top_keys")
    require_untraced(weights, "weights", _NO_GRADIENT)
    wide = weights.float() if hasattr(weights, "float") else np.asarray(weights, np.float32)
    index = empty(q_index, (shape[0], 1, shape[2], k), "int32")
    _core.top_keys(chosen._core, *operands(ways=_NO_GRADIENT, q_index=q_index, k_index=keys, weights=wide, index=index))
    return finish(q_index, index)
