"""Attention for JAX on CPUs: through XLA's foreign function interface, so it runs inside ``jax.jit`` without Python.

    import jax, qkv.jax
    loss = lambda q, k, v: qkv.jax.attention(q, k, v, causal=True).sum()
    jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)

Works under jit, grad, value_and_grad, vjp, vmap, checkpoint, scan and shard_map over batch and heads; float32, float64
(jax_enable_x64), bfloat16, float16. Letters and formula: qkv/_attention.py. Backward is qkv's own, O(T) memory; sums in float32 for
16-bit types. Not supported: forward mode, second derivatives, arrays that are sharded outside of shard_map (XLA gathers them),
devices other than CPUs (XLA then says that it has no such target).
"""

import dataclasses
import math
from functools import cache, partial
from typing import Any

import numpy as np

from ._needs import need

need("qkv.jax", "jax")

import jax

if not hasattr(jax, "ffi"):
    raise ImportError(f"qkv.jax needs JAX 0.5 or newer: got {jax.__version__}", name="jax")
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from . import _jax
from ._arrays import require_lse, require_shapes
from ._options import _diagonal, require_64_bits, window_of
from .masks import Mask

__all__ = ["attention", "dot_product_attention"]

jax.ffi.register_ffi_target("qkv_attention_forward", _jax.forward_target(), platform="cpu")
jax.ffi.register_ffi_target("qkv_attention_backward", _jax.backward_target(), platform="cpu")

_FLOATS = ("float32", "float64", "bfloat16", "float16")
_ALIGN = {"square": 0, "top_left": 1, "bottom_right": 2}
_EMPTY_ROW = {"zero": 0, "mean": 1, "nan": 2}

# Masks of traced functions, for as long as the process lives: id(mask) -> (mask, its number in _jax).
_masks: dict[int, tuple[Mask, int]] = {}


@dataclasses.dataclass(frozen=True)
class _Static:
    """The key of a compiled function."""

    causal: bool
    align: int
    left: int
    right: int
    scale: float
    softcap: float
    empty_row: int
    dropout: float
    mask: int
    tokens_first: bool

    def attributes(self, optional: tuple[Any, ...]) -> dict[str, Any]:
        """As jax.cc reads them."""
        given = sum(1 << n for n, array in enumerate(optional) if array is not None)
        scalars = {**dataclasses.asdict(self), "given": given}
        return {name: np.float64(x) if isinstance(x, float) else np.int64(x) for name, x in scalars.items()}


def _sum_dtype(x: Any) -> Any:
    return x.dtype if x.dtype == jnp.float64 else jnp.float32


def _vma(x: Any) -> frozenset[str]:
    """The axes of jax.shard_map over which x differs from device to device."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    axes = getattr(getattr(kind, "manual_axis_type", None), "varying", None)  # from JAX 0.10 on; vma before
    return frozenset(getattr(kind, "vma", None) or ()) if axes is None else axes


def _varying_alike(arrays: Any) -> Any:
    """Within jax.shard_map: arrays that are the same on every device marked as different where any other is, so that JAX sums their
    gradients over devices; a foreign call forgets the mark of its results."""
    axes = frozenset().union(*(_vma(x) for x in jax.tree.leaves(arrays)))

    def alike(x: Any) -> Any:
        missing = tuple(sorted(axes - _vma(x)))
        if not missing:
            return x
        return jax.lax.pcast(x, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, missing)

    return jax.tree.map(alike, arrays) if axes else arrays


def _forward(static: _Static, q: Any, k: Any, v: Any, optional: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """out, lse, and the rounding error of lse, which saves backward work."""
    tokens, heads = (1, 2) if static.tokens_first else (2, 1)
    results = (
        jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype),
        *(jax.ShapeDtypeStruct((q.shape[0], q.shape[heads], q.shape[tokens]), _sum_dtype(q)),) * 2,
    )
    call = jax.ffi.ffi_call("qkv_attention_forward", results, vmap_method="expand_dims")
    made = call(q, k, v, *(a for a in optional if a is not None), **static.attributes(optional))
    return _varying_alike((q, *made))[1:]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward_once(static: _Static, q: Any, k: Any, v: Any, optional: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    return _forward(static, q, k, v, optional)


@_forward_once.defjvp
def _forward_twice(static: _Static, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "[qkv.jax.attention] a second derivative is not computed; qkv.torch.scaled_dot_product_attention and "
        "jax.nn.dot_product_attention have it"
    )


def _attention_fwd(static: _Static, q: Any, k: Any, v: Any, optional: tuple[Any, ...]) -> Any:
    # Each argument says whether its derivative is wanted: dbias is summed only if it is.
    wants_dbias = optional[0] is not None and optional[0].perturbed
    q, k, v, optional = jax.tree.map(lambda given: given.value, (q, k, v, optional))
    out, lse, low = _forward_once(static, q, k, v, optional)
    return (out, lse), (q, k, v, out, lse, low, optional, () if wants_dbias else None)


def _attention_bwd(static: _Static, residuals: Any, cotangents: Any) -> Any:
    q, k, v, out, lse, low, optional, wants = residuals
    dout, dlse = (jnp.zeros(c.shape, c.dtype) if isinstance(c, SymbolicZero) else c for c in cotangents)
    bias, _, _, sinks, _ = optional
    made = [q, k, v, *([] if wants is None else [bias]), *([] if sinks is None else [sinks])]
    results = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in made)
    call = jax.ffi.ffi_call("qkv_attention_backward", results, vmap_method="expand_dims")
    gradients = call(
        q, k, v, out, lse, low, dout, dlse, *(a for a in optional if a is not None),
        wants_dbias=np.int64(wants is not None), **static.attributes(optional),
    )  # fmt: skip
    dq, dk, dv, *rest = _varying_alike((q, *gradients))[1:]
    dbias = None if wants is None else rest[0]
    return dq, dk, dv, (dbias, None, None, None if sinks is None else rest[-1], None)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, q: Any, k: Any, v: Any, optional: tuple[Any, ...]) -> tuple[Any, Any]:
    return _forward(static, q, k, v, optional)[:2]


_attention.defvjp(_attention_fwd, _attention_bwd, symbolic_zeros=True)
_compiled = jax.jit(_attention, static_argnums=0)


def _mask_token(mask: Mask | None) -> int:
    if mask is None:
        return 0
    if not isinstance(mask, Mask):
        raise TypeError(f"[qkv.jax.attention] mask must be a qkv.Mask: got {type(mask).__name__}; an array goes to keep=")
    if id(mask) not in _masks:
        _masks[id(mask)] = (mask, _jax.keep_mask(mask._core))
    return _masks[id(mask)][1]


def _seed_words(seed: Any) -> Any:
    """[2] uint32: the low and the high half of the 64 bits that qkv.attention takes as seed."""
    if isinstance(seed, (int, np.integer)):
        require_64_bits("qkv.jax.attention", seed=seed)
        bits = int(seed)
        return np.array([bits & 0xFFFFFFFF, bits >> 32], np.uint32)
    if not hasattr(seed, "dtype"):
        raise TypeError(f"[qkv.jax.attention] seed must be an int, a key or uint32[2]: got {seed!r}")
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if seed.dtype != jnp.uint32 or seed.shape != (2,):
        raise TypeError(f"[qkv.jax.attention] seed must be an int, a key or uint32[2]: got {seed.dtype}{list(seed.shape)}")
    return seed


def _check(q: Any, k: Any, v: Any, tokens_first: bool, square: bool, window: tuple[int, int] | None) -> dict[str, int]:
    """B, H, Tq, D, Hkv, Tk and Dv. window: alone, without causal."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype.name not in _FLOATS or x.dtype != q.dtype:
            wanted = f"have q's element type {q.dtype.name}" if x.dtype.name in _FLOATS else "be float32, float64, bfloat16 or float16"
            raise TypeError(f"[qkv.jax.attention] {name} must {wanted}: got {x.dtype.name}")
        if not isinstance(x, jax.core.Tracer) and any(device.platform != "cpu" for device in x.devices()):
            raise ValueError(
                f"[qkv.jax.attention] {name} must lie on a CPU: got {x.devices()}; jax.device_put(x, jax.devices('cpu')[0])"
            )
    axes = "B {1} {0} {2}" if tokens_first else "B {0} {1} {2}"
    shapes = {"q": (q, axes.format("H", "Tq", "D")), "k": (k, axes.format("Hkv", "Tk", "D")), "v": (v, axes.format("Hkv", "Tk", "Dv"))}
    sizes = require_shapes(ValueError, "qkv.jax.attention", shapes)
    got = f"got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if sizes["Hkv"] == 0 or sizes["H"] % sizes["Hkv"]:
        raise ValueError(f"[qkv.jax.attention] heads of q must be a multiple of heads of k: {got}")
    if square and sizes["Tq"] != sizes["Tk"]:
        name, instead = ("causal=True", 'causal="top_left" or "bottom_right"')
        if window is not None:
            name, instead = f"window={window}", f'mask=qkv.Mask.window({window[0]}, {window[1]}, "bottom_right") or "top_left"'
        raise ValueError(f"[qkv.jax.attention] {name} needs Tq == Tk, else say {instead}: {got}")
    return sizes


def _operand(array: Any, name: str, dtype: Any, sizes: tuple[int, ...], letters: str, *, repeats: bool = True) -> Any:
    if array is None:
        return None
    array = jnp.asarray(array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"[qkv.jax.attention] {name} must hold real numbers: got {array.dtype}")
    if array.ndim != len(sizes) or any(own != size and not (repeats and own == 1) for own, size in zip(array.shape, sizes, strict=True)):
        where = ", or 1 where it repeats" if repeats else ""
        raise ValueError(f"[qkv.jax.attention] {name} must be {letters} = {list(sizes)}{where}: got {list(array.shape)}")
    return array.astype(dtype)


def _whole(array: Any, name: str) -> Any:
    """int32, of larger numbers the largest of that type. TypeError: of numbers that are not whole."""
    if array is None:
        return None
    array = array if isinstance(array, jax.Array) else np.asarray(array)  # NumPy's int64 is not cut to int32 unseen
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"[qkv.jax.attention] {name} must hold whole numbers: got {array.dtype}")
    limits = np.iinfo(array.dtype)
    return array.clip(max(limits.min, -(2**31)), min(limits.max, 2**31 - 1)).astype(np.int32)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    bias: Any = None,
    mask: Mask | None = None,
    keep: Any = None,
    key_lengths: Any = None,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    empty_row: str = "zero",
    return_lse: bool = False,
    tokens_first: bool = False,
) -> Any:
    """softmax(q k^T scale) v, differentiable in q, k, v, bias and sinks.

    Args:
        q: [B, H, Tq, D], k: [B, Hkv, Tk, D], v: [B, Hkv, Tk, Dv]; float32, float64, bfloat16 or float16. [B, T, H, D] with
            ``tokens_first``: no copy is made for it.
        causal: True (only when Tq == Tk), "top_left" or "bottom_right".  window: (left, right) other tokens, -1 = unbounded.
        bias: [B|1, H|1, Tq|1, Tk|1], added to scores; -inf = not kept. Its gradient is computed only where it is asked for.
        mask: a :class:`qkv.Mask`; it is static: make it once, outside of functions that are called again and again.
        keep: bool [B|1, H|1, Tq|1, Tk|1], True = may attend; traced.  key_lengths: int [B]; traced. Every mask must
            allow a key.
        scale: a number, default 1/sqrt(D).  softcap: c > 0: scores become c tanh(score / c).  sinks: [H], a logit per head.
        dropout, seed: as :func:`qkv.attention`; seed: an int (the same pattern as there), a key of jax.random or uint32[2];
            traced. Under vmap the sequences count on from call to call.
        empty_row: "zero", "mean" or "nan".  return_lse: also return lse [B, H, Tq], float32 (float64 for float64),
            differentiable too.

    Returns:
        out, [B, H, Tq, Dv] (or [B, Tq, H, Dv]), or (out, lse).

    Raises:
        TypeError, ValueError: while the call is traced. For what only shows when it runs, such as a key_lengths beyond Tk:
            jax.errors.JaxRuntimeError or, of a function that is compiled already, ValueError; both with qkv's text.
    """
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    align = _diagonal(causal)
    left, right = (-1, -1) if window is None else window_of(window, "qkv.jax.attention")
    require_lse("qkv.jax.attention", return_lse, (True,))
    windowed = left >= 0 or right >= 0
    square = align == "square" and (causal is True or windowed)
    n = _check(q, k, v, tokens_first, square, (left, right) if windowed and not causal else None)
    if min(left, right) < -1:
        raise ValueError(f"[qkv.jax.attention] window must be counts of other tokens, or -1: got {window}")
    if empty_row not in _EMPTY_ROW:
        raise ValueError(f'[qkv.jax.attention] empty_row must be "zero", "mean" or "nan": got {empty_row!r}')
    if dropout and seed is None:
        raise ValueError("[qkv.jax.attention] dropout needs a seed")
    if not (softcap >= 0 and math.isfinite(softcap)):
        raise ValueError(f"[qkv.jax.attention] softcap must be finite and at least 0: got {softcap}")
    sizes = (n["B"], n["H"], n["Tq"], n["Tk"])
    if keep is not None and jnp.issubdtype(jnp.asarray(keep).dtype, jnp.inexact):
        raise TypeError(f"[qkv.jax.attention] keep must be bool, True = may attend: got {jnp.asarray(keep).dtype.name}; see bias")
    optional = (
        _operand(bias, "bias", _sum_dtype(q), sizes, "[B, H, Tq, Tk]"),
        _operand(keep, "keep", jnp.bool_, sizes, "[B, H, Tq, Tk]"),
        _operand(_whole(key_lengths, "key_lengths"), "key_lengths", jnp.int32, sizes[:1], "[B]", repeats=False),
        _operand(sinks, "sinks", _sum_dtype(q), sizes[1:2], "[H]", repeats=False),
        _seed_words(seed) if dropout else None,
    )
    static = _Static(
        causal=bool(causal),
        align=_ALIGN[align],
        left=left,
        right=right,
        scale=1.0 / math.sqrt(max(q.shape[3], 1)) if scale is None else float(scale),
        softcap=float(softcap),
        empty_row=_EMPTY_ROW[empty_row],
        dropout=float(dropout),
        mask=_mask_token(mask),
        tokens_first=tokens_first,
    )
    q, k, v, optional = _varying_alike((q, k, v, optional))
    out, lse = _compiled(static, q, k, v, optional)
    return (out, lse) if return_lse else out


@cache
def _top_left_window(left: int, right: int) -> Mask:
    return Mask.window(left, right, "top_left")


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """``jax.nn.dot_product_attention`` with its arguments and its meaning, on qkv.

    query [B, T, N, H] or [T, N, H]; key, value [B, S, K, H] or [S, K, H]; bias, mask (bool, True = may attend) broadcastable to
    [B, N, T, S]. Causal and window are aligned at the top left; a row without keys averages all values, as there; rows from
    query_seq_lengths on are 0. implementation is ignored. return_residual: also lse [B, T, N], without derivative; -inf for a
    row without keys, where jax.nn gives about -2.4e38.
    """
    del implementation
    q, k, v, bias, mask = (None if x is None else _four_axes(jnp.asarray(x)) for x in (query, key, value, bias, mask))
    if mask is not None and mask.dtype != jnp.bool_:
        raise TypeError(
            f"[qkv.jax.dot_product_attention] mask must be bool, True = may attend: got {mask.dtype.name}; see bias"
        )
    if key_value_seq_lengths is not None:
        key_value_seq_lengths = jnp.clip(_whole(key_value_seq_lengths, "key_value_seq_lengths"), 0, k.shape[1])
    if isinstance(scale, jax.core.Tracer):
        q, scale = (q * scale).astype(q.dtype), 1.0
    sides = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
    if sides is not None and min(window_of(sides, "qkv.jax.dot_product_attention", "local_window_size")) < 0:
        raise ValueError(f"[qkv.jax.dot_product_attention] local_window_size must be at least 0: got {local_window_size}")
    out, lse = attention(
        q, k, v, causal="top_left" if is_causal else False, bias=bias, keep=mask, key_lengths=key_value_seq_lengths,
        mask=None if sides is None else _top_left_window(int(sides[0]), int(sides[1])),
        scale=None if scale is None else float(scale), empty_row="mean", return_lse=True, tokens_first=True,
    )  # fmt: skip
    if query_seq_lengths is not None:
        live = jnp.arange(q.shape[1])[None, :, None, None] < jnp.asarray(_whole(query_seq_lengths, "query_seq_lengths"))[:, None, None, None]
        out = jnp.where(live, out, jnp.zeros((), out.dtype))
        lse = jnp.where(live[:, None, :, 0, 0], lse, -jnp.inf)
    out = out.reshape(*jnp.shape(query)[:-1], v.shape[-1])
    if not return_residual:
        return out
    return out, jax.lax.stop_gradient(jnp.swapaxes(lse, 1, 2).reshape(jnp.shape(query)[:-1]).astype(q.dtype))


def _four_axes(x: Any) -> Any:
    return x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x
