"""The width of a head that code of q, k and v has from elsewhere: a constant of its module, its constructor. Each probe has a width of
its own, which the constant and a new object are given. Not: that of layers (building.py), an argument of the call (calling.py)."""

from __future__ import annotations

import inspect
import math
import sys
from types import FunctionType
from typing import Any

from . import building
from .contracts import names
from .contracts.tasks import OF_WIDTHS
from .errors import People
from .frameworks import named


def of(thing: Any, task: str, values: dict[str, Any], own: dict[str, Any], people: People) -> dict[str, Any]:
    """For Subject.helpers: `widths`, (module's names, constant, the power of the width that it is); `remade`, the object for a width.
    `values`, `own`: of its constructor (values_for)."""
    if task not in OF_WIDTHS or not isinstance(thing, (FunctionType, type)):
        return {}
    scope = vars(sys.modules.get(inspect.unwrap(thing).__module__, thing))
    known = {value for name, value in scope.items() if type(value) is int and value > 1 and names.setting(name) == "head_dim"}
    found = []
    for name in sorted(named(thing) & scope.keys()):
        value = scope[name]
        if type(value) is int and names.setting(name) == "head_dim":
            found.append((scope, name, 1.0))
        elif isinstance(value, float):  # SCALE = HEAD_DIM**-0.5
            found += [(scope, name, power) for power in (-0.5, 0.5) if any(math.isclose(value, width**power) for width in known)]
    kinds = building.settings_of(thing) if isinstance(thing, type) else {}
    alone = "heads" not in kinds.values()
    kept = {name for name, kind in kinds.items() if kind == "head_dim" or (kind == "embed" and alone)}
    shared = [name for name, value in vars(thing).items() if type(value) is int and names.setting(name) == "head_dim"]
    if not (kept or shared) or kept & own.keys():
        return {"widths": found}

    def remade(width: int) -> Any:
        sizes = {"head_dim": width, **({"embed": width} if alone else {})}
        made = building.build(thing, {**values, **sizes}, own, people)[0]
        for name in shared:  # d_k of the class
            setattr(made, name, width)
        return made

    return {"widths": found, "remade": remade}
