"""What --map and --init name: refused where neither the task nor the code has it, never passed over in silence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from . import building
from .calling import ROLES, Binding
from .contracts import names
from .contracts.tasks import FUNCTIONS
from .errors import Stop
from .match import arguments_of

#: A matrix or a bias of a layer, or several in one.
_PARAMETER = re.compile("[Wb]_[qkvoamugd]+")


def is_parameter(name: str) -> bool:
    return _PARAMETER.fullmatch(name) is not None


def check_map(mapping: dict[str, str], task: str) -> None:
    """The contract's names, left of =."""
    contract = list(dict.fromkeys(name for one in FUNCTIONS[task].values() for name, _ in one))
    layer = any(is_parameter(name) or name == "params" for name in contract)
    for mine in mapping:
        if not (mine in contract or mine in ROLES or (layer and is_parameter(mine))):
            raise Stop(f"--map {mine}: the task {task} has no {mine}, but {', '.join(contract)}")
    twice = [theirs for theirs in mapping.values() if [*mapping.values()].count(theirs) > 1]
    if twice:
        raise Stop(f"--map gives {twice[0]} two names of the task")


def check_arguments(mapping: dict[str, str], bindings: Iterable[Binding], weights: bool) -> None:
    """The code's names, right of =; `weights`: those of parameters are an object's, and known already."""
    taken = list(dict.fromkeys(name for binding in bindings for name in binding.roles))
    for mine, theirs in mapping.items():
        if theirs not in taken and not (weights and is_parameter(mine)):
            raise Stop(f"--map names {theirs}, but the arguments are {', '.join(taken)}")


def check_init(init: dict[str, Any], cls: Any) -> None:
    """Arguments of the constructor, fields of its configuration, or sizes by their usual names."""
    if init and isinstance(cls, FunctionType):
        raise Stop(f"--init is for the constructor of a class: {cls.__name__} is a function")
    taken = []
    for one in arguments_of(cls) if isinstance(cls, type) else []:
        holder = building.annotated(cls, one)
        if holder is None and names.setting(one.name) == "config":
            return  # it has whatever it is asked for
        taken += [one.name, *(field.name for field in arguments_of(holder) if holder)]
    unknown = [name for name in init if name not in taken and names.setting(name) is None]
    if unknown and isinstance(cls, type):
        raise Stop(f"--init {unknown[0]}: {cls.__name__}(...) has no such argument, but {', '.join(taken) or 'none'}")
    if unknown:
        raise Stop(f"--init {unknown[0]}: not a usual name of a size, and the object is made already")
