"""Ragged batches: sequences of different lengths one behind the other, marked by offsets instead of padding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from . import _arrays, _core
from ._arrays import dtype_name, empty, finish, integers, require_float, sum_dtype
from ._attention import DIFFERENTIABLE, Gradients, empty_gradients
from ._options import build_options

__all__ = ["attention_varlen", "attention_varlen_backward"]

_WAYS = "qkv.torch.flex_attention with block_mask=qkv.Mask.documents(offsets) is differentiable"
operand = functools.partial(_arrays.operand, ways=_WAYS)


def _offsets(q_offsets: Any, kv_offsets: Any) -> tuple[list[int], list[int]]:
    first = integers(q_offsets)
    return first, first if kv_offsets is None else integers(kv_offsets)


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int] | None = None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """Attention within each sequence: sequence b has queries [q_offsets[b], q_offsets[b+1]) and keys likewise.

    Args:
        q [total_q, H, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv].
        q_offsets, kv_offsets [B + 1]: whole numbers, ascending, the first 0 (kv_offsets none: as q's).
        options: as in :func:`qkv.attention`; they apply to each sequence by itself.
    Returns:
        out [total_q, H, Dv] (and lse [total_q, H]). Like FlashAttention's varlen interface (cu_seqlens).
    """
    require_float(q, "q", "attention_varlen")
    out, lse = empty(q, (*q.shape[:-1], v.shape[-1]), dtype_name(q)), None
    if return_lse:
        lse = empty(q, tuple(q.shape[:-1]), sum_dtype(q))
    _core.varlen_forward(
        operand(q, "q"), operand(k, "k"), operand(v, "v"), operand(out, "out"), None if lse is None else operand(lse, "lse"),
        *_offsets(q_offsets, kv_offsets), build_options(4, **options),
    )  # fmt: skip
    return (finish(q, out), finish(q, lse)) if return_lse else finish(q, out)


def attention_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int] | None = None,
    *,
    dlse: Any = None,
    need: Sequence[str] = ("q", "k", "v"),
    **options: Any,
) -> Gradients:
    """Gradients of sum(out * dout) (+ sum(lse * dlse)), from what :func:`attention_varlen` was given and returned.

    dlse [total_q, H] is optional; need as in :func:`attention_backward`. dbias, dsinks and dposition_bias are sums over
    sequences.
    """
    made = build_options(4, **options)
    of = empty_gradients("attention_varlen_backward", need, made, q=q, k=k, v=v, **options)
    gradient = {name: operand(array, f"d{name}") for name, array in of.items()}
    _core.varlen_backward(
        operand(q, "q"), operand(k, "k"), operand(v, "v"), operand(out, "out"), operand(lse, "lse"), operand(dout, "dout"),
        gradient.get("q"), gradient.get("k"), gradient.get("v"), gradient.get("bias"), gradient.get("sinks"),
        gradient.get("position_bias"), None if dlse is None else operand(dlse, "dlse"), *_offsets(q_offsets, kv_offsets), made,
    )  # fmt: skip
    return Gradients(*(finish(q, of.get(name)) for name in DIFFERENTIABLE))
