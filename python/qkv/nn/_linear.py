"""A linear map, float32 or bfloat16.

x is [..., in], with any number of leading axes, of NumPy (bfloat16: ml_dtypes'), PyTorch (CPU) or JAX; results are of the same
library. Sums are float32, y and dx are rounded once, parameter gradients are float32. The CPU's bf16 products are used where it has
them, otherwise widened rows. Bits are the same for any number of threads.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _nn
from .._arrays import _is_torch, dtype_name, empty, finish
from ._module import Module, Saved, operands, require_floats

__all__ = ["Linear"]


def _rows(x: Any, name: str, function: str, width: int) -> Any:
    """x [..., width] as [M, width]; copied only where the strides need it."""
    require_floats(x, name, function)
    if len(x.shape) < 1 or x.shape[-1] != width:
        raise ValueError(f"[{function}] {name} must be [..., {width}]: got {list(x.shape)}")
    rows = (x if _is_torch(x) else np.asarray(x)).reshape(-1, width)
    step, each = rows.stride() if _is_torch(rows) else (n // rows.itemsize for n in rows.strides)
    if (each == 1 or width == 1) and step >= width:
        return rows
    return rows.contiguous() if _is_torch(rows) else np.ascontiguousarray(rows)


def _like(x: Any, made: Any, *shape: int) -> Any:
    return None if made is None else finish(x, made.reshape(shape))


class Linear(Module):
    """y = x W^T + b. Parameters weight [out_features, in_features], bias [out_features], both uniform +-1/sqrt(in_features).

    x is float32 or bfloat16, and y as x; W is rounded as it is read, and gradients of W and b are float32.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, seed: int = 0) -> None:
        self._core = _nn.Linear(in_features, out_features, bool(bias), seed)

    def forward(self, x: Any, *, saved: Saved | None = None) -> Any:
        """y [..., out] of x [..., in]. ``saved`` keeps x (not a copy) for backward."""
        flat = _rows(x, "x", "Linear.forward", self._core.in_features)
        y = empty(x, (flat.shape[0], self._core.out_features), dtype_name(x))
        self._core.forward(*operands(x=flat, y=y))
        if saved is not None:
            saved._fill(self, None, flat)
        return _like(x, y, *x.shape[:-1], self._core.out_features)

    def backward(self, dy: Any, saved: Saved, *, need_dx: bool = True) -> Any:
        """Returns dx [..., in] (None unless need_dx) of dy [..., out]; adds to the gradients of the parameters."""
        (x,) = saved._of(self)
        flat = _rows(dy, "dy", "Linear.backward", self._core.out_features)
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
