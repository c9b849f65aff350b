"""Calls a person's code: which argument is which, what comes back, where a cache lies. Not: what is asked for (answering.py)."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .contracts import names
from .contracts.tasks import CAUSAL, FUNCTIONS, LAYERS, OF_WIDTHS, PARTS, STEPPED, TASKS, TURNED
from .errors import Stop, plainly
from .frameworks import is_array, named, reads, source_of, to_numpy
from .match import arguments_of, readings, required, roles_of, ways

#: What forward() of a class takes, in order; others: x and a mask, or q, k, v and a mask.
_FORWARD = {"cross": ["x", "memory", "mask"], "lm": ["tokens"], **dict.fromkeys(STEPPED, ["x", "cache"]), "rope": ["x", "positions"]}
#: Rotations of q and k: where the task has none, they are given as one that turns nothing.
TURNS = ("turns", "cos", "sin")
#: Arguments that are given a value wherever a function has them.
_ALWAYS = {"mask", "causal", "num_heads", "num_kv_heads", "cache", "past_k", "past_v", "start", "use_cache", "window", "block_size",
           "base", "training", "model", "optimizer", "with_weights", "scale", "module", *TURNS}  # fmt: skip
#: What the scores are multiplied by, by the names of its argument.
SCALES = ("scale", "softmaxscale", "smscale", "scaling")
#: What Transformers' functions of q, k and v must be given beside them, and what that is here.
GIVEN = {"scale": "1/sqrt(d)", "module": "a layer's settings: no groups of heads, not training"}
#: What --map may name beside the arguments of a contract.
ROLES = {*_ALWAYS, "x", "q", "k", "v", "memory", "params", "positions", "tokens", "axis"}


#: What a class names that keeps keys and values itself, beside an argument that says where its tokens stand.
_KEEPS = {"start": "cache", "positions": r"kv_?cache|\bk_?cache|cache_?k\b"}


def resets_of(cls: type) -> list[str]:
    """Methods that empty what an object keeps."""
    return [name for name in vars(cls) if re.fullmatch("(?:reset|clear)(?:_?(?:kv)?_?(?:cache|state|buffers?))?", name)]


def keeps(thing: Any, method: str, roles: Iterable[str | None]) -> bool:
    """Whether an object keeps keys and values from call to call itself."""
    words = " ".join(named(thing)).lower()
    resets = isinstance(thing, type) and resets_of(thing) and re.search(_KEEPS["positions"], words)
    return method == "step" or bool(resets) or any(role in roles and re.search(kept, words) for role, kept in _KEEPS.items())


class Binding:
    """The arguments of one function or of forward(), each with its role."""

    def __init__(self, function: Callable, task: str, contract_name: str | None, chosen: dict[str, str]) -> None:
        self.function, self.task = function, task
        self.name = getattr(function, "__name__", type(function).__name__)
        self.parameters = arguments_of(function)
        by_name = {theirs: mine for mine, theirs in chosen.items()}
        self.roles: dict[str, str | None] = {
            name: by_name.get(name) or (task == "block" and names.meaning("block", name)) or role
            for name, role in roles_of(function).items()
        }
        self.notes: list[str] = []
        self.watch: Callable[..., Any] | None = None  # calls in the function's stead (trace/where.py)
        self.contract: dict[str, bool] = dict(FUNCTIONS[task][contract_name]) if contract_name else {}  # {argument: may be missing}
        self.readings: list[dict[str, str | None]] = []  # of a part: every way that names leave
        self.slices: Any = None  # of a part, whose functions may differ
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        self.compiled = hasattr(sys.modules.get("jax"), "disable_jit") and bool(re.search(r"\bjit\b", source_of(module)))
        self.ran = False
        self.turned = False  # of a part: its matrices are [out, in]
        if task in PARTS:
            self.readings = readings(function, self.contract, TASKS[task].tensors, by_name)
            self.roles = self.readings[0] if self.readings else dict.fromkeys(self.roles)
            return
        self._settle()

    def _required(self) -> list[inspect.Parameter]:
        return [one for one in self.parameters if required(one)]

    def _settle(self) -> None:
        """Roles that the task has no use for are dropped; what is required and has none is taken by position."""
        layered = self.task in LAYERS
        wanted = list(self.contract) or _FORWARD.get(self.task, ["x", "mask"] if layered else ["q", "k", "v", "mask"])
        masks = [name for name, role in self.roles.items() if role == "mask"]
        for extra in sorted(masks, key=lambda name: names.mask_kind(name) == "hides")[1:]:
            self.roles[extra] = None
        if "mask" not in self.roles.values() and self.contract and "causal" not in self.contract:  # a mask or a flag: only its author knows
            self.roles.update({one.name: None for one in self._required() if names.key(one.name) == "masked"})
        if layered and not {"x", "q"} & set(self.roles.values()):  # vectors of tokens
            self.roles = {name: "x" if role == "tokens" else role for name, role in self.roles.items()}
        if self.task == "dropout":  # what dropout keeps, drawn outside
            drawn = [name for name, role in self.roles.items() if role == "mask" and re.match("keep|drop", names.key(name))]
            self.roles.update(dict.fromkeys(drawn))
        if self.task == "flash":  # Bq, Bk
            self.roles = {name: "block_size" if role in ("b_q", "b_k") else role for name, role in self.roles.items()}
        keep = {*wanted, *_ALWAYS, *({"q", "k", "v", "params"} if layered else ()), *({"positions"} if self.task in STEPPED else ())}
        has_input = {"x", "q"} & set(self.roles.values())
        for one in self.parameters:
            role = self.roles[one.name] or ""
            matrix = role[:2] in ("W_", "b_") and (layered or required(one) or self.task not in OF_WIDTHS)  # or out=None
            if not (role in keep or matrix or (role == "splits" and required(one))):
                self.roles[one.name] = None
            if self.roles[one.name] is None and self.task in OF_WIDTHS and names.setting(one.name) == "head_dim":
                self.roles[one.name] = "head_dim"  # of each probe
        for one in self._required() if self.contract else []:
            own = "scale" if names.key(one.name) in SCALES else one.name
            if self.roles[one.name] is None and own in GIVEN:
                self.roles[one.name] = own
                self.notes.append(f"{one.name} was given {GIVEN[own]}")
        # What may be missing is never taken by position: a mask's True says nothing without a name.
        never = {"mask", *self.roles.values(), *(name for name, missing in self.contract.items() if missing)}
        free = [name for name in wanted if name not in never and not (name == "x" and has_input)]
        for theirs, role in next(ways([one.name for one in self._required() if self.roles[one.name] is None], free)):
            self.roles[theirs] = role
            self.notes.append(f"the argument {theirs} of {self.name} was taken for {role}")
        for one in self._required() if self.task == "backward" else []:  # what the forward pass gave
            if self.roles[one.name] is None:
                self.roles[one.name] = names.meaning("returned", one.name)

    def check(self) -> None:
        """Raises Stop where an argument that must be given is not understood; a second mask may be None."""
        for one in self._required():
            if self.roles[one.name] is None and names.argument(one.name) != "mask":
                example = next((name for name in (*self.contract, "mask") if name not in self.roles.values()), "x")
                raise Stop(f"argument {one.name} of {self.name} is not understood: give it a default, or --map {example}={one.name}")

    def on(self, target: Any, method: str) -> Binding:
        """The same arguments on another object of the class."""
        other = copy.copy(self)
        other.function = target if method in ("forward", "__call__") and callable(target) else getattr(target, method)
        return other

    def unread(self) -> list[str]:
        """Keys and values that the code takes and never reads."""
        return [name for name, role in self.roles.items() if role in ("k", "v") and not reads(self.function, name)]

    def untried(self, masks: bool) -> list[str]:
        """What the code reads, and is never given, or as what does nothing: optional arguments without a role, but for an epsilon;
        rotations; with no `masks`, its mask too."""
        without = {None} if masks else {None, "mask"}
        if self.task not in CAUSAL and not any("causal" in dict(contract) for contract in FUNCTIONS[self.task].values()):
            without.add("causal")
        idle = () if self.task in TURNED else TURNS
        unread = self.unread() if len(self.unread()) > 1 else []
        return unread + [
            one.name
            for one in self.parameters
            if (self.roles[one.name] in without and not required(one) or self.roles[one.name] in idle)
            and not (isinstance(one.default, float) and 0 < one.default < 1e-3)
            and reads(self.function, one.name)
        ]

    def kept_defaults(self) -> tuple[str, ...]:
        """Arguments whose default is a dict, a list or an object of the person's class that the code puts things into."""
        puts = r"(?:\[[^\]\n]*\]\s*(?:,[^=\n]*)?=[^=]|\.(?:append|extend|update|setdefault)\()"
        home = getattr(self.function, "__module__", "")
        own = [one.name for one in self.parameters if isinstance(one.default, (dict, list)) or type(one.default).__module__ == home]
        return tuple(name for name in own if re.search(rf"\b{name}{puts}", source_of(self.function)))

    def takes(self, role: str) -> bool:
        return role in self.roles.values()

    def argument(self, role: str) -> str:
        return next(name for name, other in self.roles.items() if other == role)

    def requires(self, role: str) -> bool:
        return any(self.roles[one.name] == role for one in self._required())

    def __call__(self, values: dict[str, Any]) -> Any:
        """Calls with the values of roles; an argument without a value keeps its default, or is None where it has none."""
        values = dict(values)
        if "x" in values and self.task in LAYERS:
            values.setdefault("q", values["x"])
            for role in ("k", "v"):
                values.setdefault(role, values.get("memory", values["x"]))
        if "q" in values and "x" not in values:
            values["x"] = values["q"]
        args, kwargs, gap = [], {}, False
        for one in self.parameters:
            role = self.roles[one.name]
            if role not in values and not required(one):
                gap = True
                continue
            value = values.get(role or "")
            if one.kind is one.KEYWORD_ONLY or gap:
                kwargs[one.name] = value
            else:
                args.append(value)
        watched = self.watch and functools.partial(self.watch, self.function, args, kwargs)
        call = watched or functools.partial(self.function, *args, **kwargs)
        with plainly():
            if self.ran and self.compiled:  # each probe has other sizes, and would be compiled anew for seconds
                with contextlib.suppress(Exception), sys.modules["jax"].disable_jit():
                    return call()
            result = call()
        self.ran = True
        return result


def attributes(thing: Any) -> dict[str, Any]:
    """Of an object, or of its slots."""
    slots = [name for name in getattr(type(thing), "__slots__", ()) if hasattr(thing, name)]
    return {**{name: getattr(thing, name) for name in slots}, **getattr(thing, "__dict__", {})}


class Result:
    """What a call gave: `out`, `weights` or None, and `raw` as returned."""

    def __init__(self, raw: Any, expected: tuple[int, ...], behind: bool = False) -> None:
        """`behind`: the weights come first, also where they have the shape of `out`."""
        self.raw, self.behind = raw, behind
        self.out, self.weights, self.weights_first = None, None, False
        self.rest: list[Any] = []
        if is_array(raw):
            self.out = raw
        elif isinstance(raw, (tuple, list)) and raw:
            self._sequence(list(raw), expected)
        elif isinstance(raw, dict):
            self._named(raw)
        elif raw is not None:
            self._named(attributes(raw))

    def _sequence(self, values: list[Any], expected: tuple[int, ...]) -> None:
        order = [index for index, value in enumerate(values) if is_array(value)]
        if not order:
            return
        shaped = [index for index in order if tuple(values[index].shape) == expected] or order[:1]
        first = shaped[-1 if self.behind else 0]
        self.out = values[first]
        self.rest = values[:first] + values[first + 1 :]
        if expected and len(expected) >= 3:
            arrays = [value for value in self.rest if is_array(value) and len(value.shape) in (3, 4) and tuple(value.shape) != expected[:-1]]
            arrays = [value for value in arrays if value.shape[-1] > 1]  # no maximum or sum of each row
            self.weights = next((one for one in arrays if (one.shape[0], one.shape[-2]) == (expected[0], expected[-2])), None)
            self.weights_first = first > 0 and self.weights is values[0]

    def _named(self, values: dict[str, Any]) -> None:
        arrays = {names.key(str(name)): value for name, value in values.items() if is_array(value)}
        self.out = names.first("out", arrays) if names.first("out", arrays) is not None else next(iter(arrays.values()), None)
        weights = names.first("weights", arrays)
        self.weights = None if weights is self.out else weights
        self.rest = [value for value in values.values() if value is not self.out]


def array_of(value: Any, precision: str | None) -> np.ndarray:
    """As an answer holds it: float32 or float64. Raises Stop for what is no array of real numbers."""
    array = to_numpy(value)
    if isinstance(value, np.ma.MaskedArray) or array.dtype.kind not in "fiub":
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else f"an array of {array.dtype}"
        raise Stop(f"the code must return arrays of real numbers: it returned {kind}")
    if array.dtype not in (np.float32, np.float64):  # integers, np.longdouble
        array = array.astype(np.float64)
    return array.astype(precision) if precision else array


def beginnings(binding: Binding) -> list[Any]:
    """What an empty cache may be: an object of the annotated class, or of one that is called so; None, an empty dict, an empty list."""
    if not binding.takes("cache"):
        return [None]
    annotation = inspect.signature(binding.function).parameters[binding.argument("cache")].annotation
    scope = getattr(getattr(binding.function, "__func__", binding.function), "__globals__", {})
    cls = scope.get(annotation) if isinstance(annotation, str) else annotation
    classes = [one for name, one in scope.items() if isinstance(one, type) and "cache" in name.lower()]
    made: list[Any] = []
    for one in [cls] if isinstance(cls, type) and cls is not inspect.Parameter.empty else classes:
        if one.__module__ not in ("builtins", "torch"):
            with contextlib.suppress(Exception):  # a class that needs arguments cannot be made here
                made.append(one())
    return [*made, None, {}, []]


def after(binding: Binding, result: Result, before: Any) -> Any:
    """The state for the next call."""
    rest = list(result.rest)
    if binding.takes("past_k"):
        return tuple(rest[-2:]) if len(rest) >= 2 else before
    if len(rest) == 2 and all(hasattr(one, "shape") for one in rest) and tuple(rest[0].shape) == tuple(rest[1].shape):
        return tuple(rest)  # keys and values
    pairs = [one for one in rest if type(one) is tuple and one and all(map(is_array, one))]  # beside weights
    return (pairs or rest or [before])[-1]


def step_values(binding: Binding, values: dict[str, Any], state: Any, start: int) -> dict[str, Any]:
    """The values of one call, with the state in whatever arguments it has."""
    values = {**values, "start": start, "use_cache": True}
    if binding.takes("past_k"):
        values["past_k"], values["past_v"] = state if state else (None, None)
    elif binding.takes("cache"):
        values["cache"] = state
    return values
