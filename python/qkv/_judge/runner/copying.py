"""Copies of objects, and of the functions that they hold: a lambda made in __init__ sees the copy's layers, not those of the object that
was copied. Not: when copies are made (subject.py)."""

from __future__ import annotations

import copy
import functools
from types import CellType, FunctionType
from typing import Any

from .frameworks import is_module


def copied(thing: Any, file: str) -> Any:
    """A deep copy; what it holds of the functions that `file` makes inside others has cells of its own, with copies of what is in them."""
    memo: dict[int, Any] = {}
    functions: dict[int, FunctionType] = {}

    def rebound(value: Any) -> Any:
        if isinstance(value, FunctionType) and value.__closure__ and value.__code__.co_filename == file:
            return functions.get(id(value)) or function(value)
        if isinstance(value, functools.partial):
            return functools.partial(rebound(value.func), *value.args, **value.keywords)
        if type(value) not in (list, tuple, dict):
            return value
        before = list(value.values() if isinstance(value, dict) else value)
        after = [rebound(one) for one in before]
        if all(one is two for one, two in zip(before, after)):
            return value
        return dict(zip(value, after)) if isinstance(value, dict) else type(value)(after)

    def function(value: FunctionType) -> FunctionType:
        cells = tuple(CellType() for _ in value.__closure__ or ())
        other = functions[id(value)] = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        other.__kwdefaults__, other.__dict__ = value.__kwdefaults__, dict(value.__dict__)
        for own, old in zip(cells, value.__closure__ or ()):
            try:
                own.cell_contents = rebound(copy.deepcopy(old.cell_contents, memo))
            except ValueError:  # nothing in it yet
                continue
        return other

    other = copy.deepcopy(thing, memo)
    for holder in other.modules() if is_module(other) else [other]:
        held = getattr(holder, "__dict__", {})
        held.update({name: rebound(value) for name, value in held.items() if name[:1] != "_" or not is_module(holder)})
    return other
