"""Functions of arrays beside attention (softmax, norms, losses ...), and classes around them, which become functions of their contract's
arguments: which task they are, by name and arguments. Not: arguments of functions (match.py), calls (calling.py)."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from . import building, match, parameters
from .contracts import names
from .contracts.tasks import FUNCTIONS, PARTS, TASKS
from .errors import People, Stop
from .frameworks import arrays_in, is_module_class, to_numpy, torch_of
from .frameworks import named as names_in
from .match import arguments_of, required

#: Functions that draw a token.
_DRAWS = {"choice", "choices", "multinomial", "categorical", "Categorical"}
#: What a gated feed-forward part calls.
_GATED = {"silu", "swish"}
#: What a forward function kept for its gradient.
_KEPT = re.compile(r"cache|ctx|saved|context|memo|stash|缓存")
BACKWARD = re.compile(r"back|grad|bwd|vjp")


def named(name: str) -> str | None:
    """The task of a part that a name speaks of."""
    contract = next((task for task in PARTS if name in (*FUNCTIONS[task], *TASKS[task].classes)), None)
    found = contract or names.speaks_of("part", name)
    return found if found in PARTS else None


def contract_of(task: str, name: str, thing: Any) -> str | None:
    """The function of the task that a function fits; a name that speaks of gradients decides between several."""
    contracts = FUNCTIONS[task]
    fits = [one for one in contracts if match.readings(thing, dict(contracts[one]), TASKS[task].tensors, {})]
    backward = bool(BACKWARD.search(names.key(name)))
    fits.sort(key=lambda one: (one != name, one.endswith("_backward") != backward))
    return fits[0] if fits else None


def guess(name: str, thing: Any) -> str | None:
    """The task of a function or class; None where its name speaks of none or its arguments do not fit."""
    task = named(name)
    if isinstance(thing, type) and names.speaks_of("other", name) == "mlp" and "moe" not in names.key(name):
        task = "swiglu" if _GATED & {word.lower() for word in names_in(thing)} else task
    given = arguments_of(thing) if isinstance(thing, FunctionType) else []
    if task == "score-modifiers" and not any(names.among("given", one.name, ["slopes", "cap", "sinks", "table"]) for one in given):
        return None  # its own slopes or cap
    asked = [one.name for one in given if required(one) or one.default]
    if task == "cross-entropy" and "smooth" in " ".join([name, *asked]).lower():
        return None  # another loss
    if task is None or _draws(thing):
        return None
    if takes_cache(name, thing) and _gradient_of_x(task):
        return task
    fits = contract_of(task, name, thing) if isinstance(thing, FunctionType) else isinstance(thing, type) and _takes(thing, task)
    return task if fits else None


def takes_cache(name: str, thing: Any) -> bool:
    """Whether a gradient takes what its forward function kept: backward(dout, cache)."""
    backward = isinstance(thing, FunctionType) and BACKWARD.search(names.key(name))
    given = [one.name for one in arguments_of(thing) if required(one)] if backward else []
    kinds = [bool(names.among("given", one, ["dout"])) - bool(_KEPT.search(one.lower())) for one in given]
    return sorted(kinds) == [-1, 1]


def _gradient_of_x(task: str) -> str:
    """The function of a task that takes x and dout; empty where there is none."""
    return next((one for one, takes in FUNCTIONS[task].items() if {"x", "dout"} <= {*dict(takes)}), "")


def fitted(name: str, thing: Callable[..., Any], task: str, bindings: dict[str, Any]) -> tuple[str, Callable[..., Any]]:
    """(the function of the task that a function is, as one that takes its arguments); `bindings`: of the functions before it."""
    own = TASKS[task].own
    if takes_cache(name, thing) and (gradient := _gradient_of_x(task)):
        if own not in bindings:
            raise Stop(f"{name} takes what its forward function kept: the file as a whole is judged, without :{name}")
        return gradient, _with_cache(thing, bindings[own].function, task)
    return contract_of(task, name, thing) or own, thing


def _with_cache(backward: Callable[..., Any], forward: Callable[..., Any], task: str) -> Callable[..., Any]:
    """backward(dout, cache) as a function of its contract's arguments: `forward` makes the cache."""
    own = TASKS[task].own
    takes = match.readings(forward, dict(FUNCTIONS[task][own]), TASKS[task].tensors, {})[0]
    last = bool(_KEPT.search(arguments_of(backward)[1].name.lower()))
    flat = bool(re.search(r"\([A-Z]\w*, ?[A-Z]\w*\)", f"{forward.__doc__} {backward.__doc__}"))  # (N, D)

    def call(*args: Any, **kwargs: Any) -> Any:
        values = signature.bind(*args, **kwargs).arguments
        x = values["x"]
        values |= {name: values[name].reshape(-1, x.shape[-1]) for name in ("x", "dout") if flat}
        found = gradients(values)
        first, *others = found if isinstance(found, (tuple, list)) else (found,)
        return (first.reshape(x.shape), *others)

    def gradients(values: dict[str, Any]) -> Any:
        given = {name: 0 * values["gain"] if role == "bias" else values.get(role) for name, role in takes.items()}
        returned = forward(**{name: value for name, value in given.items() if value is not None})
        if not isinstance(returned, tuple) or len(returned) < 2:
            raise Stop(f"{backward.__name__} takes what {forward.__name__} kept, and {forward.__name__} returns one array alone")
        cache = returned[1] if len(returned) == 2 else returned[1:]
        return backward(values["dout"], cache) if last else backward(cache, values["dout"])

    signature = _signature((name, may) for name, may in FUNCTIONS[task][_gradient_of_x(task)] if not may or name in takes.values())
    call.__name__, call.__signature__, call.__module__ = backward.__name__, signature, backward.__module__  # type: ignore[attr-defined]
    call.__wrapped__ = backward  # type: ignore[attr-defined]  # the lines that are watched
    return call


def _signature(arguments: Iterable[tuple[str, bool]]) -> inspect.Signature:
    """Of (name, whether it may be missing)."""
    return inspect.Signature(
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, **({"default": None} if may else {})) for name, may in arguments
    )


def _draws(thing: Any) -> bool:
    """Whether a function returns a token that it draws, and no probabilities."""
    return isinstance(thing, FunctionType) and bool(_DRAWS & {*thing.__code__.co_names})


def unfit(name: str, task: str, thing: Any = None) -> str:
    """Why a name that speaks of a task is not judged."""
    if _draws(thing):
        return f"{name} draws a token: `{task}` asks for the probabilities before that, as a function of their own"
    contracts = " or ".join(f"{one}({', '.join(argument for argument, _ in FUNCTIONS[task][one])})" for one in FUNCTIONS[task])
    return f"{name} looks like the task {task}, but its arguments do not fit {contracts}: --map says which is which"


def _forward(cls: type) -> str | None:
    own = [one for one in ("forward", "__call__") if isinstance(vars(cls).get(one), FunctionType)]
    if own and _draws(vars(cls)[own[0]]):  # what it draws from
        own = [one for one in vars(cls)[own[0]].__code__.co_names if isinstance(vars(cls).get(one), FunctionType)]
    return own[0] if own else "forward" if is_module_class(cls) else None


def _takes(cls: type, task: str) -> dict[str, str | None]:
    """{argument of its call: of the contract}; empty where it does not fit."""
    method, contract = _forward(cls), FUNCTIONS[task][TASKS[task].own]
    if method is None:
        return {}
    first = contract[0][0]
    given = {name: name != first for name, _ in contract}
    ways = match.readings(getattr(cls, method), given, TASKS[task].tensors, {}, 1)
    return ways[0] if ways else {}


def function_of(cls: type, task: str, people: People, init: dict[str, Any], chosen: dict[str, str]) -> Callable[..., Any]:
    """The class as a function of the contract's arguments: but for numbers that its constructor and its call do not take."""
    contract, axes = dict(FUNCTIONS[task][TASKS[task].own]), TASKS[task].tensors
    takes, letters = _takes(cls, task), dict.fromkeys(letter for one in axes.values() for letter in one)
    if not takes:
        raise Stop(unfit(cls.__name__, task))
    numbers, choices = [name for name in contract if name not in axes], {}
    held = [name for name in contract if name in axes and name not in takes.values()]
    for one in arguments_of(cls):
        known = "config" if names.argument(one.name) == "params" else names.setting(one.name)
        meant = _meanings(one.name, numbers, letters) or ([f"its {known}"] if known in ("bias", "config") else [])
        choices[one.name] = meant or (names.among("given", one.name, held) if required(one) else []) or [None]
        if choices[one.name] == [None] and required(one) and one.name not in init:
            raise Stop(f"cannot tell what the argument {one.name} of {cls.__name__}(...) is: --init {one.name}=VALUE")
    way = min(itertools.product(*choices.values()), key=lambda way: len(way) - len({*way}))  # one meaning each, if that goes
    meanings = {name: meaning for name, meaning in zip(choices, way) if meaning}

    def call(*args: Any, **kwargs: Any) -> Any:
        values = signature.bind(*args, **kwargs).arguments
        sizes = {letter: size for name in values if name in axes for letter, size in zip(axes[name][::-1], values[name].shape[::-1])}
        torch = torch_of()

        read: list[Any] = []  # tensors that a dict of settings or of parameters gave

        def setting(name: str) -> Any:
            found = [one for meaning in _meanings(name, numbers, letters) for one in (sizes.get(meaning), values.get(meaning)) if one is not None]
            read.extend(() if found else [values[one] for one in names.among("given", name, held)])
            found = found or read[-1:]
            if not found:
                raise KeyError(f"{name}: not a usual name of a setting")
            return found[0]

        values.update({"its bias": True, "its config": names.ByName(setting)})
        given = {name: sizes.get(meaning, values.get(meaning)) for name, meaning in meanings.items()} | init
        given = {name: value for name, value in given.items() if value is not None}
        given |= {name: torch.nn.Linear(sizes["E"], sizes["F"], bias=False) for name, meaning in meanings.items() if meaning == "layer"}
        inputs = {name: values[role] for name, role in takes.items() if role in values}

        def made() -> tuple[Any, Callable[[dict[str, Any]], Any]]:
            thing = building.make(cls, dict(given), people)
            entries = [one for some in parameters.collect(thing) for one in some if not read]
            least = sum(np.prod(values[name].shape) for name in held if len(axes[name]) > 1 and not contract[name])
            if not read and sum(np.prod(one.shape) for one in entries if len(one.shape) > 1) < least:
                raise Stop(f"{cls.__name__} holds fewer matrices than the task {task} has: {', '.join(held)}")
            if task == "lora":
                mine = [to_numpy(parameters.get(thing, one.path)) for one in entries if names.among("given", names.stem(one.path), "AB")]
                call.begins = {bool(one.any()) for one in mine if len(mine) > 1}  # type: ignore[attr-defined]
            state = {one.path: _value_of(one, entries, thing, held, values, chosen) for one in entries}
            if is_module_class(cls) and cls.train is not torch.nn.Module.train:  # it may merge matrices in eval()
                thing.load_state_dict(state, strict=False)
                return thing, lambda inputs: copy.deepcopy(thing).train().eval()(**inputs)
            if is_module_class(cls):
                return thing, lambda inputs: torch.func.functional_call(thing.eval(), state, (), inputs)
            for path, value in state.items():
                parameters.put(thing, path, np.asarray(value), str(np.asarray(value).dtype))
            return thing, lambda inputs: getattr(thing, _forward(cls) or "")(**inputs)

        thing, forward = made()
        out = forward(inputs)
        shapes = {path: one.shape for path, one in arrays_in(thing).items()}
        if "always-causal" not in TASKS[task].parts or not shapes:
            return out
        forward(inputs)
        if shapes == {path: one.shape for path, one in arrays_in(thing).items()}:
            return out
        (first, whole), forward = next(iter(inputs.items())), made()[1]  # a state of tokens: all in two calls
        half = -(-whole.shape[-2] // 2)
        outs = [forward({**inputs, first: part}) for part in (whole[..., :half, :], whole[..., half:, :]) if part.shape[-2]]
        outs = call.outs = [one[0] if isinstance(one, tuple) else one for one in outs]  # type: ignore[attr-defined]
        return np.concatenate(outs, -2) if torch is None or not isinstance(outs[0], torch.Tensor) else torch.cat(outs, -2)

    known = {*held, *takes.values(), *meanings.values(), *(numbers if "its config" in meanings.values() else ())}
    signature = _signature((name, may) for name, may in contract.items() if name in known or not may)
    call.__name__, call.__signature__, call.__module__ = cls.__name__, signature, cls.__module__  # type: ignore[attr-defined]
    call.__wrapped__ = getattr(cls, _forward(cls) or "")  # type: ignore[attr-defined]  # the lines that are watched
    call.connected = is_module_class(cls) and cls.train is torch_of().nn.Module.train  # type: ignore[attr-defined]
    return call


def _meanings(name: str, numbers: list[str], letters: Iterable[str]) -> list[str]:
    """What a setting may be: a number of the contract, the size of an axis, a layer."""
    return names.among("given", name, numbers) or names.among("size", name, [*letters, "layer"])


def _value_of(
    one: parameters.Entry, entries: list[parameters.Entry], thing: Any, held: list[str], values: dict[str, Any], chosen: dict[str, str]
) -> Any:
    """Of one parameter: a tensor of the contract by name and shape, as [out, in] where it is a Linear's; a bias that the contract lacks
    is 0; a router's matrix turns x into the logits that are x."""

    gate = next((other.shape for other in entries if len(other.shape) == 2 and names.among("given", names.stem(other.path), ["W_gate"])), None)

    def shaped(name: str) -> Any:
        if gate and (name, one.shape == gate) in (("W_up", False), ("W_down", True)) and gate[0] != gate[1]:
            return None  # as w2 and w3 say either
        turned = values[name].T if values[name].ndim == 2 else None
        if tuple(values[name].shape) == one.shape and one.layout != "out_in":
            return values[name]
        return turned if turned is not None and tuple(turned.shape) == one.shape else None

    last = one.path.split(".")[-1]
    by_map = [name for name, theirs in chosen.items() if theirs in (one.path, one.path.removesuffix(".weight"))]
    for name in by_map or names.among("given", names.stem(one.path), held) + names.among("given", last, held):
        if (value := shaped(name)) is not None:
            return value
    fits = [name for name in held if shaped(name) is not None]
    if len(fits) == 1:
        return shaped(fits[0])
    like = next(iter(values.values()))
    if not fits and one.bias:
        return 0 * (like.new_zeros(one.shape) if hasattr(like, "new_zeros") else np.zeros(one.shape))
    if len(one.shape) == 2 and one.shape[0] == one.shape[1] and not held:
        return torch_of().eye(one.shape[0], dtype=like.dtype) if hasattr(like, "new_zeros") else np.eye(one.shape[0])
    raise Stop(f"cannot tell what the parameter {one.path} of {type(thing).__name__} is: --map NAME={one.path}")
