"""The task cache: token by token with a state. The state may be returned, be changed in place, or be the object's own.

Not: whether the steps equal the whole (the tool's verdict).
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from .calling import Binding, Result, array_of
from .slots import Tensors, Words
from .subject import Subject


def beginnings(binding: Binding) -> list[Any]:
    """What an empty cache may be: None, an object of the annotated class, an empty dict, an empty list."""
    if not binding.takes("cache"):
        return [None]
    annotation = inspect.signature(binding.function).parameters[binding.argument("cache")].annotation
    scope = getattr(getattr(binding.function, "__func__", binding.function), "__globals__", {})
    cls = scope.get(annotation) if isinstance(annotation, str) else annotation
    made: list[Any] = []
    if isinstance(cls, type) and cls is not inspect.Parameter.empty and cls.__module__ not in ("builtins", "torch"):
        try:
            made = [cls()]
        except Exception:  # a class that needs arguments cannot be made here
            made = []
    return [*made, None, {}, []]


def _after(binding: Binding, result: Result, before: Any) -> Any:
    """The state for the next call."""
    rest = list(result.rest)
    if binding.takes("past_k"):
        return tuple(rest[-2:]) if len(rest) >= 2 else before
    if not rest:
        return before
    return rest[0] if len(rest) == 1 else tuple(rest) if _pair(rest) else rest[-1]


def _pair(rest: list[Any]) -> bool:
    """Two arrays of one shape: keys and values."""
    return len(rest) == 2 and all(hasattr(one, "shape") for one in rest) and tuple(rest[0].shape) == tuple(rest[1].shape)


def step_values(binding: Binding, values: dict[str, Any], state: Any, start: int) -> dict[str, Any]:
    """The values of one call, with the state in whatever arguments it has."""
    values = {**values, "start": start, "use_cache": True}
    if binding.takes("past_k"):
        values["past_k"], values["past_v"] = state if state else (None, None)
    elif binding.takes("cache"):
        values["cache"] = state
    return values


def steps(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """`out` of all calls, joined along L."""
    counts = [int(count) for count in metadata.get("steps", str(tensors["x"].shape[1])).split(",")]
    binding = subject.binding_for()
    target = subject.fresh(tensors, assignment) if subject.prototype is not None else None
    state = subject.empty_cache(binding)
    outs, start = [], 0
    for count in counts:
        piece = {**tensors, "x": tensors["x"][:, start : start + count]}
        values = step_values(binding, subject.values(binding, piece, metadata, subject.leaves(piece)), state, start)
        result = subject.call(binding, target, values, piece)
        state = _after(binding, result, state)
        outs.append(array_of(result.out, subject.precision))
        start += count
    return {"out": np.concatenate(outs, axis=1)}
