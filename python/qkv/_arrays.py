"""Arrays of any library as _core takes them, and new ones of the same kind. Not: broadcasting, conversion of values.

NumPy is always there. PyTorch and JAX are looked up only when an array of theirs comes in, so importing qkv imports neither.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np

_FLOATS = ("float32", "float64", "bfloat16", "float16")


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def operand(x: Any, name: str) -> Any:
    """What _core reads: `x` itself, or a tuple where x cannot say what it is quickly (torch before 2.10: address and strides,
    ten times as fast as DLPack, and x, which must live as long; NumPy arrays of ml_dtypes.bfloat16: their bits)."""
    if isinstance(x, np.ndarray):
        if x.dtype.name == "bfloat16":
            return (x.view(np.uint16), "bfloat16")
        return x
    if _is_torch(x):
        if x.device.type != "cpu":
            raise ValueError(f"{name} must lie in the CPU's memory: got a tensor on {x.device}; move it first: {name}.cpu()")
        if x.layout is not sys.modules["torch"].strided:
            raise ValueError(f"{name} must be dense: got layout {x.layout}; {name}.to_dense() makes it so")
        if hasattr(type(x), "__dlpack_c_exchange_api__"):
            return x
        return (x.data_ptr(), str(x.dtype)[6:], tuple(x.shape), x.stride(), x)
    if isinstance(x, (list, tuple, int, float, str)) or x is None:
        raise TypeError(f"{name} must be an array: got {type(x).__name__}; np.asarray makes one of numbers")
    if _is_jax(x) and x.dtype.name == "bfloat16":
        return (np.asarray(x).view(np.uint16), "bfloat16")
    return x


def dtype_name(x: Any) -> str:
    """NumPy's name of the element type: "float32"."""
    if _is_torch(x):
        return str(x.dtype)[6:]
    dtype = getattr(x, "dtype", None)
    return getattr(dtype, "name", None) or np.asarray(x).dtype.name


def sum_dtype(x: Any) -> str:
    """The type in which numbers of x's type are added up, and in which lse and weights are given."""
    name = dtype_name(x)
    return "float64" if name == "float64" else "float32"


def require_float(x: Any, name: str, function: str) -> None:
    """TypeError unless x has one of the four element types."""
    got = dtype_name(x)
    if got not in _FLOATS:
        raise TypeError(f"[{function}] {name} must be float32, float64, bfloat16 or float16: got {got}")


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new contiguous array for `_core` to fill: torch's where `like` is torch's, else NumPy's."""
    if _is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype))
    if dtype == "bfloat16":
        import ml_dtypes

        return np.empty(shape, dtype=ml_dtypes.bfloat16)
    return np.empty(shape, dtype=dtype)


def finish(like: Any, made: Any) -> Any:
    """What `empty` made, as `like`'s library has it: JAX arrays are copied once."""
    if made is not None and _is_jax(like):
        import jax.numpy as jnp

        return jnp.asarray(made)
    return made


def boolean(x: Any, name: str) -> Any:
    """A mask of bool, integers or floats as bytes, non-zero = true; bytes and bools without a copy."""
    if _is_torch(x):
        torch = sys.modules["torch"]
        x = x.detach()
        return operand((x if x.dtype in (torch.bool, torch.uint8, torch.int8) else x != 0).view(torch.uint8), name)
    array = np.asarray(x)
    if array.dtype.itemsize != 1:
        array = array != 0
    return array.view(np.uint8)


def integers(x: Any) -> list[int]:
    """A list of Python ints of any sequence or array of whole numbers."""
    if isinstance(x, int):
        raise TypeError(f"a sequence of ints is wanted, one for each: got the single number {x}")
    return [operator.index(n) for n in (x.tolist() if hasattr(x, "tolist") else x)]
