"""Arrays of any library as _core takes them, and new ones of the same kind.

NumPy is always there. PyTorch and JAX are asked for only when an array of theirs comes in, so importing qkv imports neither.
"""

import functools
import operator
import reprlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _core

_FLOATS = ("float32", "float64", "bfloat16", "float16")

#: Differentiates attention where the plain functions of this package do not; error messages end with it.
ATTENTION_WAYS = "qkv.torch.scaled_dot_product_attention and qkv.torch.flex_attention are differentiable"


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def has_tangent(x: Any) -> bool:
    """Whether a PyTorch tensor carries a tangent of forward mode, which a function of its memory would lose."""
    forward_ad = sys.modules["torch"].autograd.forward_ad
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def require_unmasked(x: Any, name: str) -> None:
    """Raises TypeError for NumPy's masked arrays: what they hide would count."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must be a plain array: got a masked one, whose mask would not count; of keys: keep=~np.ma.getmaskarray(...); the "
            f"numbers alone: {name}.data, or {name}.filled(0)"
        )


def require_untraced(x: Any, name: str, ways: str = ATTENTION_WAYS) -> None:
    """Raises ValueError for a tensor whose gradient would be lost, TypeError for one that means something else than its memory.

    ways: a sentence that says what to use instead.
    """
    if _is_torch(x):
        torch = sys.modules["torch"]
        if not x.requires_grad and type(x) is torch.Tensor and not _functorch_wrapped()(x) and not has_tangent(x):
            return  # the usual case
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, and PyTorch's autograd does not see this function: got requires_grad=True; {ways}; "
                f"without a gradient: {name}.detach(), or under torch.no_grad()"
            )
        if _functorch_wrapped()(x):
            raise ValueError(f"{name} must be a plain tensor: got one that torch.func (grad, vmap) traces; {ways}")
        if has_tangent(x):
            raise ValueError(f"{name} must be a plain tensor: got one with a tangent of forward mode (forward_ad); {ways}")
        if type(x) is not torch.Tensor and not _is_memory(type(x)):
            raise TypeError(
                f"{name} must be a plain tensor: got {type(x).__name__}, which may mean something else than its memory holds; "
                f"where the memory is meant: {name}.as_subclass(torch.Tensor)"
            )
    elif isinstance(x, np.ndarray):
        require_unmasked(x, name)
    elif _is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer):
        raise TypeError(
            f"{name} must be an array: got {type(x).__name__}, inside jax.jit, grad or vmap; there: qkv.jax.attention"
        )


@functools.cache
def _functorch_wrapped() -> Callable[[Any], bool]:
    return sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor


@functools.cache
def _is_memory(cls: type) -> bool:
    """Whether tensors of a subclass are what their memory holds: nothing in the class says otherwise."""
    torch = sys.modules["torch"]
    plain = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
    function = cls.__torch_function__  # type: ignore[attr-defined]
    dispatch = getattr(cls.__torch_dispatch__, "__func__", cls.__torch_dispatch__)  # type: ignore[attr-defined]
    own = getattr(torch.Tensor.__torch_dispatch__, "__func__", torch.Tensor.__torch_dispatch__)
    return getattr(function, "__func__", function) in plain and dispatch is own


def operand(x: Any, name: str, ways: str = ATTENTION_WAYS) -> Any:
    """Passed to _core: `x` itself; of NumPy's and JAX's bfloat16, which the buffer protocol has no name for, the bits and that
    name. Raises as require_untraced."""
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            require_unmasked(x, name)
        return (x.view(np.uint16), "bfloat16") if x.dtype.kind == "V" and x.dtype.name == "bfloat16" else x
    require_untraced(x, name, ways)
    if _is_torch(x):
        if not x.is_cpu:
            raise ValueError(f"{name} must lie in the CPU's memory: got a tensor on {x.device}; move it first: {name}.cpu()")
        if x.layout is not sys.modules["torch"].strided:
            raise ValueError(f"{name} must be dense: got layout {x.layout}; {name}.to_dense() makes it so")
        if x.is_neg():  # its memory holds the numbers without their sign
            if name == "out":
                raise ValueError("out must lie in memory as it is: got a negated view (is_neg()); out.resolve_neg() is a copy")
            return x.resolve_neg()
        return x
    if isinstance(x, (list, tuple, int, float, str)) or x is None:
        raise TypeError(f"{name} must be an array: got {type(x).__name__}; np.asarray makes one of numbers")
    if _is_jax(x) and x.dtype.name == "bfloat16":
        return (np.asarray(x).view(np.uint16), "bfloat16")
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError):
            raise ValueError(f"{name} must lie in the CPU's memory: got {type(x).__name__} on another device; move it first") from None
    return x


def dtype_name(x: Any) -> str:
    """NumPy's name of the element type: "float32"."""
    dtype = getattr(x, "dtype", None)
    return _name_of(np.asarray(x).dtype if dtype is None else dtype)


@functools.cache
def _name_of(dtype: Any) -> str:
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


def sum_dtype(x: Any) -> str:
    """The type in which numbers of x's type are summed, and in which lse and weights are returned."""
    name = dtype_name(x)
    return "float64" if name == "float64" else "float32"


def require_numbers(function: str, **numbers: Any) -> None:
    """Raises TypeError for tensors instead of numbers: a gradient would be lost in them."""
    for name, x in numbers.items():
        if _is_torch(x):
            raise TypeError(
                f"[{function}] {name} must be a number: got a tensor, which would get no gradient; multiply q by one that learns, "
                f"or pass {name}.item()"
            )


def require_float(x: Any, name: str, function: str) -> None:
    """Raises TypeError unless x is an array of one of the four element types."""
    if not hasattr(x, "shape"):
        raise TypeError(f"[{function}] {name} must be an array: got {type(x).__name__}")
    got = dtype_name(x)
    if got not in _FLOATS:
        raise TypeError(f"[{function}] {name} must be float32, float64, bfloat16 or float16: got {got}")


def require_lse(function: str, return_lse: Any, words: tuple[Any, ...]) -> None:
    """Raises ValueError for a wish that would count as True and means something else."""
    if return_lse and return_lse not in words:
        raise ValueError(f"[{function}] return_lse must be False or {' or '.join(map(repr, words))}: got {return_lse!r}")


def require_shapes(
    error: type[Exception], function: str, shapes: dict[str, tuple[Any, str]], **known: int
) -> dict[str, int]:  # fmt: skip
    """Sizes by their letters. Raises TypeError for what is no array, `error` for one with other axes than are said, or other sizes
    than those before it or `known`; None has none."""
    for name, (x, letters) in shapes.items():
        if x is None:
            continue
        axes, shape = letters.split(), getattr(x, "shape", None)
        if shape is None:
            raise TypeError(f"[{function}] {name} must be an array: got {type(x).__name__}")
        if len(axes) == len(shape):
            for axis, n in zip(axes, shape):
                if known.setdefault(axis, n) != n:
                    break
            else:
                continue
        sizes = ", ".join(str(known.get(axis, axis)) for axis in axes)
        got = ", ".join(f"{other} {list(y.shape)}" for other, (y, _) in shapes.items() if y is not None)
        raise error(f"[{function}] {name} must be [{', '.join(axes)}] = [{sizes}]: got {list(shape)}; {got}")
    return known


def check_inputs(function: str, **arrays: Any) -> tuple[int, ...]:
    """Shape of the first. Raises TypeError or ValueError unless all have one element type and one number (2 to 4) of axes."""
    first_name, first = next(iter(arrays.items()))
    require_float(first, first_name, function)
    wanted, rank = dtype_name(first), len(getattr(first, "shape", ()))
    for name, array in arrays.items():
        shape = getattr(array, "shape", None)
        if shape is None:
            raise TypeError(f"[{function}] {name} must be an array: got {type(array).__name__}")
        if dtype_name(array) != wanted:
            raise TypeError(f"[{function}] {name} must have {first_name}'s element type {wanted}: got {dtype_name(array)}")
        if not 2 <= rank <= 4 or len(shape) != rank:
            both, got = f"{first_name} and {name} must both", f"{first_name} {list(first.shape)}, {name} {list(array.shape)}"
            if array is first:
                both, got = f"{name} must", str(list(array.shape))
            raise ValueError(f"[{function}] {both} be [B, H, T, D], [H, T, D] or [T, D]: got {got}")
    return tuple(first.shape)


_WITH_HEADS = frozenset(("q", "k", "v", "out", "dout", "dq", "dk", "dv"))


def operands(layout: str | None = None, ways: str = ATTENTION_WAYS, **arrays: Any) -> list[Any]:
    """operand of each array, None of None; q, k, v, out and their gradients lie in `layout` and are viewed as [B, H, T, D]: nothing
    is copied, not even of JAX arrays."""
    if layout == "bthd":
        for name, x in arrays.items():
            if x is not None and name in _WITH_HEADS and len(x.shape) >= 3:
                require_untraced(x, name, ways)
                arrays[name] = x.transpose(-3, -2) if _is_torch(x) else np.asarray(x).swapaxes(-3, -2)
    plain = np.ndarray  # of a type that NumPy itself knows: what operand returns, without the call
    return [
        x if x is None or (type(x) is plain and x.dtype.kind == "f") else operand(x, name, ways) for name, x in arrays.items()
    ]


def heads_first(shape: tuple[int, ...], layout: str | None) -> tuple[int, ...]:
    """The shape of x as [B, H, T, D]."""
    return shape if layout != "bthd" or len(shape) < 3 else (*shape[:-3], shape[-2], shape[-3], shape[-1])


def check_layout(function: str, layout: str | None, q: Any, k: Any) -> None:
    """Raises ValueError for an unknown layout and for heads that do not fit; warns where the axis of tokens seems to stand
    before that of heads and no layout was given."""
    if layout not in (None, "bhtd", "bthd"):
        raise ValueError(f'[{function}] layout must be "bhtd" or "bthd": got {layout!r}')
    q_shape, k_shape = q.shape, k.shape
    if layout is not None or len(q_shape) < 3:
        return
    kv_heads, kv_len = k_shape[-3], k_shape[-2]
    if kv_heads <= kv_len:
        return
    heads, got = q_shape[-3], f"q {list(q_shape)}, k {list(k_shape)}"
    hint = 'where they are [B, T, H, D], say layout="bthd"'
    if heads > q_shape[-2] and heads % kv_heads:
        raise _core.ShapeError(f"[{function}] heads of q must be a multiple of those of k: got {got} as [B, H, T, D]; {hint}")
    if kv_heads >= 64 and kv_heads >= 4 * kv_len > 0:
        warnings.warn(
            f'[{function}] {kv_heads} heads and {kv_len} keys: got {got} as [B, H, T, D]; {hint}, otherwise layout="bhtd"',
            stacklevel=4,
        )


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new contiguous array for `_core` to fill: a torch tensor where `like` is one, otherwise a NumPy array."""
    if _is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype))
    if dtype == "bfloat16":
        import ml_dtypes

        return np.empty(shape, dtype=ml_dtypes.bfloat16)
    return np.empty(shape, dtype=dtype)


def finish(like: Any, made: Any) -> Any:
    """The result of `empty` as an array of `like`'s library; for JAX it is copied once."""
    if made is not None and _is_jax(like):
        import jax.numpy as jnp

        return jnp.asarray(made)
    return made


def boolean(x: Any, name: str) -> Any:
    """A mask of bools, integers or floats as bytes, non-zero = true; bytes and bools are not copied."""
    require_unmasked(x, name)
    if _is_torch(x):
        torch = sys.modules["torch"]
        x = x.detach()  # what is kept or not has no gradient
        return operand((x if x.dtype in (torch.bool, torch.uint8, torch.int8) else x != 0).view(torch.uint8), name)
    array = np.asarray(x)
    if array.dtype.kind in "OSUMm":  # None would be true
        raise TypeError(f"{name} must hold bools or numbers: got {array.dtype}")
    if array.dtype.itemsize != 1:
        array = array != 0
    return array.view(np.uint8)


def whole_numbers(x: Any, name: str, dtype: Any = np.int32) -> Any:
    """An array of whole numbers as int32 or int64, without a copy where it is. TypeError: other numbers. ValueError: one too large."""
    if _is_torch(x):
        x = x.detach().cpu().numpy()
    require_unmasked(x, name)
    array = np.asarray(x)
    if not array.size and not hasattr(x, "dtype"):
        array = array.astype(dtype)  # a list without numbers
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold whole numbers: got {array.dtype}")
    limits = np.iinfo(dtype)
    if array.dtype != dtype and array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        raise ValueError(f"{name} must fit {limits.dtype}: got {array.min()}..{array.max()}")
    return array.astype(dtype, copy=False)


def integers(x: Any, name: str) -> list[int]:
    """A list of Python ints of any sequence or array of whole numbers. TypeError: of anything else."""
    require_unmasked(x, name)
    try:
        return [operator.index(n) for n in (x.tolist() if hasattr(x, "tolist") else x)]
    except TypeError:
        raise TypeError(f"{name} must be a sequence of whole numbers: got {reprlib.repr(x)}") from None


def pairs_of(x: Any, name: str) -> list[tuple[int, int]]:
    """(layer, head) of each. TypeError: of anything else."""
    try:
        return [(operator.index(layer), operator.index(head)) for layer, head in x]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold pairs (layer, head): got {reprlib.repr(x)}") from None
