"""A function that turns queries or keys by cosines and sines, or complex numbers, that it is given, or both of them by their positions, as
one of x: rope(x, positions, base). Not: layers that are given rotations (subject.py)."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from .calling import TURNS
from .frameworks import framework_of, from_numpy, is_array, to_numpy
from .match import arguments_of, required, roles_of

#: Axes of a table beside tokens and columns, before and behind the tokens.
_AXES = ((), (0,), (0, 1), (0, 2), (1,))


def turned(name: str, function: Any) -> Any:
    """The same function of x and positions; itself where it is that, or something else."""
    if not isinstance(function, FunctionType) or not re.search("(?i)rope|rotary|rotat", name):
        return function
    roles = roles_of(function)
    tables = {one: role for one, role in roles.items() if role in TURNS}
    if not tables and {"q", "k", "positions"} <= {*roles.values()}:
        tables = {one: role for one, role in roles.items() if role in ("positions", "base")}
    inputs = [one for one, role in roles.items() if role in ("x", "q", "k")] or [next(iter(roles), "")]
    free = [one.name for one in arguments_of(function) if required(one) and one.name not in (*tables, *inputs)]
    inputs += [one for one in free if re.fullmatch("(?i)xk|k|key", one)]
    if not tables or [one for one in free if one not in inputs] or len(inputs) > 2:
        return function
    chosen: list[Any] = []  # the form that kept every length once

    def call(x: Any, positions: Any, base: float = 10000.0) -> Any:
        first, failure = None, None
        for form in chosen or list(_forms("turns" in roles.values())):
            try:
                pairs = ((x, 1 - x), (1 - x, x))[: len(inputs)]
                outs = [_called(function, form, dict(zip(inputs, pair)), tables, positions, base) for pair in pairs]
            except Exception as error:
                failure = failure or error
                continue
            same = len(outs) == 1 or np.allclose(to_numpy(outs[0][-1]), to_numpy(outs[1][0]))  # k as q
            out = outs[0][0] if same else outs[1][-1]
            first = out if first is None else first
            if chosen or _kept(x, out):
                chosen[:] = [form]
                return out
        if first is None and failure is not None:
            raise failure
        return first

    call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return functools.update_wrapper(call, function, ("__module__", "__name__", "__qualname__", "__doc__"))  # its lines are watched


def _forms(whole: bool) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(columns, axes, whether heads are behind tokens)"""
    return itertools.product(("pairs",) if whole else ("halves", "twice", "pairs"), _AXES, (False, True))


def _called(function: Any, form: Any, inputs: dict[str, Any], tables: dict[str, str], positions: Any, base: float) -> list[Any]:
    """What one call in a form returns of its inputs, as [B, H, T, d]."""
    columns, axes, behind = form
    x = next(iter(inputs.values()))
    angles = np.outer(np.asarray(positions), base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    wide = {"halves": np.concatenate([angles, angles], -1), "twice": np.repeat(angles, 2, -1), "pairs": angles}[columns]
    made = {"turns": np.exp(1j * angles), "cos": np.cos(wide), "sin": np.sin(wide)}
    dtype, given = str(x.dtype).rpartition(".")[2], {"positions": positions, "base": base}
    given |= {role: from_numpy(np.expand_dims(table, axes), framework_of(function), dtype) for role, table in made.items()}
    turns = {name: given[role] for name, role in tables.items()}
    out = function(**{name: one.swapaxes(1, 2) if behind else one for name, one in inputs.items()}, **turns)
    outs = [one.swapaxes(1, 2) if behind else one for one in (out if isinstance(out, (tuple, list)) else (out,)) if is_array(one)]
    if not outs or any(tuple(one.shape) != tuple(x.shape) for one in outs):
        raise ValueError(f"{function.__name__} returned no array of the shape {list(x.shape)}")
    return outs


def _kept(x: Any, out: Any) -> bool:
    """Whether every vector is as long as before, as what is turned is."""
    return np.allclose(np.linalg.norm(to_numpy(x), axis=-1), np.linalg.norm(to_numpy(out), axis=-1), 1e-4)
