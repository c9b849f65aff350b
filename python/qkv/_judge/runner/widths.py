"""The width of a head that code of q, k and v has from elsewhere: a constant of its module, its constructor. Each probe has a width of
its own, which the constant and a new object are given. Not: that of layers (building.py), an argument of the call (calling.py)."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any

from . import building
from .contracts import names
from .contracts.tasks import OF_QKV
from .errors import People
from .frameworks import named


def of(thing: Any, task: str, values: dict[str, Any], own: dict[str, Any], people: People) -> dict[str, Any]:
    """For Subject.helpers: `widths`, (module's names, constant); `remade`, the object for a width. `values`, `own`: of the constructor."""
    if task not in (*OF_QKV, "dropout") or not isinstance(thing, (FunctionType, type)):
        return {}
    scope = vars(sys.modules.get(inspect.unwrap(thing).__module__, thing))
    found = [(scope, name) for name in sorted(named(thing) & scope.keys()) if type(scope[name]) is int and names.setting(name) == "head_dim"]
    kinds = building.settings_of(thing) if isinstance(thing, type) else {}
    alone = "heads" not in kinds.values()
    kept = {name for name, kind in kinds.items() if kind == "head_dim" or (kind == "embed" and alone)}
    if not kept or kept & own.keys():
        return {"widths": found}

    def remade(width: int) -> Any:
        sizes = {"head_dim": width, **({"embed": width} if alone else {})}
        return building.build(thing, {**values, **sizes}, own, people)[0]

    return {"widths": found, "remade": remade}
