"""A loop over tiles of keys that leaves rows out, or reads some twice."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from .instrument import innermost


def wrong_tiles(search: Any) -> tuple[int, int] | None:
    """(the line that says which rows are read, the event of a tile), of an algorithm in tiles."""
    events, rows = search.events, {}
    tiles = [i for i in search.needed if events[i].op == "getitem" and events[i].parents] if search.book.tiled else []
    for i in tiles:
        whole = events[events[i].parents[0]].value
        read = _rows_of(events[i].value, whole)
        if read is not None:
            rows.setdefault((events[i].node, events[i].call), np.zeros(whole.shape[-2]))[read] += 1
    unmasked = all(one.visible.all() for one in search.book.softmaxes)
    for i in tiles:
        counts = rows.get((events[i].node, events[i].call), np.ones(1))
        if counts.min() == 0 or (unmasked and counts.max() > counts.min()):
            return _loop(search.tree, events[i].line), i
    return None


def _rows_of(tile: np.ndarray, whole: np.ndarray) -> slice | None:
    """Which rows of an array are a tile of it."""
    if tile.ndim < 2 or tile.ndim != whole.ndim or tile.shape[-1] != whole.shape[-1] or tile.shape[:-2] != whole.shape[:-2]:
        return None
    size = tile.shape[-2]
    starts = range(whole.shape[-2] - size + 1) if size else ()
    return next((slice(at, at + size) for at in starts if np.array_equal(whole[..., at : at + size, :], tile)), None)


def _loop(tree: ast.AST, line: int) -> int:
    """The line of the loop around a line, or of the variable that it goes through."""
    loop = innermost(tree, ast.For, line)
    if loop is None or not isinstance(loop.iter, ast.Name):
        return loop.lineno if loop else line
    assigned = (one for one in ast.walk(tree) if isinstance(one, ast.Assign) and one.lineno < loop.lineno)
    named = (one.lineno for one in assigned for target in one.targets if isinstance(target, ast.Name) and target.id == loop.iter.id)
    return max(named, default=loop.lineno)
