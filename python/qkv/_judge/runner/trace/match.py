"""An array as the textbook has it: one of its stages, up to the order and grouping of axes, up to a factor where that is free;
logits, up to what a softmax cannot tell; exponentials, up to a factor of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .layouts import Layout, layouts
from .record import Event
from .stages import INDICES, Softmax, Stage

_FEWEST = 3  # numbers that say what an array is
_FREEDOM = 4  # numbers of rows, beyond one for each row, that say what rows are up to a constant


class Match(NamedTuple):
    """`factor` of the textbook's numbers; `last`: the named axis that ends the array; `hidden`: what a mask hides is."""

    stage: str
    factor: float = 1.0
    last: str = ""
    hidden: bool = True
    order: str = ""


def _tame(value: np.ndarray) -> np.ndarray:
    return np.nan_to_num(value.astype(np.float64), nan=1e299, posinf=1e300, neginf=-1e300)


class Matcher:
    def __init__(self, stages: list[Stage], softmaxes: list[Softmax], tiled: bool = True) -> None:
        self.stages, self.softmaxes, self.tiled = stages, softmaxes, tiled
        self.exact = any(stage.name == "sink" for stage in stages)  # a sink tells what a softmax alone cannot
        self._plain: dict[Any, list[tuple[Stage, Layout, np.ndarray]]] = {}
        self._rows: dict[Any, list[tuple[str, list[int], np.ndarray, np.ndarray]]] = {}

    def constant(self, event: Event) -> str:
        """The stage that an array is that no data made: angles of positions, indices; empty for none."""
        found = event.value.size >= _FEWEST and self._stage(event.value.squeeze(), event.tolerance)
        return found.stage if found and (event.floating or found.stage in (*INDICES, "positions")) else ""

    def find(self, event: Event) -> Match | None:
        """The stage nearest to the input that the array is."""
        value = event.value.squeeze()
        if value.size == 1 and event.floating and any((np.abs(one.value - value) < 1e-9).any() for one in self.stages if one.name == "loss"):
            return Match("loss")
        if value.size < _FEWEST or value.ndim > 6 or value.size > 1 << 16:
            return None
        return self._stage(value, event.tolerance) or (self._softmax(value, event.tolerance) if value.dtype != bool else None)

    def _stage(self, value: np.ndarray, tolerance: float) -> Match | None:
        flat = _tame(value).ravel()
        top = np.abs(flat).max()
        for stage, layout, rows in self._candidates(value.shape):
            if stage.free:
                if top > 1e200 or top == 0:
                    continue
                pivot = np.abs(rows).argmax(1)
                factor = flat[pivot] / rows[np.arange(len(rows)), pivot]
                near = np.abs(flat[:2] - factor[:, None] * rows[:, :2]).max(1) <= tolerance * top
                hit = next((n for n in np.flatnonzero(near & (factor > 0)) if np.abs(flat - factor[n] * rows[n]).max() <= tolerance * top), None)
            else:
                factor = np.ones(len(rows))
                room = tolerance * max(np.abs(stage.value[np.isfinite(stage.value)]).max(initial=0), 1e-30)
                near = np.abs(flat[:2] - rows[:, :2]).max(1) <= room
                hit = next((n for n in np.flatnonzero(near) if np.abs(flat - rows[n]).max() <= room), None)
            if hit is not None and (not stage.free or value.size > 3):
                order = "".join(stage.axes[a] for a in layout.order)
                return Match(stage.name, float(factor[hit]), order[-1:], True, order)
        return None

    def _candidates(self, shape: tuple[int, ...]) -> list[tuple[Stage, Layout, np.ndarray]]:
        if shape not in self._plain:
            self._plain[shape] = [
                (stage, layout, _tame(layout.pieces(stage.value)).reshape(-1, int(np.prod(shape))))
                for stage in self.stages
                if stage.name != "loss" and stage.value.size >= np.prod(shape)
                for layout in layouts(shape, stage.value.shape, stage.axes)
                if self.tiled or not (layout.tiles or {stage.axes[a] for a in layout.rest if stage.value.shape[a] > 1} & {"i", "j"})
            ]
        return self._plain[shape]

    def _softmax(self, value: np.ndarray, tolerance: float) -> Match | None:
        for order, sizes, logits, visible in self._row_candidates(value.shape):
            rows = np.moveaxis(value.reshape(sizes), order.index("j"), -1)
            rows = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
            found = _as_logits(rows, logits, visible, tolerance)
            if self.exact and found and np.abs(np.where(visible, rows - logits, 0)).max((1, 2)).min() > tolerance * np.abs(logits).max():
                continue
            found = found if found or self.exact else _as_exp(rows, logits, visible, tolerance)
            if found is not None:
                stage, factor, hidden = found
                return Match(stage, factor, order[-1:], hidden, order)
        return None

    def _row_candidates(self, shape: tuple[int, ...]) -> list[tuple[str, list[int], np.ndarray, np.ndarray]]:
        if shape in self._rows:
            return self._rows[shape]
        found = self._rows[shape] = []
        for logits, visible, weights, axes, _ in self.softmaxes:
            for layout in layouts(shape, weights.shape, axes) if weights.size >= np.prod(shape) else []:
                order = "".join(axes[a] for a in layout.order)
                if "j" in order and (self.tiled or not layout.tiles):
                    at = order.index("j") + 1

                    def rows(array: np.ndarray, layout: Layout = layout, at: int = at) -> np.ndarray:
                        pieces = np.moveaxis(layout.pieces(array), at, -1)
                        return pieces.reshape(len(pieces), -1, pieces.shape[-1])

                    sizes = [layout.tiles.get(a, weights.shape[a]) for a in layout.order]
                    found.append((order, sizes, rows(logits), rows(visible)))
        return found


def _as_logits(rows: np.ndarray, logits: np.ndarray, visible: np.ndarray, tolerance: float) -> tuple[str, float, bool] | None:
    """[R, n] against pieces [N, R, n]: the same softmax, after a factor."""
    with np.errstate(all="ignore"):
        count = visible.sum(-1, keepdims=True)
        mine = np.where(visible, rows, 0.0)
        if not np.isfinite(mine).all(axis=(1, 2)).any():
            return None
        mine = np.where(visible, mine - mine.sum(-1, keepdims=True) / count, 0)
        book = np.where(visible, logits, 0.0)
        book = np.where(visible, book - book.sum(-1, keepdims=True) / count, 0)
        square = (book * book).sum((1, 2))
        factor = (mine * book).sum((1, 2)) / square
        top = np.abs(mine).max((1, 2))
        fits = (np.abs(mine - factor[:, None, None] * book).max((1, 2)) <= tolerance * top) & (factor > 0) & (square > 0)
        for n in np.flatnonzero(fits & (np.maximum(count - 1, 0).sum((1, 2)) >= _FREEDOM)):
            whole = rows - factor[n] * logits[n]
            if np.isfinite(rows).all() and np.abs(whole - whole[:, :1]).max() <= tolerance * np.abs(rows).max():
                return "logits", float(factor[n]), bool(visible[n].all())
            highest = np.where(visible[n], rows, -np.inf).max(-1, keepdims=True)
            below = np.where(visible[n] | ~np.isfinite(highest), -np.inf, (rows - highest) / factor[n])
            if below.max() < -30:
                return "logits", float(factor[n]), True
    return None


def _as_exp(rows: np.ndarray, logits: np.ndarray, visible: np.ndarray, tolerance: float) -> tuple[str, float, bool] | None:
    """The same after division by the sum of a row."""
    if not np.isfinite(rows).all() or (rows < 0).any():
        return None
    with np.errstate(all="ignore"):
        mine = rows / rows.sum(-1, keepdims=True)
        for hidden in (True, False):
            seen = visible if hidden else np.ones_like(visible)
            top = np.where(seen, logits, -np.inf).max(-1, keepdims=True)
            book = np.where(seen, np.exp(logits - np.where(np.isfinite(top), top, 0)), 0)
            book = book / book.sum(-1, keepdims=True)
            far = np.where(seen.any(-1, keepdims=True), np.abs(mine - book), 0)
            hit = (np.nan_to_num(far, nan=1.0).max((1, 2)) <= tolerance) & (np.maximum(seen.sum(-1) - 1, 0).sum(-1) >= _FREEDOM)
            if hit.any():
                return "exp", 1.0, hidden
    return None
