"""Keyword arguments of attention -> _core.Options, once for forward, backward, weights and plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from ._arrays import boolean, integers, operand, require_numbers
from ._recipes import recorded, reduced
from .masks import Mask

_NUMBERS = frozenset((float, int, type(None)))
_ALIGNS = ("top_left", "bottom_right")
_TABLE_WAYS = "qkv.torch.flex_attention with score_mod=qkv.torch.Relative(table) lets a table learn"


class PositionBias:
    """A bias that depends on the head and on how far the key lies from the query, d = j - i - offset. Its memory is of the
    order of the distances, never Tq x Tk."""

    def __init__(self, core: Any) -> None:
        self._core = core

    __reduce__ = reduced

    def __repr__(self) -> str:
        return f"PositionBias.{self._recipe[0]}(...)"  # type: ignore[attr-defined]

    @classmethod
    @recorded
    def alibi(cls, slopes: Sequence[float] | int, align: str = "square") -> PositionBias:
        """-slopes[h] * abs(d); a number of heads instead of slopes means the usual ones. Press 2022 (arXiv:2108.12409)."""
        values = _core.alibi_slopes(int(slopes)) if isinstance(slopes, (int, np.integer)) else [float(s) for s in slopes]
        return cls(_core.alibi(values, align))

    @classmethod
    @recorded
    def t5(cls, table: Any, *, max_distance: int = 128, bidirectional: bool = True, align: str = "square") -> PositionBias:
        """table[bucket(d), h], table [buckets, H]: Hugging Face's relative_attention_bias.weight. Raffel 2020 (1910.10683)."""
        return cls(_core.t5(operand(table, "table", _TABLE_WAYS), max_distance, bool(bidirectional), align))

    @classmethod
    @recorded
    def relative(cls, table: Any, align: str = "square") -> PositionBias:
        """table[R + clamp(d, -R, R), h], table [2R + 1, H]. Shaw 2018 (1803.02155), on scores."""
        return cls(_core.relative(operand(table, "table", _TABLE_WAYS), align))


def _made(name: str, scores: Any, shape: tuple[int, ...]) -> Any:
    if scores is None:
        raise TypeError(f"[ScoreMod] {name} must return the scores: got None")
    got = np.shape(scores)
    if got != shape and (len(got) > 2 or any(n not in (1, size) for n, size in zip(got[::-1], shape[::-1]))):
        raise ValueError(f"[ScoreMod] {name} must return [queries, keys] = {list(shape)}, as it was given: got {list(got)}")
    return scores


def _blockwise(value: Callable[..., Any], slope: Callable[..., Any] | None) -> Callable[..., np.ndarray]:
    """The callback that _core calls, made of the user's functions: values, then slopes where they are wanted."""

    def block(scores: np.ndarray, wants_slopes: bool, b: int, h: int, first_query: int, first_key: int) -> np.ndarray:
        i = first_query + np.arange(scores.shape[0])[:, None]
        j = first_key + np.arange(scores.shape[1])[None, :]
        results = np.empty((2 if wants_slopes else 1, *scores.shape), scores.dtype)
        if wants_slopes:
            results[1] = _made("slope", slope(scores.copy(), b, h, i, j), scores.shape)  # type: ignore[misc]
        results[0] = _made("value", value(scores, b, h, i, j), scores.shape)
        return results

    return block


@dataclass(frozen=True)
class ScoreMod:
    """A function of scores, after soft cap and bias, before the mask (FlexAttention's score_mod), on blocks of NumPy arrays.

    value(score, b, h, i, j) -> score: score [queries, keys], b and h ints, i [queries, 1], j [1, keys]. slope: likewise,
    d value / d score; without it backward raises. Both are called from the kernels' threads. They must depend on their
    arguments alone, and may be called for pairs that the mask hides. Dong 2024 (arXiv:2412.05496).
    """

    value: Callable[..., Any]
    slope: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name, function in (("value", self.value), ("slope", self.slope)):
            if not callable(function) and not (name == "slope" and function is None):
                raise TypeError(f"[ScoreMod] {name} must be a function (score, b, h, i, j): got {type(function).__name__}")

    @property
    def _core(self) -> Any:  # not kept: it could be neither pickled nor freed with what it refers to
        return _core.score_mod(_blockwise(self.value, self.slope), self.slope is not None)


def _diagonal(causal: bool | str) -> str:
    if isinstance(causal, (bool, np.bool_)):
        return "square"
    if causal in _ALIGNS:
        return causal
    raise ValueError(f'[attention] causal must be False, True, "top_left" or "bottom_right": got {causal!r}')


def require_64_bits(function: str, **numbers: Any) -> None:
    """Raises TypeError unless each is a whole number of 64 bits, as seeds are."""
    for name, n in numbers.items():
        if not (isinstance(n, (int, np.integer)) and 0 <= n < 2**64):
            raise TypeError(f"[{function}] {name} must be a whole number below 2^64 from 0 on: got {n!r}")


def window_of(window: Any, function: str = "attention", name: str = "window") -> tuple[int, int]:
    """(left, right). Raises ValueError for another number of sides, TypeError for numbers that are not whole."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"[{function}] {name} must be (left, right), numbers of other tokens: got {window!r}")
    if not all(isinstance(n, (int, np.integer)) for n in window):
        raise TypeError(f"[{function}] {name} must be two whole numbers: got {window!r}")
    return int(window[0]), int(window[1])


@functools.cache
def _causal(align: str) -> Mask:
    return Mask.causal(align)


def build_mask(
    rank: int,
    *,
    mask: Mask | None = None,
    causal: bool | str = False,
    window: tuple[int, ...] | None = None,
    key_lengths: Any = None,
    keep: Any = None,
    drop: Any = None,
    mask_axes: str | None = None,
) -> Mask | None:
    """The intersection of all masks that are given; None where none is."""
    parts = [] if mask is None else [mask]
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"[attention] mask must be a qkv.Mask: got {type(mask).__name__}; an array goes to keep= or drop=")
    if mask_axes is not None and keep is None and drop is None:
        raise ValueError(f"[attention] mask_axes names the axes of keep or drop: got mask_axes={mask_axes!r} without them")
    align = _diagonal(causal)
    if causal:
        parts.append(_causal(align))
    if window is not None:
        parts.append(Mask.window(*window_of(window), align))
    if key_lengths is not None:
        parts.append(Mask.key_lengths(integers(key_lengths, "[attention] key_lengths")))
    for array, make, name in ((keep, _core.keep, "keep"), (drop, _core.drop, "drop")):
        if array is not None:
            dense = boolean(array, name)
            # q has no batch or head axis: a mask of q's own rank can mean one thing only.
            parts.append(Mask(make(dense, mask_axes, mask_axes is None and rank < 4 and dense.ndim == rank)))
    return functools.reduce(Mask.__and__, parts) if parts else None


def options_of(function: str, rank: int, options: dict[str, Any]) -> Any:
    """build_options of the keyword arguments of `function`, which passes them on. TypeError: one that there is not."""
    unknown = sorted(options.keys() - _known())
    if unknown:
        raise TypeError(f"[{function}] {unknown[0]} is no option: there are {', '.join(sorted(_known()))}")
    return build_options(rank, **options)


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(build_options.__kwdefaults__ or ())


def build_options(
    rank: int,
    *,
    mask: Mask | None = None,
    causal: bool | str = False,
    window: tuple[int, int] | None = None,
    key_lengths: Any = None,
    keep: Any = None,
    drop: Any = None,
    mask_axes: str | None = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    empty_row: str = "zero",
    dropout: float = 0.0,
    seed: int | None = None,
    first_sequence: int = 0,
    sinks: Any = None,
    position_bias: PositionBias | None = None,
    score_mod: ScoreMod | Callable[..., Any] | None = None,
    bits: str = "fast",
) -> Any:
    """_core.Options of the keyword arguments that attention documents; None where all are defaults."""
    if not _NUMBERS.issuperset((type(scale), type(softcap), type(dropout))):
        require_numbers("attention", scale=scale, softcap=softcap, dropout=dropout)
    if seed is not None or first_sequence:
        require_64_bits("attention", seed=seed or 0, first_sequence=first_sequence)
    if dropout and seed is None:
        raise ValueError("[attention] dropout needs a seed: the same seed in attention_backward repeats the same pattern")
    if score_mod is not None and not isinstance(score_mod, ScoreMod):
        if not callable(score_mod):
            raise TypeError(f"[attention] score_mod must be a qkv.ScoreMod or a function: got {type(score_mod).__name__}")
        score_mod = ScoreMod(score_mod)
    if position_bias is not None and not isinstance(position_bias, PositionBias):
        raise TypeError(f"[attention] position_bias must be a qkv.PositionBias: got {type(position_bias).__name__}")
    if bias is not None and getattr(bias, "ndim", 4) != 4 and getattr(bias, "ndim", 4) != rank:
        raise ValueError(f"[attention] bias must have four axes [B|1, H|1, Tq|1, Tk|1]: got {bias.ndim}")
    made = build_mask(
        rank, mask=mask, causal=causal, window=window, key_lengths=key_lengths, keep=keep, drop=drop, mask_axes=mask_axes
    )
    given = {
        "mask": None if made is None else made._core,
        "bias": None if bias is None else operand(bias, "bias"),
        "scale": scale,
        "softcap": softcap or None,
        "empty_row": None if empty_row == "zero" else empty_row,
        "dropout": dropout or None,
        "seed": seed if dropout else None,
        "first_sequence": first_sequence or None,
        "sinks": None if sinks is None else operand(sinks, "sinks"),
        "position_bias": None if position_bias is None else position_bias._core,
        "score_mod": None if score_mod is None else score_mod._core,
        "bits": None if bits == "fast" else bits,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return _core.Options(**given) if given else None
