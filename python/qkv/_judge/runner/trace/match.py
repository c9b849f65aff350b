"""An array as the textbook has it: one of its stages, up to the order and grouping of axes (no view mixes two of them), cut at a head,
a row or a tile, up to a factor where that is free; logits, up to what a softmax cannot tell; exponentials, up to a factor of a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .record import Event
from .stages import INDICES, Softmax, Stage

#: Axes of which one index, or for the last two a range, may be all that there is.
_CUT, _TILED = "bgrijp", "ij"
_MOST = 400
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
        self._sizes = [(one, max(np.abs(one.value[np.isfinite(one.value)]).max(initial=0), 1e-30)) for one in stages]
        self._plain: dict[Any, list[tuple[Stage, Layout, np.ndarray, float]]] = {}
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
        for stage, layout, rows, largest in self._candidates(value.shape):
            factor, room = np.ones(1), tolerance * largest
            if stage.free:
                if top > 1e200 or top == 0:
                    continue
                pivot = np.abs(rows).argmax(1)
                factor, room = flat[pivot] / rows[np.arange(len(rows)), pivot], tolerance * top
            near = (np.abs(flat[:2] - factor[:, None] * rows[:, :2]) <= room).all(1) & (factor > 0)
            factor = np.broadcast_to(factor, near.shape)
            hit = next((n for n in near.nonzero()[0] if np.abs(flat - factor[n] * rows[n]).max() <= room), None)
            if hit is not None and (not stage.free or value.size > 3):
                order = "".join(stage.axes[a] for a in layout.order)
                return Match(stage.name, float(factor[hit]), order[-1:], True, order)
        return None

    def _candidates(self, shape: tuple[int, ...]) -> list[tuple[Stage, Layout, np.ndarray, float]]:
        if shape not in self._plain:
            self._plain[shape] = [
                (stage, layout, _tame(layout.pieces(stage.value)).reshape(-1, int(np.prod(shape))), largest)
                for stage, largest in self._sizes
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
        book = np.where(visible, logits, 0.0)
        mine, book = (np.where(visible, one - one.sum(-1, keepdims=True) / count, 0) for one in (mine, book))
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


class Layout(NamedTuple):
    """`groups`: for each axis of the shape, the named axes in it; `tiles`: how much of an axis; `rest`: axes at one index."""

    groups: tuple[tuple[int, ...], ...]
    tiles: dict[int, int]
    rest: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        return [axis for group in self.groups for axis in group]

    def pieces(self, array: np.ndarray) -> np.ndarray:
        """[N, ...]: every piece of the array that has this layout, in its order of axes."""
        sizes, found = {**dict.fromkeys(self.rest, 1), **self.tiles}, []
        for starts in itertools.product(*(range(array.shape[axis] - size + 1) for axis, size in sizes.items())):
            cut = [slice(None)] * array.ndim
            for (axis, size), at in zip(sizes.items(), starts):
                cut[axis] = slice(at, at + size)
            piece = array[tuple(cut)].transpose([*self.rest, *self.order])
            found.append(piece.reshape(piece.shape[len(self.rest) :]))
        return np.stack(found)


def layouts(shape: tuple[int, ...], sizes: tuple[int, ...], names: str) -> list[Layout]:
    """Whole ones first; none where most of the array would be left out in too many ways."""
    shape = tuple(size for size in shape if size > 1)
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    found = []
    for groups, tiles in _grouped(shape, axes, sizes, names):
        used = {axis for group in groups for axis in group}
        rest = tuple(axis for axis in range(len(sizes)) if axis not in used)
        if any(sizes[axis] > 1 and names[axis] not in _CUT for axis in rest):
            continue
        ways = math.prod(sizes[axis] for axis in rest) * math.prod(sizes[axis] - size + 1 for axis, size in tiles.items())
        if ways <= _MOST:
            found.append((ways, Layout(groups, tiles, rest)))
    return [layout for _, layout in sorted(found, key=lambda one: one[0])]


def _grouped(
    shape: tuple[int, ...], axes: list[int], sizes: tuple[int, ...], names: str
) -> Iterator[tuple[tuple[tuple[int, ...], ...], dict[int, int]]]:
    if not shape:
        yield (), {}
        return
    choices: list[tuple[tuple[int, ...], dict[int, int]]] = []
    for count in range(1, len(axes) + 1):
        choices += [(one, {}) for one in itertools.permutations(axes, count) if math.prod(sizes[a] for a in one) == shape[0]]
    choices += [((axis,), {axis: shape[0]}) for axis in axes if names[axis] in _TILED and sizes[axis] > shape[0]]
    for group, tiles in choices:
        left = [axis for axis in axes if axis not in group]
        for groups, more in _grouped(shape[1:], left, sizes, names):
            yield (group, *groups), {**tiles, **more}
