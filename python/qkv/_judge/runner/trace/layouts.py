"""How an array can hold another one: its axes in another order, grouped, cut at a head, a row or a tile.

Boundaries between the axes of a shape must be boundaries of the named axes: a view that mixes two of them is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

#: Axes of which one index, or for the last two a range, may be all that there is.
_CUT, _TILED = "bgrijp", "ij"
_MOST = 400


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
        shape = array.shape
        starts = [range(shape[axis] - size + 1) for axis, size in self.tiles.items()]
        found = []
        for index in itertools.product(*(range(shape[axis]) for axis in self.rest), *starts):
            cut: list[slice | int] = [slice(None)] * array.ndim
            for axis, at in zip(self.rest, index):
                cut[axis] = slice(at, at + 1)
            for (axis, size), at in zip(self.tiles.items(), index[len(self.rest) :]):
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
