"""How one parameter of a person's holds one or more of the contract's: in which order it has the axes of their canonical blocks. q, k, v
in one parameter are the axis "part", or "all" where k and v have fewer heads than q."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

#: By name: of a probe or an answer; its metadata.
Tensors = dict[str, np.ndarray]
Words = dict[str, str]


class Sizes(NamedTuple):
    """`hidden`: the width between the two matrices of a block's feed-forward part; 0 without one."""

    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int = 0

    def known(self) -> dict[str, int]:
        return {name: size for name, size in self._asdict().items() if size}

    def heads_of(self, letter: str) -> int:
        return self.kv_heads if letter in ("k", "v") else self.heads


#: The axes of a canonical block, by its letter: of a matrix, of a bias.
_MATRIX = {**dict.fromkeys("qkv", ("in", "head", "dim")), "o": ("head", "dim", "out"), **dict.fromkeys("am", ("out",)),
           **dict.fromkeys("ug", ("in", "mid")), "d": ("mid", "out")}  # fmt: skip
_BIAS = {**dict.fromkeys("qkv", ("head", "dim")), **dict.fromkeys("oamd", ("out",)), **dict.fromkeys("ug", ("mid",))}


def block_shape(letter: str, bias: bool, sizes: Sizes) -> tuple[int, ...]:
    lengths = {"in": sizes.embed, "out": sizes.embed, "mid": sizes.hidden, "head": sizes.heads_of(letter), "dim": sizes.head_dim}
    return tuple(lengths[axis] for axis in (_BIAS if bias else _MATRIX)[letter])


def numbers(letters: tuple, bias: bool, sizes: Sizes) -> int:
    """How many numbers a parameter with these letters has."""
    return sum(math.prod(block_shape(letter, bias, sizes)) for letter in letters)


def canonical(sizes: Sizes) -> Tensors:
    """The blocks, {"W_q": [in, head, dim], ...}, holding where each of their numbers is in one vector of all."""
    blocks: Tensors = {}
    edge = 0
    for name in (f"{kind}_{letter}" for kind in "Wb" for letter in ("qkvoamugd" if sizes.hidden else "qkvo")):
        shape = block_shape(name[2], name[0] == "b", sizes)
        blocks[name] = np.arange(edge, edge := edge + math.prod(shape)).reshape(shape)
    return blocks


def in_probe(tensors: Tensors, sizes: Sizes) -> Tensors:
    """The same for the parameters as a probe has them: [in, out], q, k and v side by side where they are merged."""
    blocks, indices = canonical(sizes), {}
    for name, value in tensors.items():
        if name[:2] in ("W_", "b_"):
            parts = [blocks[name[:2] + letter] for letter in name[2:]]
            rows = value.shape[:-1] if len(parts) > 1 else ()
            indices[name] = np.concatenate([part.reshape(*rows, -1) for part in parts], -1).reshape(value.shape)
    return indices


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

    def indices(self, blocks: Tensors) -> np.ndarray:
        """Of each number of the parameter, where it is in the vector of canonical blocks."""
        parts = [blocks[name] for name in self.names]
        if self.head is not None:
            axis = 0 if self.bias or self.letters == ("o",) else 1
            parts = [np.take(part, [self.head], axis=axis) for part in parts]
        rows = () if self.bias else parts[0].shape[:1]
        order = (_BIAS if self.bias else _MATRIX)[self.letters[0]]
        if len(parts) == 1:
            base = parts[0]
        elif "part" in self.axes:
            base, order = np.stack(parts, axis=len(rows)), (*order[: len(rows)], "part", *order[len(rows) :])
        else:
            base, order = np.concatenate([part.reshape(*rows, -1) for part in parts], -1), (*order[: len(rows)], "all")
        return base.transpose([order.index(axis) for axis in self.axes]).reshape(self.shape)


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
    ("all", "in_out"): (("in", "all"),),  # k and v with fewer heads: one axis for all
    ("all", "out_in"): (("all", "in"),),
}


def axes_of(entry: Any, letters: tuple, family: str, sizes: Sizes, head: int | None = None) -> tuple[str, ...] | None:
    """The order of axes in which a parameter of this shape holds these letters, or None; `family`: in_out, out_in, by_head."""
    if letters == ("o",) and entry.bias:
        return ("out",) if math.prod(entry.shape) == sizes.embed else None
    inner = {letter: block_shape(letter, True, sizes) for letter in letters if letter != "o"}
    heads, dim = next(iter(inner.values()), (sizes.heads, sizes.head_dim))
    lengths = {"in": sizes.embed, "out": sizes.embed, "head": heads if head is None else 1, "dim": dim, "part": len(letters)}
    lengths["all"] = sum(math.prod(shape) for shape in inner.values())
    for order in _ORDERS.get(("o" if letters == ("o",) else "all" if len(set(inner.values())) > 1 else "w", family), ()):
        axes = tuple(axis for axis in order if not (axis == "part" and len(letters) == 1) and not (axis == "in" and entry.bias))
        if _fits(entry.shape, [lengths[axis] for axis in axes]):
            return axes
    return None
