"""Code that takes no batch: it is called once for each sequence and head, or with both in one axis, and the outputs are stacked.

Not: when that is so (first_calls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .frameworks import is_array, is_numbers, is_tensor, torch_of
from .slots import Tensors

_SLICED = ("q", "k", "v", "x", "memory", "dout", "mask", "weights", "out", "lse")


class Slices(NamedTuple):
    """`axes`: how many leading axes are gone through; 0: batch and heads become one axis."""

    axes: int
    takes: str
    lists: bool = False  # nested lists in place of arrays
    query: bool = False  # one query after the other, without an axis
    columns: bool = False  # tokens are columns
    token: bool = False  # one token after the other, without an axis; a cache stays whole
    swapped: bool = False  # [B, T, H, d], whole
    names: tuple[str, ...] = _SLICED
    heads: dict[str, int] | None = None  # one head after the other, without an axis: where it is

    @property
    def note(self) -> str:
        if self.heads:
            return f"called once for each head: it takes {self.takes}"
        if self.query:
            return f"called once for each sequence and query: it takes {self.takes}"
        if self.swapped:
            return f"called with heads behind tokens: it takes {self.takes}"
        if self.token:
            return f"called once for each token: it takes {self.takes}"
        if self.axes == 0:
            return f"called with the batch and the heads in one axis: it takes {self.takes}"
        return f"called once for each sequence{' and head' if self.axes == 2 else ''}: it takes {self.takes}"

    def call(self, function: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
        """What the whole call would return; a mask must be [B, H, Tq, Tk], or [B, Tq, Tk] where x is sliced."""
        sliced = {name: values[name] for name in self.names if name in values and is_array(values[name])}
        if self.token:
            raw = function({**values, "x": values["x"][:, 0]})
            return (raw[0][:, None], *raw[1:]) if isinstance(raw, tuple) else raw[:, None]
        if self.swapped:
            raw = function({**values, **{name: value.swapaxes(1, 2) for name, value in sliced.items() if name != "mask"}})
            return (raw[0].swapaxes(1, 2), *raw[1:]) if isinstance(raw, tuple) else raw.swapaxes(1, 2)
        if self.query:
            indices = list(np.ndindex(sliced["q"].shape[0], sliced["q"].shape[2]))
            raws = [function({**values, "q": sliced["q"][b, :, t], "k": sliced["k"][b], "v": sliced["v"][b]}) for b, t in indices]
            shape = (sliced["q"].shape[0], sliced["q"].shape[2])
            return _rebuilt(raws, lambda parts: _stacked(parts, shape).swapaxes(1, 2))
        if self.heads:
            cut = {name: (value, (slice(None),) * self.heads[name]) for name, value in sliced.items()}
            raws = [function({**values, **{name: value[(*axes, h)] for name, (value, axes) in cut.items()}}) for h in range(sliced["q"].shape[1])]
            return _rebuilt(raws, lambda parts: _stacked(parts, (len(raws),)).swapaxes(0, 1))
        if self.columns:
            row, function = function, lambda given: _turned(row({name: _turned(value) for name, value in given.items()}))
        if self.lists:
            person, function = function, lambda given: person({name: _listed(value) for name, value in given.items()})
        lead = tuple(next(value for name, value in sliced.items() if name != "mask").shape[: self.axes or 2])
        if self.axes == 0:
            joined = {name: value.reshape(-1, *value.shape[2:]) for name, value in sliced.items()}
            return _rebuilt([function({**values, **joined})], lambda parts: parts[0].reshape(*lead, *parts[0].shape[1:]))
        raws = [function({**values, **{name: value[index] for name, value in sliced.items()}}) for index in np.ndindex(*lead)]
        return _rebuilt(raws, lambda parts: _stacked(parts, lead))

    @property
    def mask_shape(self) -> str:
        """"": any."""
        if self.swapped:
            return ""
        return "[B, L, L]" if self.axes == 1 else "[B, H, L, L]"


def choices(tensors: Tensors, cache: bool = False) -> list[Slices]:
    """The ways to call with fewer axes than the contract's, `cache`: of a call with one; none for inputs that cannot be cut."""
    if "q" in tensors and "x" not in tensors:
        query = [Slices(2, "q [H, d], k [H, S, d]", query=True)] if "dout" not in tensors else []
        return [Slices(2, "[T, d]"), Slices(0, "[B*H, T, d]"), Slices(2, "[T, d] as lists", True), *query]
    x = tensors.get("x")
    if cache:
        return [Slices(1, "[B, E]", token=True)]
    if x is None or "dout" in tensors or "q" in tensors:  # gradients of parameters are sums over the batch
        return []
    rows = [Slices(1, "[L, E]"), Slices(1, "[L, E] as lists", True), Slices(1, "[E, L]", columns=True)]
    return rows if x.ndim == 3 else [Slices(2, "[T, d]"), Slices(0, "[B*H, T, d]")]


def _turned(value: Any) -> Any:
    return value.swapaxes(-1, -2) if is_array(value) and value.ndim == 2 else value


def as_arrays(raw: Any) -> Any:
    """What was returned, lists of numbers as arrays."""
    return _rebuilt([raw], lambda parts: parts[0])


def choices_of_part(axes: dict[str, list[str]], answers: list[str]) -> list[Slices]:
    """The same of a part's tensors {name: axes}, where its answers have the batch too."""
    cut = {name: one for name, one in axes.items() if one[0] == "B"}
    if not cut or not {"out", "m", "l", "dx"} >= {*answers}:
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
    if isinstance(first, (tuple, list)):
        return tuple(_rebuilt(list(parts), join) for parts in zip(*raws))
    if isinstance(first, dict):
        return {name: _rebuilt([raw[name] for raw in raws], join) for name in first}
    return first
