"""Callables that are no plain functions, or hide what they take, as functions: a partial, a bound method, what a compiler or a cache
made of a function, a lambda that has a name, a decorator's `def inner(*args)`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from .contracts import tasks
from .frameworks import source_of


def unnamed(function: Any) -> bool:
    """Whether a callable takes `*args` and names nothing else that it takes."""
    try:
        kinds = {one.kind for one in inspect.signature(function).parameters.values() if one.name != "self"}
    except (TypeError, ValueError):
        return True  # a builtin, what torch.jit compiled
    return inspect.Parameter.VAR_POSITIONAL in kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _inner(thing: Any) -> Any:
    """The function that a callable calls: what a decorator's function without a name for its arguments holds, too."""
    if isinstance(thing, functools.partial):
        return thing.func
    if isinstance(thing, MethodType):
        return thing.__func__
    if isinstance(thing, FunctionType) and unnamed(thing):
        held = [cell.cell_contents for cell in thing.__closure__ or () if cell != type(cell)()]
        functions = [one for one in held if isinstance(one, FunctionType)]
        return functions[0] if len(functions) == 1 else None
    return getattr(thing, "__wrapped__", None)


def _unpacked(function: Any) -> list[str]:
    """The variables of `q, k, v = args`, in a function of `*args`."""
    found = re.search(r"def \w+\(\*(\w+).*\n(?:.*\n)*?\s+(\w+(?:, *\w+)+) = \1 *(?:#.*)?$", source_of(function), re.MULTILINE)
    return re.split(", *", found[2]) if found else []


def described(function: Any) -> Any:
    """What a function's arguments are to be read from: behind a decorator that names none."""
    if isinstance(function, MethodType):
        inner = described(function.__func__)
        return function if inner is function.__func__ else MethodType(inner, function.__self__)
    if isinstance(function, type) and isinstance(function.__init__, FunctionType) and unnamed(function.__init__):
        return MethodType(described(function.__init__), function)  # without self
    return (isinstance(function, FunctionType) and unnamed(function) and _inner(function)) or function


def hides(thing: Any) -> bool:
    """Whether a callable is one of these. Objects and classes are none: they are judged as what they are."""
    if isinstance(thing, FunctionType):
        return thing.__name__ == "<lambda>" or unnamed(thing)
    made = isinstance(thing, (functools.partial, MethodType, BuiltinFunctionType)) or hasattr(thing, "__wrapped__")
    made = made or type(thing).__name__ == "ScriptFunction"
    return made and callable(thing) and not isinstance(thing, (type, ModuleType))


def function_of(name: str | None, thing: Any, task: str | None, module: ModuleType | None) -> Any:
    """The same as a function of this name, or of its own; one that names no argument takes those that the contract requires, in its
    order."""
    if not hides(thing):
        return thing
    inner = thing
    while inner is not None and not (isinstance(inner, FunctionType) and not unnamed(inner)):
        inner = _inner(inner)
    name = name or getattr(inner or thing, "__name__", "<lambda>")
    if name == "<lambda>" and task:
        name = tasks.TASKS[task].own

    def called(*args: Any, **kwargs: Any) -> Any:
        return thing(*args, **kwargs)

    code = called.__code__.replace(co_filename=f"<{name}>")  # of no file
    called = FunctionType(code, vars(module) if module else {}, name, None, called.__closure__)
    taken: Any = inner if isinstance(thing, FunctionType) else thing
    if inner is not None or isinstance(thing, FunctionType):
        functools.update_wrapper(called, inner or thing)
    else:
        owner = getattr(thing, "__self__", None)
        called.__module__ = module.__name__ if module else getattr(owner, "__name__", type(owner).__module__)
    called.__name__ = called.__qualname__ = name
    if taken is None or unnamed(taken):
        contract = next((one[name] for one in tasks.FUNCTIONS.values() if name in one), None)
        contract = contract or (tasks.FUNCTIONS[task][tasks.TASKS[task].own] if task else {})
        given = _unpacked(thing) or [one for one, missing in dict(contract).items() if not missing]
        called.__signature__ = inspect.Signature([inspect.Parameter(one, inspect.Parameter.POSITIONAL_ONLY) for one in given])  # type: ignore[attr-defined]
    else:
        fixed = thing.keywords if isinstance(thing, functools.partial) else ()
        arguments = inspect.signature(taken).parameters.values()
        called.__signature__ = inspect.Signature([one for one in arguments if one.name not in fixed])  # type: ignore[attr-defined]
    return called


def file_of(thing: Any) -> str | None:
    """Where a function or class was written; None where that is not known."""
    try:
        return inspect.getsourcefile(inspect.unwrap(thing))
    except TypeError:
        return None


def assigned(module: ModuleType) -> Iterator[tuple[str, Any, bool]]:
    """(name, function, whether a `def` with a decorator made it) of what a file gives a contract's name, `sdpa = functools.partial(...)`,
    and of what a decorator made of a `def`, whatever its name: `@jax.jit`. An import gives none."""
    text = source_of(module)
    for name, value in vars(module).items():
        own = any(name in contract for contract in tasks.FUNCTIONS.values())
        found = re.search(rf"(?m)^(?:{name}\s*[:=]|(?:async )?def {name}\b)", text) if hides(value) else None
        if found and (own or ("def " in found[0] and not isinstance(value, FunctionType))):
            yield name, function_of(name, value, None, module), "def " in found[0]
