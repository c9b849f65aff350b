"""A linear map, float32 or bfloat16: the module Linear, and the same as functions of a weight that is stored in bfloat16.

x is [..., in], with any number of leading axes, of NumPy (bfloat16: ml_dtypes'), PyTorch (CPU) or JAX; results are of the same
library. Sums are float32, y and dx are rounded once, parameter gradients are float32. The CPU's bf16 products are used where it has
them, otherwise widened rows. Bits are the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _nn
from .._arrays import _is_torch, dtype_name, empty, finish
from ._module import Module, Saved, operands, require_floats

__all__ = ["Linear", "linear", "linear_backward"]


def _rows(x: Any, name: str, function: str, width: int, *types: str) -> Any:
    """x [..., width] as [M, width]; copied only where the strides need it."""
    require_floats(x, name, function, *types)
    if len(x.shape) < 1 or x.shape[-1] != width:
        raise ValueError(f"[{function}] {name} must be [..., {width}]: got {list(x.shape)}")
    return (x if _is_torch(x) else np.asarray(x)).reshape(-1, width)


def _like(x: Any, made: Any, *shape: int) -> Any:
    return None if made is None else finish(x, made.reshape(shape))


class Linear(Module):
    """y = x W^T + b. Parameters weight [out_features, in_features], bias [out_features], both uniform +-1/sqrt(in_features).

    x is float32 or bfloat16, and y as x; W is rounded as it is read, and gradients of W and b are float32.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, seed: int = 0) -> None:
        self._core = _nn.Linear(in_features, out_features, bias, seed)

    def forward(self, x: Any, *, saved: Saved | None = None) -> Any:
        """y [..., out] of x [..., in]. ``saved`` keeps x (not a copy) for backward."""
        flat = _rows(x, "x", "Linear.forward", self._core.in_features, "float32", "bfloat16")
        if saved is not None:
            saved._fill(self, flat)
        y = empty(x, (flat.shape[0], self._core.out_features), dtype_name(x))
        self._core.forward(*operands(x=flat, y=y))
        return _like(x, y, *x.shape[:-1], self._core.out_features)

    def backward(self, dy: Any, saved: Saved, *, need_dx: bool = True) -> Any:
        """Returns dx [..., in] (None unless need_dx) of dy [..., out]; adds to the gradients of the parameters."""
        (x,) = saved._of(self)
        flat = _rows(dy, "dy", "Linear.backward", self._core.out_features, "float32", "bfloat16")
        if flat.shape[0] != x.shape[0]:
            raise ValueError(f"[Linear.backward] dy must have the {x.shape[0]} rows of x: got {flat.shape[0]}")
        if dtype_name(dy) != dtype_name(x):
            raise TypeError(f"[Linear.backward] dy must be {dtype_name(x)}, as x was: got {dtype_name(dy)}")
        dx = empty(dy, tuple(x.shape), dtype_name(x)) if need_dx else None
        self._core.backward(*operands(x=x, dy=flat, dx=dx))
        return _like(dy, dx, *dy.shape[:-1], x.shape[1])

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"in_features": self._core.in_features, "out_features": self._core.out_features, "bias": self._core.has_bias}

    def __repr__(self) -> str:
        return f"Linear({self._core.in_features}, {self._core.out_features}, bias={self._core.has_bias})"


def _sizes(weight: Any, function: str) -> tuple[int, int]:
    require_floats(weight, "weight", function, "bfloat16")
    if len(weight.shape) != 2:
        raise ValueError(f"[{function}] weight must be [out_features, in_features]: got {list(weight.shape)}")
    return weight.shape[0], weight.shape[1]


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y [..., N] = x [..., K] weight [N, K]^T + bias [N].

    x and weight bfloat16, bias float32 (None: none); y bfloat16. Bit-identical for any number of threads.
    """
    out_features, in_features = _sizes(weight, "linear")
    flat = _rows(x, "x", "linear", in_features, "bfloat16")
    if bias is not None:
        require_floats(bias, "bias", "linear", "float32")
    y = empty(x, (flat.shape[0], out_features), "bfloat16")
    _nn.linear(*operands(x=flat, weight=weight, bias=bias, y=y))
    return _like(x, y, *x.shape[:-1], out_features)


def linear_backward(x: Any, dy: Any, weight: Any, *, bias: bool = True, need_dx: bool = True) -> tuple[Any, Any, Any]:
    """(dx, dweight, dbias) of y = linear(x, weight, bias).

    dx [..., K] = dy weight, bfloat16 (None unless need_dx); dweight [N, K] = dy^T x and dbias [N] = the column sums of dy (None
    unless bias), float32.
    """
    out_features, in_features = _sizes(weight, "linear_backward")
    flat_x = _rows(x, "x", "linear_backward", in_features, "bfloat16")
    flat_dy = _rows(dy, "dy", "linear_backward", out_features, "bfloat16")
    if flat_x.shape[0] != flat_dy.shape[0]:
        raise ValueError(f"[linear_backward] dy must have the {flat_x.shape[0]} rows of x: got {flat_dy.shape[0]}")
    dx = empty(dy, tuple(flat_x.shape), "bfloat16") if need_dx else None
    dweight = empty(dy, (out_features, in_features), "float32")
    dbias = empty(dy, (out_features,), "float32") if bias else None
    for sums in (dweight, dbias):
        if sums is not None:
            sums[...] = 0  # sums are added to
    _nn.linear_backward(*operands(x=flat_x, dy=flat_dy, weight=weight, dx=dx, dweight=dweight, dbias=dbias))
    return _like(dy, dx, *x.shape), finish(dy, dweight), finish(dy, dbias)
