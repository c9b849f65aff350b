"""The first line whose value leaves the textbook, where a probe that is wrong is answered once more, watched; what the value is, and what
the textbook has."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import building
from ..answering import answered
from ..errors import FAILURES
from ..slots import Tensors, Words
from ..subject import Subject
from .blame import ANSWERS, Blame, Search
from .instrument import Instrumented
from .match import layouts
from .named import HANDED, handed_at, line_of, reads_mask, uses
from .record import ALIASES, Event, Recorder
from .stages import ORDER, SCORES, Textbook, departures

Probe = tuple[Tensors, Words]
#: Calls whose numbers are the textbook's.
_CALLS = ("forward", "steps", "twice", "training", "gradient", "train-steps")
#: The simplest probe, then others, then those that show little.
_ORDER = {"plain": 0, "by hand": 2, "one token": 2, "two tokens": 2}
_MOST = 6  # probes that are answered once more, until one has a line
_NUMBERS = 5
#: Stages by their usual names.
_CALLED = {"logits": "scores", "exp": "exp(scores)", "values": "weights @ v", "x": "the input"}


def find_line(subject: Subject, reading: int, probes: list[tuple[Probe, Probe]]) -> dict[str, Any] | None:
    """Of the first probe (its inputs and metadata; the textbook's stages and the mistake's name) that shows it; None: not known."""
    function = getattr(subject.thing, subject.method, subject.thing) if subject.method else subject.thing
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    text = "".join(linecache.getlines(code.co_filename)) if code is not None and subject.people.owns(code.co_filename) else ""
    if not text:
        return None
    try:
        source = Instrumented(code.co_filename, text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    mistake = next((said.get("mistake", "") for _, (_, said) in probes), "")
    if line := line_of(text, mistake):
        return _at(line, text)
    called = [(*probe, stages) for probe, (stages, _) in probes if probe[1].get("call", "forward") in _CALLS]
    for tensors, metadata, stages in sorted(called, key=lambda one: _ORDER.get(one[1].get("name", ""), 1))[:_MOST]:
        with contextlib.suppress(*FAILURES):
            if (found := _watched(subject, reading, source, tensors, metadata, stages, mistake)) is not None:
                return found
    return None


def _watched(
    subject: Subject, reading: int, source: Instrumented, tensors: Tensors, metadata: Words, stages: Tensors, mistake: str
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
        answers, failed = answered(watched, tensors, {**metadata, "repeat": "1"} if metadata.get("call") == "training" else metadata, reading)
        if failed:
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
    if blame is not None and "other_out" in answers and (line := _reads(search.tree, subject.binding_for().argument("other_mask"))):
        blame = _moved(search, blame, line)
    elif blame is not None:
        blame = _moved(search, blame, _by_name(search, blame, mistake))
    return _as_json(search, blame, metadata.get("name", "")) if blame is not None and blame.line else None


def _moved(search: Search, blame: Blame, line: int) -> Blame:
    """To a line, and to the first value that it made."""
    return blame if line == blame.line else Blame(line, next((i for i, one in enumerate(search.events) if one.line == line), blame.index))


def _by_name(search: Search, blame: Blame, mistake: str) -> int:
    """Where a mistake's name says more: a statement that reckons with the argument that it is about, the call of a helper."""
    at = (search.events[i].stack for i in search.needed if search.events[i].line == blame.line and search.events[i].stack)
    if line := handed_at(search.tree, mistake, next(at, ())):
        return line
    stack = search.events[blame.index].stack
    known = mistake == "mask-polarity" and reads_mask(search.tree, blame.line)
    if (lines := uses(search.tree, mistake)) and blame.line not in lines and not known:
        return lines[0]
    return _handed(search, *stack[-1]) if mistake in HANDED and len(stack) > 1 else blame.line


def _handed(search: Search, called: int, code: Any) -> int:
    """The line of a call of a helper, or the one before it that made constants that the helper was handed."""
    handed = (one.parents[0] for one in search.events if one.op == "argument" and one.line == called and not (one.given or one.number))
    for index in handed:
        while search.events[index].op in ALIASES:
            index = search.events[index].parents[0]
        own = search.events[index]
        if own.line and own.value.size > 1 and own.stack and own.stack[0][1] is code:
            return own.line
    return called


def _reads(tree: ast.AST, argument: str) -> int:
    """The first statement of the function with such an argument that uses it, or what has its numbers alone, not one that asks whether
    it is there; 0 without."""
    owners = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and argument in [own.arg for own in one.args.args]]
    plain = [one for owner in owners[:1] for one in ast.walk(owner) if isinstance(one, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return))]
    for one in sorted(plain, key=lambda one: one.lineno):
        if any(isinstance(name, ast.Name) and name.id == argument for name in ast.walk(one)):
            view = isinstance(one, ast.Assign) and isinstance(one.value, ast.Subscript) and isinstance(one.targets[0], ast.Name)
            if not view or getattr(one.value.value, "id", "") != argument:  # type: ignore[union-attr]
                return one.lineno
            argument = one.targets[0].id  # type: ignore[union-attr]
    return 0


def _as_json(search: Search, blame: Blame, probe: str) -> dict[str, Any]:
    """As the judge reads it (src/judge/json.cc, line_of)."""
    before = [search.events[i] for i in sorted(search.good) if 0 < search.events[i].line < blame.line and i < blame.index]
    right = before[-1] if before else None
    stage = _CALLED.get(right.match.stage, right.match.stage) if right else ""
    stacks = (search.events[i].stack for i in search.needed if search.events[i].line == blame.line and search.events[i].stack)
    outer = [line for line, _ in next(stacks, ())[1:] if line != blame.line]
    return {
        **_at(blame.line, search.text), "near": False, "sure": blame.sure, "right": right.line if right else 0, "stage": stage,
        "called": outer[0] if outer else 0, "probe": probe, **_values(search, blame, right),
    }  # fmt: skip


def _at(line: int, text: str) -> dict[str, Any]:
    """A line, with two around it."""
    first = max(1, line - 2)
    return {"line": line, "sure": True, "near": True, "probe": "plain", "first": first, "source": text.splitlines()[first - 1 : line + 2]}


def _values(search: Search, blame: Blame, right: Event | None) -> dict[str, str]:
    """The first row that differs, beside the textbook's."""
    right_ones = {i for i in search.good if search.events[i].match.stage not in SCORES}
    made = [search.events[blame.index], *(search.events[i] for i in reversed(search.needed) if i not in right_ones)]
    made = [one for one in made if one.line == blame.line and one.given and not one.number]
    event = next((one for one in made if one.value.dtype != bool and one.value.size > 1), None)
    if event is None:
        return {}
    rows, own = event.value.squeeze(), event.match or (right and right.match)
    best = None
    for name, value, axes in _wanted(search, own.stage if own else ""):
        for layout in layouts(rows.shape, value.shape, axes):
            if best is None and all(value.shape[axis] == 1 for axis in layout.rest) and not layout.tiles:
                turned = own and "i" in own.order and own.order != "".join(axes[a] for a in layout.order)
                best = None if turned else (_CALLED.get(name, name), layout.pieces(value).reshape(rows.shape))
    if best is None or np.allclose(best[1], rows, rtol=1e-4, atol=1e-6, equal_nan=True):
        return {}
    at = tuple(np.argwhere(~np.isclose(best[1], rows, rtol=1e-4, atol=1e-6, equal_nan=True))[0][:-1])
    return {"label": f"{best[0]}[{', '.join([*map(str, at), ':'])}]", "got": _row(rows[at]), "expected": _row(best[1][at])}


def _wanted(search: Search, last: str) -> list[tuple[str, np.ndarray, str]]:
    """The stages after the last that was right, the next one first."""
    names, rank = [one.name for one in search.book.stages], ORDER.index(last) if last in ORDER else 0
    after = search.book.stages[names.index(last) + 1 if last in names and last not in ORDER else 0 :]
    found = [(stage.rank, stage.name, stage.value, stage.axes) for stage in after]
    for one in search.book.softmaxes:
        found.append((ORDER.index("logits"), "logits", np.where(one.visible, one.logits, -np.inf), one.axes))
    return [one[1:] for one in sorted(found, key=lambda one: one[0]) if one[0] > rank]


def _row(row: np.ndarray) -> str:
    words = [f" {number:9.4f}" if abs(number) < 1e4 else f" {number:9.3g}" for number in np.atleast_1d(row)[:_NUMBERS]]
    return "".join(words) + (" ..." if row.size > _NUMBERS else "")
