"""Beyond first derivatives: forward mode and double backward, tiled, O(T) memory. float32 and float64."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from ._arrays import check_inputs, dtype_name, empty, finish, operands
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


def attention_jvp(
    q: Any, k: Any, v: Any, lse: Any, *, tq: Any = None, tk: Any = None, tv: Any = None, tbias: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Tangents of out and lse along (tq, tk, tv, tbias), of the shapes of q, k, v, bias; None is zero.

    q, k, v: what :func:`qkv.attention` was given; lse: what it returned; options: its keyword arguments.

    Returns tout [B, H, Tq, Dv], tlse [B, H, Tq].
    """
    shape = check_inputs("attention_jvp", q=q, k=k, v=v)
    tout, tlse = empty(q, (*shape[:-1], v.shape[-1]), dtype_name(q)), empty(q, shape[:-1], dtype_name(q))
    arrays = operands(q=q, k=k, v=v, lse=lse, tq=tq, tk=tk, tv=tv, tbias=tbias, tout=tout, tlse=tlse)
    _core.jvp(build_options(len(shape), **options), *arrays)
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
    bias = options.get("bias")
    like = {"gq": q, "gk": k, "gv": v, "gdout": dout, "gbias": bias, "gdlse": dlse}
    made = {name: None if x is None else empty(q, tuple(x.shape), dtype_name(q)) for name, x in like.items()}
    inputs = operands(q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse, ddq=ddq, ddk=ddk, ddv=ddv, ddbias=ddbias)
    _core.double_backward(build_options(len(shape), **options), *inputs, *operands(**made))
    return SecondGradients(*(finish(q, x) for x in made.values()))
