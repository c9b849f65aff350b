"""How one parameter of a person's holds one or more of the contract's: which letters, which layout. Sets and reads by value.

Contract parameters as canonical blocks, H heads of d: W_q, W_k, W_v [in, head, dim], W_o [head, dim, out], b_q, b_k, b_v
[head, dim], b_o [out]. A slot says in which order a parameter has these axes; q, k, v in one parameter are the axis "part", or
"all" where k and v have fewer heads than q.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Sizes(NamedTuple):
    embed: int
    heads: int
    kv_heads: int
    head_dim: int

    def heads_of(self, letter: str) -> int:
        return self.kv_heads if letter in ("k", "v") else self.heads


def block_shape(letter: str, bias: bool, sizes: Sizes) -> tuple[int, ...]:
    if letter == "o":
        return (sizes.embed,) if bias else (sizes.heads, sizes.head_dim, sizes.embed)
    inner = (sizes.heads_of(letter), sizes.head_dim)
    return inner if bias else (sizes.embed, *inner)


def numbers(letters: tuple, bias: bool, sizes: Sizes) -> int:
    """How many numbers a parameter with these letters has."""
    return sum(math.prod(block_shape(letter, bias, sizes)) for letter in letters)


def blocks(tensors: dict[str, np.ndarray], sizes: Sizes) -> dict[str, np.ndarray]:
    """The parameters of a probe as canonical blocks: {"W_q": [in, head, dim], ...}."""
    found: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        if name[:2] not in ("W_", "b_"):
            continue
        letters = tuple(name[2:])
        widths = [sizes.heads_of(letter) * sizes.head_dim for letter in letters]
        parts = [value] if len(letters) == 1 else np.split(value, np.cumsum(widths)[:-1], axis=-1)
        for letter, part in zip(letters, parts):
            found[name[:2] + letter] = part.reshape(block_shape(letter, name[0] == "b", sizes))
    return found


def unblocked(found: dict[str, np.ndarray], like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Canonical blocks back as a probe has them: [in, out]."""
    out = {}
    for name, value in like.items():
        if name[:2] not in ("W_", "b_"):
            continue
        rows = value.shape[:-1] if len(name) > 3 else ()
        parts = [found[name[:2] + letter] for letter in name[2:]]
        out[name] = (
            parts[0].reshape(value.shape)
            if not rows and len(parts) == 1
            else np.concatenate([part.reshape(*rows, -1) for part in parts], -1)
        )
    return out


class Slot(NamedTuple):
    path: str
    shape: tuple[int, ...]
    letters: tuple
    bias: bool
    axes: tuple[str, ...]
    head: int | None = None

    @property
    def names(self) -> list[str]:
        return [("b_" if self.bias else "W_") + letter for letter in self.letters]

    def _base(self, found: dict[str, np.ndarray]) -> np.ndarray:
        """All letters' blocks in one array with the axes of base_axes()."""
        parts = [found[name] for name in self.names]
        if self.head is not None:
            axis = 0 if self.bias or self.letters == ("o",) else 1
            parts = [np.take(part, [self.head], axis=axis) for part in parts]
        if len(parts) == 1:
            return parts[0]
        if "part" in self.axes:
            return np.stack(parts, axis=0 if self.bias else 1)
        rows = () if self.bias else parts[0].shape[:1]
        return np.concatenate([part.reshape(*rows, -1) for part in parts], -1)

    def value(self, found: dict[str, np.ndarray]) -> np.ndarray:
        """The parameter as the person's object holds it."""
        base = base_axes(self)
        return self._base(found).transpose([base.index(axis) for axis in self.axes]).reshape(self.shape)

    def spread(self, value: np.ndarray, into: dict[str, np.ndarray]) -> None:
        """Adds a gradient of the parameter to the canonical blocks `into`: the inverse of value()."""
        base, template = base_axes(self), self._base(into)
        ordered = value.reshape([template.shape[base.index(axis)] for axis in self.axes])
        array = ordered.transpose([self.axes.index(axis) for axis in base])
        many, edge = len(self.letters) > 1, 0
        for index, name in enumerate(self.names):
            block = into[name]
            if many and "part" in self.axes:
                part = array[index] if self.bias else array[:, index]
            elif many:
                width = math.prod(block.shape[0 if self.bias else 1 :])
                part, edge = array[..., edge : edge + width].reshape(block.shape), edge + width
            else:
                part = array
            if self.head is None:
                block += part
            else:
                place = (slice(None),) * (0 if self.bias or self.letters == ("o",) else 1)
                block[(*place, slice(self.head, self.head + 1))] += part


def base_axes(slot: Any) -> tuple[str, ...]:
    if slot.letters == ("o",):
        return ("out",) if slot.bias else ("head", "dim", "out")
    inner = ("all",) if "all" in slot.axes else ("part", "head", "dim") if len(slot.letters) > 1 else ("head", "dim")
    return inner if slot.bias else ("in", *inner)


def _fits(shape: tuple[int, ...], lengths: list[int]) -> bool:
    """Whether axes of these lengths, in this order, can be grouped to `shape`."""
    index = 0
    for size in shape:
        product = 1
        while product < size and index < len(lengths):
            product *= lengths[index]
            index += 1
        if product != size:
            return False
    return math.prod(lengths[index:]) == 1


_ORDERS = {
    ("w", "in_out"): (
        ("in", "part", "head", "dim"), ("head", "in", "dim"), ("part", "in", "head", "dim"), ("part", "head", "in", "dim"),
    ),
    ("w", "out_in"): (("part", "head", "dim", "in"), ("head", "dim", "in")),
    ("w", "by_head"): (("head", "part", "dim", "in"), ("in", "head", "part", "dim")),
    ("o", "in_out"): (("head", "dim", "out"),),
    ("o", "out_in"): (("out", "head", "dim"), ("head", "out", "dim")),
}


def axes_of(entry: Any, letters: tuple, family: str, sizes: Sizes, head: int | None = None) -> tuple[str, ...] | None:
    """The order of axes in which a parameter of this shape holds these letters, or None; `family`: in_out, out_in, by_head."""
    if letters == ("o",) and entry.bias:
        return ("out",) if math.prod(entry.shape) == sizes.embed else None
    inner = {letter: block_shape(letter, True, sizes) for letter in letters if letter != "o"}
    heads, dim = (1 if head is not None else sizes.heads), sizes.head_dim
    if inner:
        heads, dim = next(iter(inner.values()))
        heads = 1 if head is not None else heads
    lengths = {"in": sizes.embed, "out": sizes.embed, "head": heads, "dim": dim, "part": len(letters)}
    orders = _ORDERS[("o" if letters == ("o",) else "w", family)] if (letters != ("o",) or family != "by_head") else ()
    if len(set(inner.values())) > 1:  # k and v with fewer heads: one axis for all
        lengths["all"] = sum(math.prod(shape) for shape in inner.values())
        orders = {"in_out": (("in", "all"),), "out_in": (("all", "in"),)}.get(family, ())
    for order in orders:
        axes = tuple(axis for axis in order if axis != "part" or len(letters) > 1)
        axes = tuple(axis for axis in axes if not (entry.bias and axis == "in"))
        if _fits(entry.shape, [lengths[axis] for axis in axes]):
            return axes
    return None
