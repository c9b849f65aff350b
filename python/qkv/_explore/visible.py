"""Which keys a query may see, pair by pair and as an interval, from what attention was given as masks. Not: the masks that qkv
computes with (masks.py); no array of Tq x Tk is made.

A mask remembers how it was made (_recipes.py). Its parts are read from that; a part that cannot be read this way (a function, a map
of blocks) is named, and nothing is guessed in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FAR = 2**40  # beyond every key


@dataclass(frozen=True)
class Place:
    """Of one sequence of a call: its number, how many queries and keys there are, and its head for masks that have one."""

    sequence: int
    q_len: int
    kv_len: int

    def aligned(self, align: str, offsets: Sequence[int] | None = None) -> int:
        """The key at which query 0 stands."""
        if offsets is not None:
            return int(offsets[self.sequence])
        return self.kv_len - self.q_len if align == "bottom_right" else 0

    def own(self, numbers: Any) -> int:
        """A list [B] or [1]: this sequence's number."""
        return int(numbers[self.sequence if len(numbers) > 1 else 0])


@dataclass
class Part:
    """One condition. keep(i, j) on arrays of indices; interval(i) -> first key, key behind the last, where it is one; page: the
    members of the page's formula that mean the same, where there are any."""

    keep: Callable[[np.ndarray, np.ndarray], np.ndarray]
    interval: Callable[[np.ndarray], tuple[Any, Any]] | None = None
    page: dict[str, Any] | None = None
    offset: int | None = None  #: the key at which query 0 stands, where the condition says it
    ids: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)  #: numbers of queries and keys that must agree


def _of_interval(interval: Callable[[np.ndarray], tuple[Any, Any]], page: dict[str, Any], offset: int | None = None) -> Part:
    def keep(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        low, high = interval(i)
        return (j >= low) & (j < high)

    return Part(keep, interval, page, offset)


def causal(place: Place, align: str = "square", *, offsets: Any = None) -> Part:
    offset = place.aligned(align, offsets)
    return _of_interval(lambda i: (0, i + offset + 1), {"causal": True}, offset)


def window(place: Place, left: int, right: int, align: str = "square", *, offsets: Any = None) -> Part:
    offset = place.aligned(align, offsets)

    def interval(i: np.ndarray) -> tuple[Any, Any]:
        return i + offset - (_FAR if left < 0 else left), i + offset + (_FAR if right < 0 else right) + 1

    return _of_interval(interval, {"window": [None if n < 0 else int(n) for n in (left, right)]}, offset)


def sliding(place: Place, n: int, align: str = "square") -> Part:
    return window(place, n - 1, 0, align)


def dilated(place: Place, step: int, align: str = "square") -> Part:
    offset = place.aligned(align)
    return Part(lambda i, j: (j - i - offset) % step == 0, offset=offset)


def chunked(place: Place, size: int, align: str = "square", *, starts: Any = None) -> Part:
    offset, start = place.aligned(align), 0 if starts is None else place.own(starts)

    def interval(i: np.ndarray) -> tuple[Any, Any]:
        first = (i + offset - start) // size * size + start
        return first, first + size

    part = _of_interval(interval, {"chunk": int(size)}, offset)
    part.page = part.page if start == 0 else None
    return part


def key_lengths(place: Place, lengths: Any) -> Part:
    return prefix(place, lengths)


def prefix(place: Place, lengths: Any) -> Part:
    length = place.own(lengths)
    return _of_interval(lambda i: (0 * i, length + 0 * i), {"keys": [0, length]})


def key_starts(place: Place, starts: Any) -> Part:
    start = place.own(starts)
    return _of_interval(lambda i: (start + 0 * i, place.kv_len + 0 * i), {"keys": [start, place.kv_len]})


def first(place: Place, n: int) -> Part:
    return _of_interval(lambda i: (0 * i, n + 0 * i), {"keys": [0, min(int(n), place.kv_len)]})


def query_lengths(place: Place, lengths: Any) -> Part:
    length = place.own(lengths)
    return Part(lambda i, j: (i < length) & (j >= 0))


def global_rows(place: Place, rows: Any) -> Part:
    return Part(lambda i, j: np.isin(i, np.asarray(rows)) & (j >= 0))


def global_columns(place: Place, columns: Any) -> Part:
    return Part(lambda i, j: np.isin(j, np.asarray(columns)) & (i >= 0))


def _of_ids(q_ids: np.ndarray, k_ids: np.ndarray) -> Part:
    def keep(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return (q_ids[i] == k_ids[j]) & (q_ids[i] >= 0)

    # What belongs to nothing is a number of its own on either side.
    return Part(keep, ids=(np.where(q_ids < 0, -1, q_ids), np.where(k_ids < 0, -2, k_ids)), page={})


def documents(place: Place, offsets: Any, k_offsets: Any = None, *, inside: Any = None) -> Part:
    q_offsets, k_offsets = (np.asarray(x, np.int64) for x in (offsets, offsets if k_offsets is None else k_offsets))
    ids = [np.searchsorted(x, np.arange(n), "right") - 1 for x, n in ((q_offsets, place.q_len), (k_offsets, place.kv_len))]
    part = _of_ids(*(np.where(found < len(x) - 1, found, -1) for found, x in zip(ids, (q_offsets, k_offsets))))
    if inside is not None and _flat(inside) != []:
        raise Unreadable("a mask inside of documents")
    return part


def document_ids(place: Place, q_ids: Any, k_ids: Any = None) -> Part:
    both = [np.asarray(x, np.int64) for x in (q_ids, q_ids if k_ids is None else k_ids)]
    return _of_ids(*(x[place.sequence if len(x) > 1 else 0] if x.ndim == 2 else x for x in both))


def dense(place: Place, array: Any, axes: str | None = None, *, wanted: bool = True) -> Part:
    """keep= and drop=: of several heads' masks the first must be all heads'."""
    kept = np.asarray(array)
    if axes is not None:
        shape = dict(zip(axes, kept.shape))
        if "h" in shape:
            raise Unreadable("a mask that differs between heads")
        kept = kept.reshape([shape.get(axis, 1) for axis in "bhqk"])
    while kept.ndim < 4:
        kept = kept[None]
    if kept.shape[1] != 1:
        raise Unreadable("a mask that differs between heads")
    plane = (kept[place.sequence if len(kept) > 1 else 0, 0] != 0) == wanted  # [Tq|1, Tk|1]
    rows, columns = plane.shape
    if rows == 1 and columns > 1:
        live = np.flatnonzero(plane[0])
        if len(live) and len(live) == live[-1] - live[0] + 1:
            low, high = int(live[0]), int(live[-1]) + 1
            return _of_interval(lambda i: (low + 0 * i, high + 0 * i), {"keys": [low, high]})
        ids = np.where(plane[0], 0, -2)
        return Part(lambda i, j: plane[0, j] & (i >= 0), ids=(np.zeros(place.q_len, np.int64), ids), page={})
    return Part(lambda i, j: plane[i if rows > 1 else 0, j if columns > 1 else 0])


def drop(place: Place, array: Any, axes: str | None = None) -> Part:
    return dense(place, array, axes, wanted=False)


_LEAVES: dict[str, Callable[..., Part]] = {
    f.__name__: f
    for f in (causal, window, sliding, dilated, chunked, key_lengths, prefix, key_starts, first, query_lengths, global_rows,
              global_columns, documents, document_ids, drop)
} | {"keep": dense}  # fmt: skip


class Unreadable(Exception):
    """Names a part of a mask that is no condition on two positions."""


def _flat(mask: Any) -> list[Any]:
    """The masks whose intersection it is."""
    recipe = mask._recipe
    if recipe is None:
        raise Unreadable("a mask of which only its kernel is known")
    name, arguments, _ = recipe
    if name == "_everything":
        return []
    return [mask] if name != "_both" else [leaf for side in arguments for leaf in _flat(side)]


def _read(mask: Any, place: Place) -> Part:
    name, arguments, options = mask._recipe
    if name == "_any":
        return _either([_together(side, place) for side in arguments])
    if name not in _LEAVES:
        raise Unreadable(f"Mask.{name}")
    return _LEAVES[name](place, *arguments, **options)


def _together(mask: Any, place: Place) -> Part:
    parts = [_read(one, place) for one in _flat(mask)]
    if len(parts) == 1:
        return parts[0]
    return Part(lambda i, j: np.logical_and.reduce([part.keep(i, j) for part in parts] or [(i >= 0) & (j >= 0)]))


def _either(sides: list[Part]) -> Part:
    pages = [side.page or {} for side in sides]
    joined = Part(lambda i, j: sides[0].keep(i, j) | sides[1].keep(i, j))
    joined.offset = next((side.offset for side in sides if side.offset is not None), None)
    for here, other in ((0, 1), (1, 0)):  # the prefix language model
        keys = pages[other].get("keys")
        if pages[here] == {"causal": True} and keys and keys[0] == 0:
            joined.page = {"causal": True, "prefix": keys[1]}
    return joined


def _aligns(leaves: list[Any]) -> list[Any]:
    return [x for leaf in leaves for x in (*leaf._recipe[1], *leaf._recipe[2].values()) if isinstance(x, str)]


def parts_of(place: Place, mask: Any = None, causal_align: bool | str = False, keep: Any = None) -> list[Part]:
    """Every condition of a call, from qkv.attention's arguments. Raises Unreadable."""
    leaves = [] if mask is None else _flat(mask)
    if any(leaf._recipe[0] == "key_lengths" for leaf in leaves) and "bottom_right" in (causal_align, *_aligns(leaves)):
        raise Unreadable("a diagonal that ends at the length of each sequence")
    parts = [_read(one, place) for one in leaves]
    if causal_align:
        parts.append(causal(place, "square" if causal_align is True else causal_align))
    if keep is not None:
        parts.append(dense(place, keep))
    return parts
