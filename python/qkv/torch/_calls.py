"""qkv's kernels on PyTorch tensors: memory in, memory out.

All tensors are 4-D and lie on the CPU, the last axis of stride 1: q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], bias
[B|1, H|1, Tq|1, Tk|1] float32 (float64 for float64), keep likewise of bool, lse [B, H, Tq]. Results have the memory layout
of what they belong to: out and dq that of q, so that [B, T, H, D] memory stays so and merging heads copies nothing.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _arrays, _core
from .._options import _causal


class ArgumentError(ValueError, RuntimeError):
    """Arguments that do not fit; PyTorch raises RuntimeError for them, the rest of Python ValueError."""


class ArgumentTypeError(TypeError, RuntimeError):
    """Element types that do not fit; PyTorch raises RuntimeError for them, the rest of Python TypeError."""


FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_WIDE = frozenset((torch.float32, torch.float64))


def require_tensors(function: str, tensors: dict[str, Any], others: dict[str, Any] | None = None) -> None:
    """Raises ArgumentTypeError for the first that is no tensor; of others None passes."""
    given = [x for x in (others or {}).items() if x[1] is not None]
    for name, x in (*tensors.items(), *given):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"[{function}] {name} must be a torch.Tensor: got {type(x).__name__}; torch.as_tensor makes one")


def require_floats(function: str, tensors: dict[str, Tensor], others: dict[str, Tensor | None]) -> None:
    """Raises ArgumentTypeError unless all are tensors of the same of the four element types, ArgumentError for what, of others too, lies
    on another device."""
    fits, dtype = True, None
    for x in tensors.values():
        if not isinstance(x, Tensor):
            require_tensors(function, tensors, others)
        dtype = dtype or x.dtype
        fits = fits and x.dtype is dtype
    if not fits or dtype not in FLOATS:
        found = ", ".join(f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in tensors.items())
        to = f"{next(iter(tensors))}.dtype" if dtype in FLOATS else "torch.float32"
        raise ArgumentTypeError(
            f"[{function}] {', '.join(tensors)} must have one element type, float32, float64, bfloat16 or float16: got {found}; cast "
            f"them, x.to({to})"
        )
    for given in (tensors, others):
        for name, x in given.items():  # type: ignore[assignment]
            if x is not None and not (isinstance(x, Tensor) and x.is_cpu):
                require_tensors(function, tensors, others)
                raise ArgumentError(f"[{function}] tensors must lie in the CPU's memory: got {name} on {x.device}; move it, {name}.cpu()")


def require_real(function: str, **tensors: Tensor | None) -> None:
    """Raises ArgumentTypeError for the first that holds no floating-point numbers."""
    for name, x in tensors.items():
        if x is not None and not x.is_floating_point():
            raise ArgumentTypeError(f"[{function}] {name} must hold real numbers: got {str(x.dtype).removeprefix('torch.')}")


require_shapes = functools.partial(_arrays.require_shapes, ArgumentError)


def require_aux(function: str, return_aux: Any) -> None:
    """Raises TypeError for what is no AuxRequest of PyTorch's."""
    if return_aux is not None and not hasattr(return_aux, "lse"):
        raise TypeError(f"[{function}] return_aux must be an AuxRequest, such as AuxRequest(lse=True), or None: got {return_aux!r}")


def offsets_of(function: str, name: str, cu: Tensor, total: int, *, whole: bool = False) -> list[int]:
    """The numbers of an array like cu_seqlens, of sequences among `total` tokens; whole: of all of them."""
    numbers = cu.tolist() if cu.dim() == 1 else []
    if not numbers or numbers[0] != 0 or numbers != sorted(numbers) or numbers[-1] > total or (whole and numbers[-1] != total):
        shown = str(numbers if len(numbers) <= 8 else [*numbers[:4], "...", *numbers[-3:]]).replace("'", "")
        end = "at" if whole else "at no more than"
        raise ArgumentError(f"[{function}] {name} must start with 0, not decrease and end {end} {total} tokens: got {shown}")
    return numbers


def sum_dtype(x: Tensor) -> torch.dtype:
    """The type of lse, biases and weights that belong to x."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


@dataclass(frozen=True)
class Rules:
    """Arguments besides tensors that may be differentiated. A value: equal rules mean equal calls."""

    causal: bool | str = False  #: True or "top_left", "bottom_right"
    scale: float | None = None
    dropout: float = 0.0
    seed: int = 0
    empty_row: str = "zero"
    softcap: float = 0.0
    mask: Any = None  #: qkv.Mask, beside causal
    table: Any = None  #: a maker of _core's position bias from `table` (flex.py)
    score_mod: Any = None  #: qkv.ScoreMod

    def options(self, bias: Tensor | None, keep: Tensor | None, table: Tensor | None = None) -> Any:
        """_core.Options, valid as long as the tensors live."""
        if bias is None and keep is None and table is None and not self.dropout and self.mask is None:
            return self._fixed
        return self._build(bias, keep, table)

    @functools.cached_property
    def _fixed(self) -> Any:
        return None if self == Rules() else self._build(None, None, None)

    def _build(self, bias: Tensor | None, keep: Tensor | None, table: Tensor | None) -> Any:
        parts = [] if self.mask is None else [self.mask._core]
        if self.causal:
            parts.append(_causal("top_left" if self.causal is True else str(self.causal))._core)
        if keep is not None:
            parts.append(_core.keep(keep, None, False))
        position = None if self.table is None else self.table(table)
        return _core.Options(
            mask=functools.reduce(lambda a, b: a & b, parts) if parts else None, bias=bias, scale=self.scale,
            softcap=self.softcap, empty_row=self.empty_row, dropout=self.dropout, seed=self.seed, position_bias=position,
            score_mod=None if self.score_mod is None else self.score_mod._core,
        )  # fmt: skip


@functools.lru_cache(maxsize=256)
def plain_rules(causal: bool | str, scale: float | None, empty_row: str = "zero") -> Rules:
    """Rules without dropout or masks, one object per combination (their options are built once)."""
    return Rules(causal, scale, empty_row=empty_row)


def draw_seed() -> Tensor:
    """63 bits of PyTorch's default generator, int64 [1]."""
    return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64)


def autocast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As PyTorch casts the arguments of F.scaled_dot_product_attention: floats, but not float64, to autocast's type."""
    to = torch.get_autocast_dtype("cpu")

    def cast(x: Tensor) -> Tensor:
        return x.to(to) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 else x

    return cast(q), cast(k), cast(v), None if mask is None else cast(mask)


def autocast_where_mixed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For functions that PyTorch's autocast does not know: tensors of one type stay as they are, others are cast."""
    if not torch.is_autocast_enabled("cpu") or len({getattr(x, "dtype", None) for x in (q, k, v)}) == 1:
        return q, k, v
    return autocast(q, k, v, None)[:3]


def empty_as(x: Tensor) -> Tensor:
    """Memory in x's layout; contiguous where x overlaps itself, of which PyTorch may put another axis innermost."""
    made = torch.empty_like(x)
    return made if made.stride(-1) == 1 else x.new_empty(x.shape)


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for out [B, H, Tq, Dv]."""
    return empty_as(q) if v.shape[3] == q.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]))


def empty_lse(q: Tensor) -> Tensor:
    """Memory for lse [B, H, Tq]."""
    b, h, t, _ = q.shape
    return q.new_empty((b, h, t)) if q.dtype in _WIDE else q.new_empty((b, h, t), dtype=torch.float32)


def forward(q: Tensor, k: Tensor, v: Tensor, options: Any) -> Tensor:
    """out alone."""
    out = empty_output(q, v)
    _core.forward(options, None, "softmax", q, k, v, out, None, None, None)
    return out


def forward_with_lse(q: Tensor, k: Tensor, v: Tensor, options: Any, low: bool = False) -> tuple[Tensor, Tensor, Any]:
    """out, lse, and the rounding error of lse, which saves backward work: None for few queries (unless `low`), which have little."""
    out, lse = empty_output(q, v), empty_lse(q)
    lost = torch.empty_like(lse) if low or lse.shape[2] >= 32 else None
    _core.forward(options, None, "softmax", q, k, v, out, lse, None, lost)
    return out, lse, lost


def forward_with_weights(q: Tensor, k: Tensor, v: Tensor, options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, the weights that multiplied v (after dropout), [B, H, Tq, Tk] of lse's type, lse, and its rounding error."""
    out, lse = empty_output(q, v), empty_lse(q)
    weights, low = torch.empty((*q.shape[:3], k.shape[2]), dtype=lse.dtype), torch.empty_like(lse)
    _core.forward(options, None, "applied", q, k, v, out, lse, weights, low)
    return out, weights, lse, low


def resolved(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors; copies of those whose memory holds their numbers without the sign. Not within what PyTorch traces."""
    return tuple(x if x is None or not x.is_neg() else x.resolve_neg() for x in tensors)


def inner_contiguous(x: Tensor) -> Tensor:
    """x, copied where its last axis does not have stride 1."""
    if x.is_contiguous() or x.stride(-1) == 1:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def as_memory(x: Tensor | None) -> Tensor | None:
    """A tensor as the kernels read it."""
    return None if x is None else inner_contiguous(x.resolve_neg())


def backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, low: Tensor | None, options: Any,
    need: tuple[bool, bool, bool] = (True, True, True), bias: Tensor | None = None, table_shape: tuple[int, int] | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv (each where it is needed), dbias (where bias is given), dtable (where its shape is)."""
    dq, dk, dv = (empty_as(x) if wanted else None for x, wanted in zip((q, k, v), need))
    dbias = None if bias is None else torch.empty(bias.shape, dtype=bias.dtype)
    dtable = None if table_shape is None else torch.empty(table_shape, dtype=lse.dtype)
    dlse = None if dlse is None else dlse.resolve_neg()
    _core.backward(options, None, q, k, v, out, lse, as_memory(dout), dlse, low, dq, dk, dv, dbias, None, dtable)
    return dq, dk, dv, dbias, dtable


def jvp(
    q: Tensor, k: Tensor, v: Tensor, lse: Tensor, tangents: tuple[Tensor | None, ...], options: Any
) -> tuple[Tensor, Tensor]:
    """Tangents of out and lse along those of q, k, v, bias; None is zero. 16-bit tensors are computed in float32."""
    if q.dtype not in _WIDE:
        wide = tuple(None if t is None else t.float() for t in tangents)
        tout, tlse = jvp(q.float(), k.float(), v.float(), lse, wide, options)
        return tout.to(q.dtype), tlse
    tout, tlse = empty_output(q, v), torch.empty_like(lse)
    _core.jvp(options, q, k, v, lse, *map(as_memory, tangents), tout, tlse)
    return tout, tlse


def double_backward(
    cotangents: tuple[Tensor | None, ...], dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    lse: Tensor, options: Any, bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """gq, gk, gv, gdout, gbias, gdlse (None without bias, dlse) from the cotangents of dq, dk, dv, dbias. float32 and float64;
    16-bit tensors are computed in float32."""
    dlse = None if dlse is None else dlse.resolve_neg()
    if q.dtype not in _WIDE:
        wide = tuple(None if c is None else c.float() for c in cotangents)
        rest = (q.float(), k.float(), v.float(), out.float(), lse, options, bias)
        made = double_backward(wide, dout.float(), dlse, *rest)
        return (*(g.to(q.dtype) for g in made[:4]), *made[4:])
    dout = as_memory(dout)  # type: ignore[assignment]
    made = [empty_as(x) for x in (q, k, v, dout)]
    gbias = None if bias is None else torch.empty(bias.shape, dtype=bias.dtype)
    gdlse = None if dlse is None else torch.empty(dlse.shape, dtype=dlse.dtype)
    _core.double_backward(options, q, k, v, out, lse, dout, dlse, *map(as_memory, cotangents), *made, gbias, gdlse)
    return (*made, gbias, gdlse)
