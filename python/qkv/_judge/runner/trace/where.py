"""The first line whose value leaves the textbook: a probe that is wrong is answered once more, watched."""

from __future__ import annotations

import contextlib
import copy
import inspect
import linecache
from collections.abc import Callable
from typing import Any

from .. import building
from ..answering import answered
from ..errors import FAILURES
from ..slots import Tensors, Words
from ..subject import Subject
from .blame import ANSWERS, Search
from .instrument import Instrumented
from .record import Recorder
from .show import as_json
from .stages import Textbook, departures

#: Calls whose numbers are the textbook's.
_CALLS = ("forward", "steps", "twice", "training", "gradient", "train-steps")
#: The simplest probe, then others, then those that show little.
_ORDER = {"plain": 0, "by hand": 2, "one token": 2, "two tokens": 2}
_MOST = 6  # probes that are answered once more, until one has a line


def find_line(subject: Subject, reading: int, probes: list[tuple[Tensors, Words, Tensors]]) -> dict[str, Any] | None:
    """As show.as_json, of the first probe (its inputs, metadata, the textbook's stages) that shows it; None: not known."""
    code = _code_of(subject)
    text = "".join(linecache.getlines(code.co_filename)) if code is not None else ""
    if code is None or not text:
        return None
    try:
        source = Instrumented(code.co_filename, text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    called = [one for one in probes if one[1].get("call", "forward") in _CALLS]
    for tensors, metadata, stages in sorted(called, key=lambda one: _ORDER.get(one[1].get("name", ""), 1))[:_MOST]:
        with contextlib.suppress(*FAILURES):
            found = _watched(subject, reading, source, tensors, metadata, stages)
            if found is not None:
                return found
    return None


def _code_of(subject: Subject) -> Any:
    """Of the person's own function or method."""
    function = getattr(subject.thing, subject.method, subject.thing) if subject.method else subject.thing
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return code if code is not None and subject.people.owns(code.co_filename) else None


def _watched(
    subject: Subject, reading: int, source: Instrumented, tensors: Tensors, metadata: Words, stages: Tensors
) -> dict[str, Any] | None:
    record = Recorder(source)
    watched = copy.copy(subject)
    watched.bindings = {name: copy.copy(binding) for name, binding in subject.bindings.items()}

    def call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        record.give((*args, *kwargs.values()))
        out = function(*args, **kwargs)
        record.returned(getattr(function, "outs", out))
        return out

    for binding in watched.bindings.values():
        binding.watch = call
    with source.run(record):
        if subject.kind == "class":
            with contextlib.suppress(Exception):
                values, own = building.values_for(subject.task, subject.helpers.get("init") or {})
                building.build(subject.thing, values, own, subject.people)
            for event in record.events:
                event.given = False
        if answered(watched, tensors, {**metadata, "repeat": "1"} if metadata.get("call") == "training" else metadata, reading)[1]:
            return None
    heads = tensors["q"].shape[1] if "q" in tensors and tensors["q"].ndim > 1 else subject.sizes.heads
    kv_heads = subject.sizes.kv_heads if "W_k" in tensors else heads
    mistaken = {key[1:]: value for key, value in stages.items() if key.startswith("-")}
    right = {key: value for key, value in stages.items() if not key.startswith("-")}
    book = Textbook(right, heads, kv_heads, ANSWERS)
    try:
        other = Textbook(mistaken, heads, kv_heads, ANSWERS)
    except ValueError:  # shapes that no textbook has
        mistaken, other = {}, book
    if subject.framework == "torch" and metadata.get("call") == "train-steps":
        del record.outputs[1:]  # a step's gradients are PyTorch's own: what follows from them says nothing
    search = Search(record, book, source.text, other.apart(book), other.instead(book, departures(right, mistaken)))
    ways = {"training": lambda: search.dropped(float(metadata.get("dropout") or 0)), "gradient": search.detached}
    ways["train-steps"] = search.stepped if subject.framework == "torch" else search.first
    blame = ways.get(metadata.get("call", "forward"), search.first)()
    return as_json(search, blame, metadata.get("name", "")) if blame is not None and blame.line else None

