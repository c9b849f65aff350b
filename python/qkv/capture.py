"""Captures of attention while it runs. They never change the answer, bit for bit. Nothing of size Tq x Tk is made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _core, _html
from ._arrays import integers

__all__ = ["Capture", "Captured"]


@dataclass(frozen=True)
class Capture:
    """A request for captures: ``qkv.attention(..., weights=Capture(statistics=True))``.

    Statistics are computed on the way; everything more needs the scores a second time, but of the chosen heads only.

    Args:
        heads: query heads, in this order; none: all.
        rows: queries whose whole rows of weights are wanted.
        top_k: how many of the largest weights of every row.
        statistics: entropy, largest weight and the like of every row, always before dropout.
        column_mass: the sum of the weights of every key: its column's.
        map: (rows, columns) of a map summed over blocks.
        of: "weights", "applied" (after dropout), or in backward "gradient": weights times their gradient. In the other direction each
            is an OptionError.
        offsets: [B]: query i stands at key i + offset; none: Tk - Tq.
        positive: of gradients: max(0, weight x gradient). Relevance maps, Chefer 2021 (arXiv:2103.15679) eq. 5.
    """

    heads: Sequence[int] = ()
    rows: Sequence[int] = ()
    top_k: int = 0
    statistics: bool = False
    column_mass: bool = False
    map: tuple[int, int] | None = None
    of: str = "weights"
    offsets: Sequence[int] = ()
    positive: bool = False

    def _make(self, function: str, *, backward: bool = False) -> Any:
        if (self.of == "gradient") is not backward:
            where = 'a Capture with of="gradient"' if backward else 'a Capture of "weights" or "applied"; "gradient" is attention_backward\'s'
            raise _core.OptionError(f"[{function}] weights must be {where}: got of={self.of!r}")
        if self.map is not None and (not isinstance(self.map, (tuple, list)) or len(self.map) != 2):
            raise ValueError(f"[Capture] map must be (rows, columns): got {self.map!r}")
        map_rows, map_columns = self.map or (0, 0)
        flags = {name: getattr(self, name) for name in ("statistics", "column_mass", "positive")}
        flags = {name: bool(x) if isinstance(x, np.bool_) else x for name, x in flags.items()}
        numbers = {name: integers(getattr(self, name), f"[Capture] {name}") for name in ("heads", "rows", "offsets")}
        return _core.Capture(
            **numbers, **flags, top_k=self.top_k, map_rows=map_rows, map_columns=map_columns, of=self.of,
        )  # fmt: skip


@dataclass(frozen=True)
class Captured:
    """Results, NumPy arrays in float64; None where it was not asked for. "heads" in a shape is how many were chosen."""

    rows: np.ndarray | None = field(repr=False)  #: [B, heads, rows, Tk]
    top_weights: np.ndarray | None = field(repr=False)  #: [B, heads, Tq, top_k], the largest first
    top_keys: np.ndarray | None = field(repr=False)  #: [B, heads, Tq, top_k], -1 beyond the keys that may be attended
    map: np.ndarray | None = field(repr=False)  #: [B, heads, map rows, map columns], sums over blocks
    column_mass: np.ndarray | None = field(repr=False)  #: [B, heads, Tk]
    entropy: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], nats
    max_weight: np.ndarray | None = field(repr=False)  #: [B, heads, Tq]
    max_key: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], -1: none
    self_: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], weight of the key at the query's own position
    previous: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], of the key before it
    first: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], of key 0
    distance: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], sum_j w |i + offset - j|
    sink: np.ndarray | None = field(repr=False)  #: [B, heads, Tq], share of the sink

    def __repr__(self) -> str:
        held = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return "Captured(" + ", ".join(f"{n}={list(a.shape)}" for n, a in held.items() if a is not None) + ")"

    def _repr_html_(self) -> str:
        rows = []
        for name in self.__dataclass_fields__:
            array = getattr(self, name)
            if array is not None:
                finite = array[np.isfinite(array)]
                numbers = [float(f(finite)) for f in (np.min, np.mean, np.max)] if finite.size else ["", "", ""]
                rows.append((name.rstrip("_"), list(array.shape), *numbers))
        return _html.table(("captured", "shape", "smallest", "mean", "largest"), rows)
