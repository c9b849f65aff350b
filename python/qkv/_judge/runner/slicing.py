"""Code that takes no batch: it is called once for each sequence and head, or with both in one axis, and the outputs are stacked.

Not: when that is so (first_calls.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .frameworks import is_array, is_numbers, is_tensor, torch_of
from .slots import Tensors

_SLICED = ("q", "k", "v", "x", "memory", "dout", "mask", "weights", "out", "lse")
_HEADS = {name: 1 for name in _SLICED if name != "mask"}


#: Each is a part of a note.
QUERY, ROW, TOKEN = "once for each sequence and query", "once for each sequence, head and query", "once for each token"
SWAPPED, TIME_FIRST, ROWS = "with heads behind tokens", "with tokens before the batch", "with all tokens as rows"
FULL = "with as many sequences as it was made for"
#: Sequences that buffers of a cache are made for.
FULL_BATCH = 8
#: A docstring that says so of x.
TOKENS_FIRST = re.compile(r"\bx\b[^(\[]{0,20}[(\[](?:t|l|s|seq\w*|len\w*|time|tokens), (?:b|n|batch\w*|bsz),", re.IGNORECASE)


class Slices(NamedTuple):
    """`axes`: how many leading axes are gone through."""

    axes: int
    takes: str
    lists: bool = False  # nested lists in place of arrays
    columns: bool = False  # tokens are columns
    how: str = ""  # another way than one call for each of these axes
    names: tuple[str, ...] = _SLICED
    heads: dict[str, int] | None = None  # one head after the other, without an axis: where it is

    @property
    def note(self) -> str:
        how = "once for each head" if self.heads else self.how or "once for each sequence" + " and head" * (self.axes == 2)
        return f"called {how}: it takes {self.takes}"

    def call(self, function: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
        """What the whole call would return; a mask must be [B, H, Tq, Tk], or [B, Tq, Tk] where x is sliced."""
        sliced = {name: values[name] for name in self.names if name in values and is_array(values[name])}
        if self.how == TOKEN:
            return _changed(function({**values, "x": values["x"][:, 0]}), lambda out: out[:, None])
        if self.how == FULL:  # zeros beside the sequences, which the buffers of a cache have room for
            x, count = values["x"], len(values["x"])
            raw = function({**values, "x": _stacked([x[n] if n < count else 0 * x[0] for n in range(FULL_BATCH)], (FULL_BATCH,))})
            return _changed(raw, lambda out: out[:count])
        if self.how == ROWS:
            lead = tuple(sliced["x"].shape[:-1])
            raw = function({**values, **{name: value.reshape(-1, value.shape[-1]) for name, value in sliced.items()}})
            own = math.prod(lead)
            return _rebuilt([raw], lambda parts: parts[0].reshape(*lead, -1) if parts[0].ndim == 2 and len(parts[0]) == own else parts[0])
        if self.how in (SWAPPED, TIME_FIRST):
            two = self.axes - 1, self.axes
            raw = function({**values, **{name: value.swapaxes(*two) for name, value in sliced.items() if name != "mask"}})
            return _changed(raw, lambda out: out.swapaxes(*two))
        if self.how == QUERY:
            indices = list(np.ndindex(sliced["q"].shape[0], sliced["q"].shape[2]))
            raws = [function({**values, "q": sliced["q"][b, :, t], "k": sliced["k"][b], "v": sliced["v"][b]}) for b, t in indices]
            shape = (sliced["q"].shape[0], sliced["q"].shape[2])
            return _rebuilt(raws, lambda parts: _stacked(parts, shape).swapaxes(1, 2))
        if self.how == ROW:
            shape = tuple(sliced["q"].shape[:3])
            q, k, v = (sliced[name] for name in ("q", "k", "v"))
            raws = [function({**values, "q": q[at], "k": k[at[:2]], "v": v[at[:2]]}) for at in np.ndindex(*shape)]
            return _rebuilt(raws, lambda parts: _stacked(parts, shape))
        if self.heads:
            cut = {name: (sliced[name], (slice(None),) * axis) for name, axis in self.heads.items() if name in sliced}
            first, axes = next(iter(cut.values()))
            raws = [function({**values, **{name: value[(*axes, h)] for name, (value, axes) in cut.items()}}) for h in range(first.shape[len(axes)])]
            return _rebuilt(raws, lambda parts: _stacked(parts, (len(raws),)).swapaxes(0, 1))
        if self.columns:
            row, function = function, lambda given: _turned(row({name: _turned(value) for name, value in given.items()}))
        if self.lists:
            person, function = function, lambda given: person({name: _listed(value) for name, value in given.items()})
        lead = tuple(next(value for name, value in sliced.items() if name != "mask").shape[: self.axes])
        raws = [function({**values, **{name: value[index] for name, value in sliced.items()}}) for index in np.ndindex(*lead)]
        return _rebuilt(raws, lambda parts: _stacked(parts, lead))

    def takes_mask(self, shape: str) -> bool:
        """Whether a mask of this shape can be given."""
        if self.heads:
            return shape not in ("[B, 1, L, L]", "[B, H, L, L]", "[B, 1, 1, L]", "[B*H, L, L]")
        return self.how in (SWAPPED, TIME_FIRST) or shape == ("[B, L, L]" if self.axes == 1 else "[B, H, L, L]")


def choices(tensors: Tensors, cache: bool = False) -> list[Slices]:
    """The ways to call with fewer axes than the contract's, `cache`: of a call with one; none for inputs that cannot be cut."""
    if "q" in tensors and "x" not in tensors:
        query = [] if "dout" in tensors else [Slices(2, "q [H, d], k [H, S, d]", how=QUERY), Slices(2, "q [d], k [S, d]", how=ROW)]
        return [Slices(2, "[T, d]"), Slices(2, "[B, T, d]", heads=_HEADS), Slices(2, "[T, d] as lists", True), *query]
    x = tensors.get("x")
    if cache:
        return [Slices(1, "[B, E]", how=TOKEN), Slices(1, f"batches of {FULL_BATCH}", how=FULL)]
    if x is None or "dout" in tensors or "q" in tensors:  # gradients of parameters are sums over the batch
        return []
    rows = [Slices(1, "[L, E]"), Slices(1, "[L, E] as lists", True), Slices(1, "[E, L]", columns=True)]
    if x.ndim == 3:
        return rows
    return [Slices(2, "[T, d]"), Slices(2, "[B, T, d]", heads=_HEADS), Slices(2, "[B, T, H, d]", how=SWAPPED)]


def _changed(raw: Any, change: Callable[[Any], Any]) -> Any:
    """What was returned, its first part changed."""
    return (change(raw[0]), *raw[1:]) if isinstance(raw, tuple) else change(raw)


def _turned(value: Any) -> Any:
    return value.swapaxes(-1, -2) if is_array(value) and value.ndim == 2 else value


def as_arrays(raw: Any) -> Any:
    """What was returned, lists of numbers as arrays."""
    return _rebuilt([raw], lambda parts: parts[0])


def choices_of_part(axes: dict[str, list[str]], answers: list[str]) -> list[Slices]:
    """The same of a part's tensors {name: axes}, where its answers have the batch too."""
    cut = {name: one for name, one in axes.items() if one[0] == "B"}
    if not cut or not {"out", "m", "l", "dx", "dq", "dk", "dv"} >= {*answers}:
        return []
    heads = {name: one.index("H") for name, one in axes.items() if "H" in one}
    paged = [Slices(1, "q [B, d]", names=tuple(heads), heads=heads)] if "block_table" in axes else []
    longest, least = max(cut.values(), key=len), min(len(one) for one in cut.values())
    return paged + [
        Slices(count, f"[{', '.join(longest[count:])}]{' as lists' if lists else ''}", lists, names=tuple(cut))
        for count in range(1, least + (len(longest) > least))
        for lists in (False, True)
    ]


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _stacked(parts: list[Any], lead: tuple[int, ...]) -> Any:
    whole = torch_of().stack(parts) if is_tensor(parts[0]) else np.stack(parts)
    return whole.reshape(*lead, *whole.shape[1:])


def _rebuilt(raws: list[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Arrays joined, wherever they lie in what was returned."""
    number = (int, float, np.generic)
    if is_numbers(raws[0]) or isinstance(raws[0], number) or (isinstance(raws[0], list) and all(isinstance(one, number) for one in raws[0])):
        raws = [np.array(raw, dtype=float) for raw in raws]
    first = raws[0]
    if is_array(first):
        return join(raws)
    if isinstance(first, dict):
        return {key: _rebuilt([raw[key] for raw in raws], join) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(_rebuilt(list(parts), join) for parts in zip(*raws))
    return first
