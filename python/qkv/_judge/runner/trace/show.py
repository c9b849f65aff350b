"""A finding's lines as text: the source around them, what the value is, what the textbook has."""

from __future__ import annotations

from typing import Any

import numpy as np

from .blame import Blame, Search
from .layouts import layouts
from .record import Event
from .stages import ORDER, SCORES

_NUMBERS = 5
_CALLED = {"logits": "scores", "exp": "exp(scores)", "values": "weights @ v", "x": "the input"}


def called(stage: str) -> str:
    """A stage by its usual name."""
    return _CALLED.get(stage, stage)


def as_json(search: Search, blame: Blame, probe: str) -> dict[str, Any]:
    """As the judge reads it (src/judge/json.cc, line_of)."""
    before = [search.events[i] for i in sorted(search.good) if 0 < search.events[i].line < blame.line and i < blame.index]
    right = before[-1] if before else None
    stacks = (search.events[i].stack for i in search.needed if search.events[i].line == blame.line and search.events[i].stack)
    outer = [line for line, _ in next(stacks, ())[1:]]
    lines = search.text.splitlines()
    first = max(1, blame.line - 2)
    return {
        "line": blame.line, "sure": blame.sure, "right": right.line if right else 0, "stage": called(right.match.stage) if right else "",
        "called": outer[0] if outer else 0, "probe": probe, "first": first, "source": lines[first - 1 : blame.line + 2],
        **_values(search, blame, right),
    }  # fmt: skip


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
    for name, value, axes in _wanted(search, ORDER.index(own.stage) if own and own.stage in ORDER else 0):
        for layout in layouts(rows.shape, value.shape, axes):
            if best is None and all(value.shape[axis] == 1 for axis in layout.rest) and not layout.tiles:
                turned = own and "i" in own.order and own.order != "".join(axes[a] for a in layout.order)
                best = None if turned else (called(name), layout.pieces(value).reshape(rows.shape))
    if best is None or np.allclose(best[1], rows, rtol=1e-4, atol=1e-6, equal_nan=True):
        return {}
    at = tuple(np.argwhere(~np.isclose(best[1], rows, rtol=1e-4, atol=1e-6, equal_nan=True))[0][:-1])
    return {"label": f"{best[0]}[{', '.join([*map(str, at), ':'])}]", "got": _row(rows[at]), "expected": _row(best[1][at])}


def _wanted(search: Search, rank: int) -> list[tuple[str, np.ndarray, str]]:
    """The stages after the last that was right, the next one first."""
    found = [(stage.rank, stage.name, stage.value, stage.axes) for stage in search.book.stages]
    for one in search.book.softmaxes:
        found.append((ORDER.index("logits"), "logits", np.where(one.visible, one.logits, -np.inf), one.axes))
    return [one[1:] for one in sorted(found, key=lambda one: one[0]) if one[0] > rank]


def _row(row: np.ndarray) -> str:
    words = [f" {number:9.4f}" if abs(number) < 1e4 else f" {number:9.3g}" for number in np.atleast_1d(row)[:_NUMBERS]]
    return "".join(words) + (" ..." if row.size > _NUMBERS else "")
