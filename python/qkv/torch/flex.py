"""flex_attention with PyTorch's signature, on the CPU, with backward, which PyTorch lacks there. Dong 2024 (arXiv:2412.05496).

score_mod is one of
    None
    SoftCap(c)                          c tanh(score / c), tiled, second derivatives too
    PositionBias.alibi(...), .t5(...), .relative(...)     qkv's biases of the distance, O(T) memory
    Relative(table)                     table[R + clamp(j - i, -R, R), h], [2R + 1, H]: the table learns too
    a sequence of these                 the soft cap first, then the bias
    any function (score, b, h, q_idx, kv_idx) of PyTorch's kind: evaluated on blocks of scores by vmap, its slope by autograd;
        slower; a tensor that it captures and that requires a gradient is refused, as it would get none
block_mask is None, a qkv.Mask, or what torch.nn.attention.flex_attention.create_block_mask made. The latter is written out
once, one byte per pair, and kept until its mask_mod, or a tensor that this captures, changes; a qkv.Mask keeps nothing of that size.
kernel_options change nothing. Not supported: paged attention, max_scores, torch.compile (there is a graph break, and the call runs eagerly).
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import _core
from .._arrays import require_numbers
from .._options import PositionBias, ScoreMod
from ..masks import Mask
from . import _calls
from ._calls import Rules, require_shapes
from ._graph import Attend, _functorch, attend_with_lse
from ._overrides import require_plain
from .sdpa import ArgumentError, _operands

__all__ = ["Relative", "SoftCap", "flex_attention", "mask_of"]


@dataclass(frozen=True)
class SoftCap:
    """score_mod: c tanh(score / c). Gemma 2 (arXiv:2408.00118)."""

    cap: float


@dataclass(frozen=True, eq=False)
class Relative:
    """score_mod: score + table[R + clamp(j - i - offset, -R, R), h], table [2R + 1, H] of lse's type, which may require grad.
    Shaw 2018 (arXiv:1803.02155). align: where offset puts the diagonal when Tq != Tk."""

    table: Tensor
    align: str = "square"


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Tensor | tuple[Tensor, Any]:
    """softmax(score_mod(query key^T scale), masked) value.

    Args:
        query: [B, Hq, L, E]. key: [B, H, S, E]. value: [B, H, S, Ev]; float32, float64, bfloat16 or float16, on the CPU.
        score_mod, block_mask: see the module's description. scale: default 1/sqrt(E).
        enable_gqa: query head h reads head h // (Hq // H).
        return_lse: also return the natural logarithm of the sum of exponentials, [B, Hq, L]; differentiable.
        kernel_options: for other devices' kernels; ignored.
        return_aux: PyTorch's AuxRequest instead of return_lse: lse where it asks for it; no max_scores.

    Returns:
        [B, Hq, L, Ev], or a tuple of it and lse, or of it and an AuxOutput. A row that may attend nothing: 0, lse -inf.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for wrong shapes or a mask of another size. TypeError: for a score_mod or
            block_mask of another kind.
    """
    shapes = {"query": (query, "B Hq L E"), "key": (key, "B H S E"), "value": (value, "B H S Ev")}
    _calls.require_tensors("flex_attention", {"query": query, "key": key, "value": value})
    require_shapes("flex_attention", shapes)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ArgumentError(
            f"[flex_attention] query has {query.shape[1]} heads, key {key.shape[1]}: pass enable_gqa=True for grouped heads"
        )
    if return_aux is None:
        return _attend(query, key, value, score_mod, block_mask, scale, return_lse)
    _calls.require_aux("flex_attention", return_aux)
    if return_lse:
        raise ArgumentError("[flex_attention] return_lse and return_aux exclude each other: return_aux=AuxRequest(lse=True) alone")
    if return_aux.max_scores:
        raise NotImplementedError("[flex_attention] max_scores are not computed: got return_aux with max_scores=True; AuxRequest(lse=True)")
    from torch.nn.attention.flex_attention import AuxOutput

    out = _attend(query, key, value, score_mod, block_mask, scale, return_aux.lse)
    return (out[0], AuxOutput(lse=out[1])) if return_aux.lse else (out, AuxOutput())


@torch.compiler.disable
def _attend(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: float | None, return_lse: bool
) -> Any:
    require_numbers("flex_attention", scale=scale)
    require_plain("flex_attention", {"query": query, "key": key, "value": value})
    q, k, v = _calls.resolved(*_operands(query, key, value, True)[:3])  # type: ignore[assignment]
    rules, table = _rules_of(score_mod, Rules(scale=scale, mask=mask_of(block_mask, q.shape, k.shape)), q)
    if return_lse or _functorch() is not None:
        results = attend_with_lse.apply(q, k, v, None, None, table, rules)
        return results[:2] if return_lse else results[0]
    return Attend.apply(q, k, v, None, None, table, rules)


def _rules_of(score_mod: Any, rules: Rules, q: Tensor) -> tuple[Rules, Tensor | None]:
    """The rules with score_mod added, and the table that may learn."""
    if score_mod is None:
        return rules, None
    if isinstance(score_mod, SoftCap):
        if rules.table is not None:
            raise ArgumentError(
                "[flex_attention] a SoftCap comes before a bias in a sequence of score_mods: it caps scores alone"
            )
        if rules.softcap:
            raise ArgumentError("[flex_attention] a sequence of score_mods takes one SoftCap: got two")
        require_numbers("flex_attention", **{"the cap of a SoftCap": score_mod.cap})
        return replace(rules, softcap=float(score_mod.cap)), None
    if isinstance(score_mod, PositionBias):
        return replace(rules, table=lambda _: score_mod._core), None
    if isinstance(score_mod, Relative):
        require_plain("flex_attention", {"score_mod's table": score_mod.table})
        table = score_mod.table.resolve_neg().to(_calls.sum_dtype(q))
        return replace(rules, table=lambda memory: _core.relative(memory, score_mod.align)), _calls.inner_contiguous(table)
    if isinstance(score_mod, ScoreMod):
        return replace(rules, score_mod=score_mod), None
    if isinstance(score_mod, Sequence) and not isinstance(score_mod, str):
        table = None
        for part in score_mod:
            if rules.score_mod is not None or (rules.table is not None and isinstance(part, (PositionBias, Relative))):
                raise ArgumentError(
                    "[flex_attention] a sequence of score_mods holds at most one bias, and a function only last"
                )
            rules, own = _rules_of(part, rules, q)
            table = own if own is not None else table
        return rules, table
    if callable(score_mod):
        _require_no_gradient(score_mod, q)
        return replace(rules, score_mod=_of_function(score_mod)), None
    raise TypeError(
        "[flex_attention] score_mod must be a function (score, b, h, q_idx, kv_idx), a SoftCap, PositionBias, Relative, a "
        f"sequence of them or None: got {type(score_mod).__name__}"
    )


def _require_no_gradient(function: Callable[..., Tensor], q: Tensor) -> None:
    """Raises ArgumentError where a score, which is a plain number here, comes back with a gradient: of a tensor that is captured."""
    if not torch.is_grad_enabled():
        return
    score, at = torch.zeros((), dtype=_calls.sum_dtype(q)), torch.zeros((), dtype=torch.int64)
    if getattr(function(score, at, at, at, at), "requires_grad", False):
        raise ArgumentError(
            "[flex_attention] score_mod captures a tensor that requires a gradient and would get none: a bias of the distance that learns is "
            "qkv.torch.Relative(table); without a gradient: detach() it, or torch.no_grad()"
        )


def _of_function(function: Callable[..., Tensor]) -> ScoreMod:
    """A PyTorch score_mod, which takes single numbers, as a qkv.ScoreMod, which takes blocks."""
    over_keys = torch.func.vmap(function, in_dims=(0, None, None, None, 0))
    over_block = torch.func.vmap(over_keys, in_dims=(0, None, None, 0, None))

    def arguments(b: int, h: int, i: np.ndarray, j: np.ndarray) -> tuple[Tensor, ...]:
        return torch.tensor(b), torch.tensor(h), torch.from_numpy(i[:, 0]), torch.from_numpy(j[0])

    def value(score: np.ndarray, b: int, h: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return over_block(torch.from_numpy(score), *arguments(b, h, i, j)).numpy()

    def slope(score: np.ndarray, b: int, h: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        with torch.enable_grad():
            x = torch.from_numpy(score).requires_grad_()
            y = over_block(x, *arguments(b, h, i, j))
            if not y.requires_grad:
                return np.zeros_like(score)
            (made,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
        return np.zeros_like(score) if made is None else made.numpy()

    return ScoreMod(value, slope)


_written = WeakIdKeyDictionary()


def mask_of(block_mask: Any, q_shape: Sequence[int], k_shape: Sequence[int]) -> Mask | None:
    """A qkv.Mask of what flex_attention takes: None, a Mask, or PyTorch's BlockMask, for query [B, H, L, E], key [B, Hkv, S,
    E].

    What was written out is kept while nothing changes that mask_mod depends on (PyTorch counts changes of tensors; not those through
    .data or .numpy()); where that cannot be seen it is written out in every call. Of a BlockMask, blocks that are listed count, full ones
    without asking mask_mod, as PyTorch's compiled kernels do.
    """
    if block_mask is None or isinstance(block_mask, Mask):
        return block_mask
    lengths = getattr(block_mask, "seq_lengths", None)
    if lengths is None or not callable(getattr(block_mask, "mask_mod", None)):
        raise TypeError(
            "[flex_attention] block_mask must be a qkv.Mask, a BlockMask of torch.nn.attention.flex_attention or None: got "
            f"{type(block_mask).__name__}"
        )
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    if tuple(lengths) != (q_shape[2], k_shape[2]) or batch not in (1, q_shape[0]) or heads not in (1, q_shape[1]):
        raise ArgumentError(
            f"[flex_attention] block_mask was made for B {batch}, H {heads}, lengths {tuple(lengths)}: got B {q_shape[0]}, H "
            f"{q_shape[1]}, lengths ({q_shape[2]}, {k_shape[2]}); make one of that size"
        )
    blocks = tuple(getattr(block_mask, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"))
    try:
        of = [tuple(lengths), *(one for x in (block_mask.mask_mod, *blocks) for one in _state(x, set()))]
    except LookupError:
        return Mask.keep(_written_out(block_mask, batch, heads, *lengths))
    held = _written.get(block_mask)
    if held is None or held[0] != of:
        held = _written[block_mask] = (of, Mask.keep(_written_out(block_mask, batch, heads, *lengths)))
    return held[1]


@dataclass(eq=False)
class _Same:
    """Equal where it is the same object, a tensor of the same version."""

    thing: Any
    version: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing and self.version == other.version


#: Modules and classes of these do not change.
_FIXED = {"torch", "numpy", *sys.stdlib_module_names}
#: By these a function reads what its code does not name.
_UNSEEN = {"globals", "locals", "vars", "getattr", "eval", "exec", "__dict__", "__globals__"}


def _state(x: Any, seen: set[int], of: CodeType | None = None) -> Iterator[Any]:
    """All that the answer of a function depends on: what it captures, its defaults and attributes, what it names (of modules, what the code
    `of` names in them), and those of the functions among them, each once. LookupError where that cannot be seen."""
    if isinstance(x, Tensor):
        if x.is_inference():
            raise LookupError
        yield _Same(x, x._version)
    elif x is None or isinstance(x, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        yield (type(x), repr(x))
    elif isinstance(x, BuiltinFunctionType) or (isinstance(x, type) and x.__module__.partition(".")[0] in _FIXED):
        yield _Same(x)
    elif id(x) in seen:
        yield _Same(x)
    elif isinstance(x, (tuple, list)):
        seen.add(id(x))
        yield len(x)
        for one in x:
            yield from _state(one, seen, of)
    elif isinstance(x, ModuleType):
        yield _Same(x)
        if x.__name__.partition(".")[0] not in _FIXED and of is not None:
            for name in _names(of):
                yield from _state(getattr(x, name, None), seen, of)
    elif isinstance(x, FunctionType):
        seen.add(id(x))
        yield from (_Same(x), _Same(x.__code__))
        inside = [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        for cell in x.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                inside.append(cell.cell_contents)
        if not (x.__module__ or "").startswith("torch."):
            names = _names(x.__code__)
            if not _UNSEEN.isdisjoint(names):
                raise LookupError
            inside += [*vars(x).values(), *(x.__globals__[name] for name in names if name in x.__globals__)]
        for one in inside:
            yield from _state(one, seen, x.__code__)
    else:
        raise LookupError


def _names(code: CodeType) -> list[str]:
    return [*code.co_names, *(name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one))]


def _written_out(block_mask: Any, batch: int, heads: int, q_len: int, kv_len: int) -> Tensor:
    """bool [batch, heads, q_len, kv_len]."""
    from torch.nn.attention.flex_attention import create_mask

    q_block, kv_block = block_mask.BLOCK_SIZE

    def listed(counts: Tensor | None, indices: Tensor | None) -> Tensor:
        if counts is None or indices is None:
            return torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        columns = indices.shape[-1]
        taken = torch.arange(columns) < counts[..., None]
        blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
        blocks.scatter_(-1, torch.where(taken, indices, columns).long(), True)
        blocks = blocks[..., :columns].repeat_interleave(q_block, -2).repeat_interleave(kv_block, -1)
        return blocks[..., :q_len, :kv_len]

    partial = listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    kept = create_mask(block_mask.mask_mod, batch, heads, q_len, kv_len, device="cpu")
    return (partial & kept) | full
