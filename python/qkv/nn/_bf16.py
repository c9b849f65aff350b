"""A linear map stored in bfloat16, without a module around it: sums in float32, y and dx rounded once, parameter gradients in
float32. It uses the CPU's bf16 products where it has them, otherwise widened rows.

Arrays of PyTorch (CPU), JAX, or NumPy with ml_dtypes' bfloat16; results are of the same library. float32: :class:`Linear`.
"""

from __future__ import annotations

from typing import Any

from .. import _nn
from .._arrays import dtype_name, empty
from ._module import like, operand, require_array, require_f32, rows

__all__ = ["linear", "linear_backward"]


def _require_bf16(x: Any, name: str, function: str) -> None:
    require_array(x, name, function)
    if dtype_name(x) != "bfloat16":
        raise TypeError(f"[{function}] {name} must be bfloat16: got {dtype_name(x)}; of float32 there is Linear")


def _require_rows(x: Any, name: str, function: str, width: int) -> None:
    _require_bf16(x, name, function)
    if len(x.shape) < 1 or x.shape[-1] != width:
        raise ValueError(f"[{function}] {name} must be [..., {width}]: got {list(x.shape)}")


def _sizes(weight: Any, function: str) -> tuple[int, int]:
    _require_bf16(weight, "weight", function)
    if len(weight.shape) != 2:
        raise ValueError(f"[{function}] weight must be [out_features, in_features]: got {list(weight.shape)}")
    return weight.shape[0], weight.shape[1]


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y [..., N] = x [..., K] weight [N, K]^T + bias [N].

    x and weight bfloat16, bias float32 (None: none); y bfloat16. Bit-identical for any number of threads.
    """
    out_features, in_features = _sizes(weight, "linear")
    _require_rows(x, "x", "linear", in_features)
    if bias is not None:
        require_f32(bias, "bias", "linear")
    flat = rows(x)
    y = empty(x, (flat.shape[0], out_features), "bfloat16")
    _nn.linear(operand(flat, "x"), operand(weight, "weight"), None if bias is None else operand(bias, "bias"), operand(y, "y"))
    return like(x, y, (*x.shape[:-1], out_features))


def linear_backward(x: Any, dy: Any, weight: Any, *, bias: bool = True, need_dx: bool = True) -> tuple[Any, Any, Any]:
    """(dx, dweight, dbias) of y = linear(x, weight, bias).

    dx [..., K] = dy weight, bfloat16 (None unless need_dx); dweight [N, K] = dy^T x and dbias [N] = the column sums of dy (None
    unless bias), float32.
    """
    out_features, in_features = _sizes(weight, "linear_backward")
    _require_rows(x, "x", "linear_backward", in_features)
    _require_rows(dy, "dy", "linear_backward", out_features)
    flat_x, flat_dy = rows(x), rows(dy)
    if flat_x.shape[0] != flat_dy.shape[0]:
        raise ValueError(f"[linear_backward] dy must have the {flat_x.shape[0]} rows of x: got {flat_dy.shape[0]}")
    dx = empty(dy, tuple(flat_x.shape), "bfloat16") if need_dx else None
    dweight = empty(dy, (out_features, in_features), "float32")
    dbias = empty(dy, (out_features,), "float32") if bias else None
    for sums in (dweight, dbias):
        if sums is not None:
            sums[...] = 0  # sums are added to
    _nn.linear_backward(
        operand(flat_x, "x"), operand(flat_dy, "dy"), operand(weight, "weight"), None if dx is None else operand(dx, "dx"),
        operand(dweight, "dweight"), None if dbias is None else operand(dbias, "dbias"),
    )  # fmt: skip
    made = [None if g is None else like(dy, g, tuple(g.shape)) for g in (dweight, dbias)]
    return None if dx is None else like(dy, dx, tuple(x.shape)), made[0], made[1]
