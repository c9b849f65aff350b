"""Every value that a person's lines make, with its line and the values that it was made of."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import numpy as np

from ..frameworks import is_tensor, torch_of
from .instrument import Instrumented, Node

#: Operations that add no numbers of their own.
VIEWS = frozenset(
    "view reshape transpose permute unsqueeze squeeze expand expand_as contiguous clone detach to float double copy asarray array tensor "
    "flatten unflatten split chunk unbind tensor_split getitem swapaxes moveaxis movedim expand_dims ravel name attribute rename named "
    "argument changed kept view_as view_as_real view_as_complex astype transpose_ item tolist".split()
)
#: Operations along an axis.
REDUCTIONS = frozenset("max amax sum softmax mean logsumexp log_softmax cumsum argmax maximum norm".split())
#: A name for what was there before: a = b, a = f(x), an argument.
ALIASES = ("rename", "named", "argument")
#: Values that hand on what is in them.
_CONTAINERS = (list, tuple, dict, zip, map, enumerate, reversed)
_MOST = 60000


@dataclasses.dataclass
class Event:
    """A value at the time it was made. `match`: what it is in the textbook (match.py)."""

    op: str
    line: int
    value: Any
    parents: tuple[int, ...]
    node: int
    name: str
    call: int
    number: bool
    stack: tuple[tuple[int, CodeType], ...] = ()  # lines, of its function and of those that called it
    floating: bool = True
    tolerance: float = 1e-6
    given: bool = False  # an argument of the call, or made of one: not only of constants
    match: Any = None

    @property
    def view(self) -> bool:
        return self.op in VIEWS


def is_constant(value: Any) -> bool:
    """Nothing but 0, 1 and numbers that stand for infinity: a mask."""
    size = np.abs(value[np.isfinite(value)])
    return bool(((size == 0) | (size == 1) | (size > 9e3)).all())


def array_of(value: Any) -> np.ndarray | None:
    """An array, a tensor, a list of numbers or of such lists of one length, in float64 or bool; None for another value."""
    if is_tensor(value):
        torch, value = torch_of(), value.detach().resolve_conj().resolve_neg()
        value = (value if value.dtype is torch.bool else value.to(torch.complex128 if value.is_complex() else torch.float64)).numpy()
    elif type(value) is list:
        inner = value
        while type(inner) is list and inner:
            inner = inner[0]
        if value and not isinstance(inner, (int, float)):
            return None
        try:
            return np.array(value, np.float64)
        except (ValueError, TypeError):
            return None
    elif not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return None
    value = np.asarray(value)
    if value.dtype.kind == "c":
        return np.stack([value.real, value.imag], -1)
    return np.array(value, bool if value.dtype == bool else np.float64) if value.dtype.kind in "fbiu" else None


def storage_of(value: Any) -> Any:
    if is_tensor(value):
        return value.untyped_storage().data_ptr()
    while isinstance(getattr(value, "base", None), np.ndarray):
        value = value.base
    return id(value)


def _equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Recorder:
    """What instrumented functions call. `outputs`: of each call, the events that it returned."""

    def __init__(self, source: Instrumented) -> None:
        self.nodes, self.stores, self.file = source.nodes, source.stores, source.file
        self.events: list[Event] = []
        self.kept: list[Any] = []  # the objects, so that no id is given twice
        self.outputs: list[tuple[int, ...]] = []
        self.changes: list[int] = []  # events that wrote into memory that was there before
        self.inputs: set[Any] = set()
        self._off = False
        self._owner: dict[int, int] = {}  # of objects, and of the rows and numbers of a list
        self._memory: dict[Any, int] = {}  # the last event of a storage
        self._last: dict[int, tuple[int, ...]] = {}  # of a node
        self._read_as: dict[int, int] = {}  # the event that an object was last read as
        self._names: dict[tuple[int, str], int] = {}  # of (frame, variable), of (0, attribute)
        self._each: dict[tuple[int, str], tuple[int, ...]] = {}  # of (frame, a loop's variable): what the loop goes through
        self._frame = 0

    def value(self, n: int, value: Any) -> Any:
        """Of an expression."""
        node = self.nodes[n]
        parents = self._taken(node.children)
        if self._off:
            return value
        self._off, frame = True, sys._getframe(1)
        while frame.f_code.co_name.startswith("<") and frame.f_back is not None:  # a comprehension
            frame = frame.f_back
        self._frame = id(frame)
        try:
            if node.op == "name" and not parents:
                parents = self._each.get((self._frame, node.name), ())
            found = self._found(n, node, value, parents)
        finally:
            self._off = len(self.events) > _MOST
        if node.op == "iterate":
            self._each.update(((self._frame, name), found) for name in node.name.split())
        if len(found) == 1:
            self._read_as[id(value)] = found[0]
        self._last[n] = (*self._last.get(n, ()), *found) if node.many else found
        return value

    def _taken(self, children: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(index for child in children for index in self._last.pop(child, ())))

    def _found(self, n: int, node: Node, value: Any, parents: tuple[int, ...]) -> tuple[int, ...]:
        if value is None:  # append, fill_diagonal
            return tuple(self._written(n, node.op, node.line, p, parents) for p in parents)
        if isinstance(value, bool):
            return parents
        if isinstance(value, (tuple, list)) and 0 < len(value) < 64 and array_of(value[0]) is not None and array_of(value) is None:
            return tuple(index for one in value for index in self._found(n, node, one, parents))
        array = np.float64(value) if _is_number(value) else array_of(value)
        if array is None:
            return parents if isinstance(value, _CONTAINERS) else ()
        own = self._owner.get(id(value)) if type(value) is not int else None
        key = (0 if node.op == "attribute" else self._frame, node.name)
        named = self._names.get(key) if node.op in ("name", "attribute") else None
        for index in (named, *(p for p in parents if self.kept[p] is value), own):
            if index is not None and (self.kept[index] is value or self.events[index].number) and _equal(self.events[index].value, array):
                return (index,)
        if _is_number(value):
            return (self._add(node.op, node.line, value, parents if own is None else (own, *parents), array, n),)
        if own is not None and node.op not in ("name", "attribute", "getitem"):
            return (self._written(n, node.op, node.line, own, parents),)
        if node.op in ("name", "attribute") or (node.op == "getitem" and (own is not None or not parents)):
            return (self._known(n, value, array, own, parents),)
        return (self._add(node.op, node.line, value, parents, array, n),)

    def _known(self, n: int, value: Any, array: np.ndarray, own: int | None, parents: tuple[int, ...]) -> int:
        """A variable's value that no expression gave: changed by a view of it, one of many in a loop, made before the call."""
        last = self._memory.get(storage_of(value))
        if own is not None:
            return self._add("changed", self.events[last or own].line, value, (own, *([last] if last else [])), array, n)
        if not parents:
            last = last if last is not None or array.size < 4 else self._made_before(array)
            parents = () if last is None else (last,)
        if not parents:
            self.inputs.add(storage_of(value))
        return self._add("kept", 0, value, parents, array, n)

    def _made_before(self, array: np.ndarray) -> int | None:
        """In __init__ or in an earlier call."""
        alike = (i for i in reversed(range(len(self.events))) if self.events[i].line and not self.events[i].number)
        return next((i for i in alike if self.events[i].value.size == array.size and _equal(self.events[i].value.ravel(), array.ravel())), None)

    def _written(self, n: int, op: str, line: int, index: int, parents: Iterable[int]) -> int:
        """The same object, after it was written to; the same event where it was not."""
        array = None if self.events[index].number else array_of(self.kept[index])
        if array is None or _equal(self.events[index].value, array):
            return index
        self.changes.append(len(self.events))
        return self._add(op, line, self.kept[index], tuple(dict.fromkeys((index, *parents))), array, n)

    def _add(self, op: str, line: int, value: Any, parents: tuple[int, ...], array: Any, n: int = -1, name: str = "") -> int:
        index, number = len(self.events), _is_number(value)
        event = Event(op, line, array, parents, n, name, len(self.outputs), number)
        filled = op.endswith("_like") or op.startswith("new_") or op in ("empty", "zeros", "ones", "full") or type(value) is int
        event.given = not filled and any(self.events[p].given for p in parents)
        if not number:
            kind = str(getattr(value, "dtype", "float"))
            event.stack, event.floating = self._stack(line), "float" in kind or "complex" in kind
            event.tolerance = 3e-2 if "float16" in kind else 1e-4 if "float32" in kind or "complex64" in kind else 1e-6
            self._memory[storage_of(value)] = index
        self.events.append(event)
        self.kept.append(value)
        if op not in ALIASES:
            self._owner[id(value)] = index
            if type(value) is list:
                self._owner.update((id(one), index) for one in value if type(one) in (list, float))
        return index

    def _stack(self, line: int) -> tuple[tuple[int, CodeType], ...]:
        frame, found = sys._getframe(2), []
        while frame is not None:
            if frame.f_code.co_filename == self.file and not frame.f_code.co_name.startswith("<"):
                found.append((frame.f_lineno if found else line, frame.f_code))
            frame = frame.f_back
        return tuple(found)

    def store(self, n: int, *values: Any) -> None:
        """After a statement that gives names a value."""
        store, frame = self.stores[n], id(sys._getframe(1))
        made = {part: self._taken(part) for part in dict.fromkeys(store.parts)}
        if self._off:
            return
        self._off = True
        for (kind, name), part, again, value in zip(store.targets, store.parts, store.renames, values):
            found, key = made[part], (0 if kind == "attribute" else frame, name)
            array = np.float64(value) if _is_number(value) else None if isinstance(value, bool) else array_of(value)
            if array is None:
                for one in value if isinstance(value, (tuple, list)) else ():
                    if (own := self._owner.get(id(one))) is not None and (array := array_of(one)) is not None:
                        self._add("named", store.line, one, (own,), array, name=name)
                continue
            own = next((i for i in reversed(found) if self.kept[i] is value), self._owner.get(id(value)) if type(value) is not int else None)
            if _is_number(value):
                old = self._names.get(key) if store.adds else None
                self._names[key] = self._add("number", store.line, value, found if old is None else (*found, old), array, name=name)
                continue
            if own is None:
                own = self._add("store" if kind == "item" or store.adds else "kept", store.line, value, found, array)
            self._names[key] = own = self._written(-1, "store", store.line, own, found)
            if kind != "item":
                self._names[key] = self._add("rename" if again else "named", store.line, value, (own,), array, name=name)
        self._off = len(self.events) > _MOST

    def enter(self, n: int, *values: Any) -> None:
        """A function's arguments get names."""
        frame = sys._getframe(1)
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename != self.file:
            caller = caller.f_back
        if self._off or caller is None:
            return
        self._off = True
        for (_, name), value in zip(self.stores[n].targets, values):
            own, array = self._read_as.get(id(value)), array_of(value)
            if own is not None and array is not None and _equal(self.events[own].value, array):
                self._names[id(frame), name] = self._add("argument", caller.f_lineno, value, (own,), array, name=name)
        self._off = False

    def give(self, value: Any) -> None:
        """An argument of the call: arrays in it, and of a list its rows."""
        array = array_of(value)
        if array is not None and array.size:
            before = self._made_before(array) if self.outputs else None
            event = self.events[self._add("given", 0, value, () if before is None else (before,), array)]
            event.given = (event.floating or array.ndim > 1) and not is_constant(array)
            self.inputs.add(storage_of(value))
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            self.give(one)

    def returned(self, value: Any) -> None:
        """What a call gave; names of its frames are no longer known."""
        found = []
        for one in _leaves(value):
            index, array = self._owner.get(id(one)), array_of(one)
            if array is not None and (index is None or not _equal(self.events[index].value, array)):
                last = self._memory.get(storage_of(one))
                index = self._add("kept", 0, one, () if last is None else (last,), array)
            found += [index] if index is not None else []
        self.outputs.append(tuple(found))
        self._names = {key: index for key, index in self._names.items() if key[0] == 0}
        self._last.clear()

    def reduces(self, n: int) -> set[str]:
        """Variables that a maximum, a sum or a softmax in an expression reads."""
        node = self.nodes[n] if n >= 0 else Node(0, "", "", ())
        own = {self.nodes[c].name for c in node.children if self.nodes[c].op == "name"} if node.op in REDUCTIONS else set()
        return own.union(*(self.reduces(child) for child in node.children))


def _leaves(value: Any) -> Iterator[Any]:
    """Every array and float in a result."""
    if isinstance(value, float) or array_of(value) is not None:
        yield value
        return
    if not isinstance(value, (list, tuple, dict)):
        value = getattr(value, "__dict__", ())
    for one in value.values() if isinstance(value, dict) else value:
        yield from _leaves(one)
