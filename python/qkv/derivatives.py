"""Beyond first derivatives: forward mode and double backward, tiled, O(T) memory. float32 and float64."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from ._arrays import check_inputs, dtype_name, empty, finish, operand
from ._options import build_options

__all__ = ["SecondGradients", "attention_double_backward", "attention_jvp"]


class SecondGradients(NamedTuple):
    """What attention_double_backward returns; gbias is None without a bias, gdlse without a dlse."""

    gq: Any
    gk: Any
    gv: Any
    gdout: Any
    gbias: Any = None
    gdlse: Any = None


def _optional(array: Any, name: str) -> Any:
    return None if array is None else operand(array, name)


def attention_jvp(
    q: Any, k: Any, v: Any, lse: Any, *, tq: Any = None, tk: Any = None, tv: Any = None, tbias: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Tangents of out and lse along (tq, tk, tv, tbias), of the shapes of q, k, v, bias; None is zero.

    q, k, v: what :func:`qkv.attention` was given; lse: what it returned; options: its keyword arguments.

    Returns tout [B, H, Tq, Dv], tlse [B, H, Tq].
    """
    shape = check_inputs("attention_jvp", q=q, k=k, v=v)
    tout, tlse = empty(q, (*shape[:-1], v.shape[-1]), dtype_name(q)), empty(q, shape[:-1], dtype_name(q))
    _core.jvp(
        operand(q, "q"), operand(k, "k"), operand(v, "v"), operand(lse, "lse"), _optional(tq, "tq"), _optional(tk, "tk"),
        _optional(tv, "tv"), _optional(tbias, "tbias"), operand(tout, "tout"), operand(tlse, "tlse"),
        build_options(len(shape), **options),
    )  # fmt: skip
    return finish(q, tout), finish(q, tlse)


def attention_double_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dout: Any,
    *,
    ddq: Any = None,
    ddk: Any = None,
    ddv: Any = None,
    ddbias: Any = None,
    dlse: Any = None,
    **options: Any,
) -> SecondGradients:
    """Gradients of sum(dq * ddq) + sum(dk * ddk) + sum(dv * ddv) (+ sum(dbias * ddbias)) for q, k, v, dout, bias and dlse, where
    dq, dk, dv, dbias are what attention_backward gives for dout and dlse [B, H, Tq]. None is zero. Each has the shape of what
    it is a gradient of.
    """
    shape = check_inputs("attention_double_backward", q=q, k=k, v=v, out=out, dout=dout)
    made = [empty(q, tuple(a.shape), dtype_name(q)) for a in (q, k, v, dout)]
    bias = options.get("bias")
    gbias = None if bias is None else empty(q, tuple(bias.shape), dtype_name(q))
    gdlse = None if dlse is None else empty(q, tuple(dlse.shape), dtype_name(q))
    _core.double_backward(
        operand(q, "q"), operand(k, "k"), operand(v, "v"), operand(out, "out"), operand(lse, "lse"), operand(dout, "dout"),
        _optional(ddq, "ddq"), _optional(ddk, "ddk"), _optional(ddv, "ddv"), _optional(ddbias, "ddbias"),
        _optional(dlse, "dlse"), *(operand(a, "gradient") for a in made), _optional(gbias, "gbias"), _optional(gdlse, "gdlse"),
        build_options(len(shape), **options),
    )  # fmt: skip
    return SecondGradients(*(finish(q, a) for a in made), finish(q, gbias), finish(q, gdlse))
