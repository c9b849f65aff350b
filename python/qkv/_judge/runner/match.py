"""The one matcher of what a person's code has with what a contract wants, by name, by shape, in order: of arguments (calling.py),
settings (building.py) and parameters (parameters.py). Not: how a call goes (calling.py)."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import plain
from .contracts import names
from .contracts.tasks import FUNCTIONS, PARTS, SINGLE, TASKS, Task
from .frameworks import dicts_of, source_of


def arguments_of(function: Any) -> list[inspect.Parameter]:
    """What a function or constructor takes by name; nothing where it cannot be read."""
    try:
        found = list(inspect.signature(plain.described(function)).parameters.values())
    except (TypeError, ValueError):
        return []
    return [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def setting_of(one: inspect.Parameter) -> str | None:
    """What a constructor's argument is: by its name; `mask=False` asks for a causal mask."""
    return "causal" if isinstance(one.default, bool) and names.key(one.name) == "mask" else names.setting(one.name)


def roles_of(function: Any) -> dict[str, str | None]:
    """{argument: what its name says}; one that says nothing and is indexed with strings holds parameters."""
    dicts, arguments = dicts_of(function), arguments_of(function)
    roles = {one.name: names.argument(one.name) for one in arguments}
    if [name for name in roles if name != "self"][:1] == ["h"] and not {"x", "q"} & {*roles.values()}:  # hidden states, no number
        roles["h"] = "x"
    for one in arguments:
        stores = one.name in dicts and re.search(rf"\b{one.name}\[[^\]\n]*\]\s*(?:,[^=\n]*)?=[^=]", source_of(function))
        grows = stores or (names.key(one.name) in ("kv", "kvs") and _grows(function, one.name))
        if one.default is None and "x" in roles.values() and grows and "cache" not in roles.values():
            roles[one.name] = "cache"
        if roles[one.name] == "positions" and (one.annotation in (int, "int") or isinstance(one.default, int)):
            roles[one.name] = "start"
    holders = {one.name for one in arguments if roles[one.name] in (None, "p") and _is_dataclass(function, one)}
    return {name: "params" if name in holders or (role in (None, "p") and name in dicts) else role for name, role in roles.items()}


def _is_dataclass(function: Any, one: inspect.Parameter) -> bool:
    """Whether an argument's annotation is a class of fields."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    hint = getattr(module, one.annotation, None) if isinstance(one.annotation, str) else one.annotation
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


def _grows(function: Any, name: str) -> bool:
    """Whether code reads parts of an argument and puts something behind them, as behind a cache's."""
    text = source_of(function)
    return bool(re.search(rf"\b{name}(?:\[|\.\w)", text) and re.search(r"\b(?:cat|concat\w*|append|[hv]stack)\(", text))


def one_kv_head(name: str, thing: Any) -> bool:
    """Whether a name says that all heads share their keys and values, and no argument says how many do."""
    return bool(re.search("multi_?query|mqa", name)) and "num_kv_heads" not in roles_of(thing).values()


def heads_in(source: str) -> list[tuple[str, int]]:
    """Numbers that code has where a layer's columns become heads: view(B, T, 8, C // 8), view(B, -1, 8, 64)."""
    apart = re.findall(r"\b(\d+)\s*,\s*[\w.\[\]]+\s*//\s*\1\b", source)
    both = re.findall(r"\b(?:view|reshape)\([^()\n]*-1\s*,\s*(\d+)\s*,\s*(\d+)\s*\)", source)
    return [("heads", int(one)) for one in apart] + [(kind, int(n)) for one in both for kind, n in zip(("heads", "head_dim"), one)]


def required(one: inspect.Parameter) -> bool:
    return one.default is one.empty


def ways(
    unnamed: Sequence[Any], wanted: Sequence[Any], fits: Callable[[Any, Any], bool] = lambda one, meaning: True
) -> Iterator[list[tuple[Any, Any]]]:
    """Every way to take what no name explains for what is still wanted and fits: pairs, in order first."""
    for order in itertools.permutations(wanted, min(len(unnamed), len(wanted))):
        pairs = list(zip(unnamed, order))
        if all(fits(one, meaning) for one, meaning in pairs):
            yield pairs


def readings(
    function: Any, contract: dict[str, bool], tensors: Iterable[str], chosen: dict[str, str], bound: int = 0
) -> list[dict[str, str | None]]:
    """Every way to take arguments for those of a contract {argument: may be missing} of arrays: each by its words, and one that no
    word of the task explains for the one that is left, or for all of them where it is a dict. Empty: they do not fit."""
    found, wanted = [], [*contract, "axis", "causal"]
    dicts, arguments = dicts_of(function), arguments_of(function)[bound:]
    choices = [
        [chosen[one.name]] if one.name in chosen
        else names.among("given", one.name, wanted) or ["params" if one.name in dicts else None]
        for one in arguments
    ]
    for roles in itertools.product(*choices):
        taken = [role for role in roles if role]
        missing = [role for role, may in contract.items() if not may and role not in taken and "params" not in taken]
        open_ones = [n for n, role in enumerate(roles) if role is None and required(arguments[n])]
        if len(set(taken)) < len(taken) or len(open_ones) != len(missing) or len(missing) > 1:
            continue
        if any(names.among("given", arguments[n].name, [*tensors, "p"]) for n in open_ones):
            continue  # another tensor, or probabilities where logits are meant
        roles = [missing[0] if n in open_ones else role for n, role in enumerate(roles)]
        found.append(dict(zip([one.name for one in arguments], roles)))
    return found


_CAUSAL = re.compile(r"^\W*(?:(?!(?:non|not|no|unlike|without|optional\w*)\b)[\w-]+\s+){0,3}causal\b[\w -]{0,30}?attention|^\W*因果", re.IGNORECASE)


def says_causal(name: str, roles: Iterable[str | None], thing: Any = None) -> bool:
    """"masked" says it of what takes no mask; a docstring that begins with it too."""
    found, begins = names.key(name), _CAUSAL.search(getattr(thing, "__doc__", None) or "")
    return "causal" in found or ("mask" not in roles and ("masked" in found or bool(begins)))


_OTHER = {
    "norm": "is a normalisation that no exercise asks for; the nearest are `layernorm` and `rmsnorm`",
    "mlp": "is a feed-forward part that no exercise asks for; the nearest is `swiglu`",
    "block": "is not what `block` asks for: a block of one sequence x, with norms and a feed-forward part",
    "layer": "is a layer that attention is made of; the nearest exercise is `lora`",
}


def other_than(name: str) -> str:
    """What a class is, by its name, that no exercise asks for, and the nearest that does; "" for attention."""
    return "" if "att" in names.key(name) else _OTHER.get(names.speaks_of("other", name) or "", "")


def refused(name: str) -> str:
    """Why nothing is judged by this name, where that can be said."""
    around = "is a layer around linear attention that no exercise asks for; the nearest is `linear`, a function of q, k and v"
    return other_than(name) or (around if re.match("linear.*att", names.key(name)) else "")


def is_block(name: str) -> bool:
    return names.speaks_of("other", name) == "block" and bool(other_than(name))


def by_name(name: str, roles: Iterable[str | None] = ()) -> str | None:
    for task, functions in FUNCTIONS.items():
        if task not in PARTS and any(name.startswith(f"{function}_") for function in functions):
            return task
    says = names.speaks_of("task", name)
    return None if says == "causal" and not says_causal(name, roles) else says


#: What a call is about: without it there is no call of this task.
_INPUTS = {"x", "q", "k", "v", "positions", "dout", "tokens", "params", "W_"}
#: What no other task has: an argument that a contract lacks and that tells of another one.
_TELLING = {"dout": 24, "memory": 16, "window": 16, "cache": 14, "num_kv_heads": 12, "num_heads": 12, "block_size": 12, "training": 12,
            "positions": 10,
            "W_o": 3, "W_qkv": 2, "mask": 2, "b_": 1}  # fmt: skip
#: What may stand in the code and not among its arguments.
_INSIDE = {"b_", "W_o", "W_qkv", "num_heads", "block_size", "p", "lr", "head_dim"}


def _features(arguments: Iterable[str]) -> set[str]:
    """Arguments without the difference between W_q, W_k and W_v: "W_", "W_qkv", "W_o", "b_" stand for them."""
    found = set()
    for one in arguments:
        one = {"model": "params", "past_k": "cache"}.get(one, one)
        if one in ("W_qkv", "params"):
            found |= {one, "W_"}
        elif one[:2] in ("W_", "b_") and one != "W_o":
            found.add(one[:2])
        else:
            found.add(one)
    return found


def _score(task: Task, contract: list[tuple[str, bool]], features: set[str], of_class: bool) -> float:
    """How well what the code has fits a contract: 0 where it is the very same, -inf where an input is missing."""
    wanted, optional = _features(name for name, _ in contract), {name for name, may in contract if may and name != "cache"}
    if of_class:  # its parameters are not known yet
        wanted -= {"b_", "W_o", "W_qkv"}
        wanted |= {"head_dim"} if "narrow" in task.parts else set()
    given = features - ({"q", "k", "v"} if "x" in wanted and "W_" in wanted else set())
    if "x" in wanted and given != features:
        given.add("x")
    missing, extra = wanted - given - optional, given - wanted
    if missing & _INPUTS - ({"positions"} if of_class else set()) or ("training" in missing and not of_class):
        return -math.inf
    costs = {**_TELLING, "cache": 4, "training": 0, "positions": 0, "head_dim": 4, "p": 1, "W_": 2} if of_class else _TELLING
    return -sum(1 if one in _INSIDE else 4 for one in missing) - sum(costs.get(one, 0) for one in extra)


def fitting(name: str, features: Iterable[str], of_class: bool = False) -> str | None:
    """The task of the contract that arguments fit best, those of a class's constructor and its call together; a name that speaks of
    a task decides between contracts that fit about as well. None where they fit none."""
    known, says = _features(features), by_name(name, features)
    if "tokens" in known and not known & {"x", "q", "lr", "model"} and not of_class:  # vectors
        known = known - {"tokens"} | {"x"}
    if {"q", "k", "v"} <= known and names.key(name).startswith("linear"):
        says = "linear"
    says = "gqa-cache" if says == "gqa" and "cache" in known else says
    best, top = None, -math.inf
    for task in [task for task in TASKS.values() if task.name not in PARTS]:
        for contract in task.functions.values():
            score = _score(task, contract, known, of_class) + ((11 if of_class else 8) if task.name == says else 0)
            if score > top:
                best, top = task.name, score
    return best


#: What a class's settings tell of its call.
_SETTINGS = {"heads": ["num_heads"], "kv_heads": ["num_kv_heads"], "window": ["window"], "dropout": ["p", "training"], "head_dim": ["head_dim"],
             "vocab": ["params"], "embed": ["W_"], "config": ["W_"]}  # fmt: skip


def of_class(name: str, settings: set[str], roles: set[str]) -> str | None:
    """The task of a class by its name, its constructor's and its forward's arguments; single heads are distinguished later, by
    their parameters (of_parameters)."""
    says, found = by_name(name, roles), names.key(name)
    if is_block(name) and "x" in roles and "memory" not in roles:
        return "block"
    if other_than(name) or (not roles and says is None and "att" not in found and found != "head"):
        return None
    inputs = roles & {"x", "q", "k", "v", "tokens"}
    if says == "linear" and "x" in inputs and len(inputs) == 1:
        return None  # a layer around another formula: no task has it
    if "tokens" in roles and not inputs - {"tokens"} and "att" in found:  # vectors of tokens
        roles = roles - {"tokens"} | {"x"}
    features = roles - ({"mask"} if "x" in roles else set()) | {one for setting in settings for one in _SETTINGS.get(setting, [])}
    features |= {"W_"} if inputs <= {"x"} or features & {"num_heads", "num_kv_heads", "memory", "cache", "past_k"} else set()
    features |= {"tokens", "params"} if says == "lm" else set()
    return fitting(name, features | (set() if inputs else {"x"}), True)


def of_parameters(task: str, *, named: bool, merged: bool, output: bool, masked: bool, causal: bool, square: bool) -> str:
    """Which of the single heads a class is, now that its parameters are known; `named`: its name says so already."""
    if task not in SINGLE or task == "single-head":
        return task
    if not square and not output:
        return "self-attention"
    if causal and not named:
        return "single-head"
    if merged:
        return "v3" if output or masked or task in ("v3", "v4") else "v2"
    return "v4" if output or masked or task in ("v3", "v4") else "v1"
