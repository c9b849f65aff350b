"""The same code at other sizes than its probes': small ones, for numbers that a pencil can compute. Not: how it is built (building.py)."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from . import blocks, building, parameters, tasks
from .errors import FAILURES, Stop
from .parameters import Assignment
from .slots import Sizes
from .subject import Subject


def smaller(subject: Subject, values: dict[str, Any], own: dict[str, Any]) -> list[Subject]:
    """The same code at the smallest sizes that it can have, for a counter-example of few numbers, and since one size shows little; none
    where its sizes are its own, or its task has such numbers anyway. `values`, `own`: of its constructor (building.values_for)."""
    embed, heads, kv_heads, dim, _ = subject.sizes
    parts = tasks.TASKS[subject.task].parts
    if subject.task in tasks.PARTS or not (subject.task in tasks.LAYERS or {"rope", "backward", "dropout", "lm"} & {*parts}):
        return []
    if heads == 1 or subject.task not in tasks.LAYERS:
        sizes = [Sizes(3 if dim < embed else 2, 1, 1, 4 if "rope" in parts else 2)]
    else:  # groups show with two of two heads, the scale with a head of more than one number
        sizes = [Sizes(4, 2, 2 if kv_heads == heads else 1, 2)] + [Sizes(4, 4, 2, 1)] * (1 < kv_heads < heads and "rope" not in parts)
        sizes += [Sizes(6 * width, 6, 2, width) for width in (2 if "rope" in parts else 1,) if 1 < kv_heads < heads]  # groups of three
    found = []
    for one in sizes:
        with contextlib.suppress(Stop, *FAILURES):
            found.append(_at_sizes(subject, one, values, own))
    return [one for one in found if one is not None]


def _at_sizes(subject: Subject, sizes: Sizes, values: dict[str, Any], own: dict[str, Any]) -> Subject | None:
    """None where it cannot have them."""
    if subject.prototype is None:
        fixed = sizes.heads > 1 and not any(one.takes("num_heads") for one in subject.bindings.values())
        return None if fixed else dataclasses.replace(subject, sizes=sizes)
    kinds = {*building.settings_of(subject.thing).values()} if subject.kind == "class" else set()
    if not subject.assignments:
        return dataclasses.replace(subject, sizes=sizes) if subject.task == "dropout" else None
    if not kinds & {"embed", "config"} or (sizes.heads > 1 and not kinds & {"heads", "config"}):
        return None
    values = {**values, **sizes.known(), "hidden": 2}
    thing, given, _ = building.build(subject.thing, values, own, subject.people)
    mine, rest = parameters.collect(thing)
    shapes = {one.path: one.shape for one in mine + rest}
    if subject.task == "block":
        block = blocks.of_block(mine, rest)
        if block is None:
            return None
        sizes, mine = sizes._replace(hidden=block.hidden), block.rest
    if building.sizes_of(thing, mine, subject.task, values, given) != sizes._replace(hidden=0):
        return None
    assignments = []
    for label, slots, convention in subject.assignments:
        kept = [slot for slot in slots if slot.head is None or slot.head < sizes.heads_of(slot.letters[0])]
        assignments.append(Assignment(label, [slot._replace(shape=shapes[slot.path]) for slot in kept], convention))
    return dataclasses.replace(subject, prototype=thing, sizes=sizes, assignments=assignments)
