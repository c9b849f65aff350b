"""The tasks (tasks.txt): function contracts, classes by name, and how a task is guessed from a name and a signature.

Not: numbers of probes (the tool's).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from . import names


class Task(NamedTuple):
    """`functions` {name: [(argument, may be missing)]}, the task's own first; `tensors` {name: axes}; `sizes` {letter: size}."""

    name: str
    functions: dict[str, list[tuple[str, bool]]]
    classes: list[str]
    tensors: dict[str, list[str]]
    parts: list[str]
    sizes: dict[str, int]


def _read() -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    task = None
    for line in Path(__file__).with_name("tasks.txt").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("["):
            name = line[1 : line.index("]")]
            task = tasks[name] = Task(name, {}, [], {}, [], {"E": 18, "H": 3, "Hkv": 3, "d": 6})
        elif task is None:
            continue
        elif word == "function":
            function, *arguments = rest.split()
            task.functions[function] = [(argument.rstrip("?"), argument.endswith("?")) for argument in arguments]
        elif word == "class":
            task.classes.append(rest)
        elif word == "tensors":
            task.tensors.update({name: axes.split() for name, axes in re.findall(r"(\w+)\?? \[([^]]*)\]", rest)})
        elif word == "parts":
            task.parts.extend(rest.split())
        elif word == "sizes":
            task.sizes.update({letter: int(size) for letter, size in re.findall(r"(\w+) (\d+)", rest)})
    return tasks


TASKS = _read()


def _with(*parts: str) -> tuple[str, ...]:
    return tuple(task.name for task in TASKS.values() if set(parts) & set(task.parts))


FUNCTIONS = {task.name: task.functions for task in TASKS.values()}
SINGLE = tuple(name for name in _with("layer") if TASKS[name].sizes["H"] == 1)
LAYERS = _with("layer", "cache")
#: Tasks of q, k and v: no layer with parameters is one of them.
OF_QKV = _with("function", "flash", "linear")
#: Tasks whose formula has a causal mask in every probe.
CAUSAL = _with("always-causal")


def by_contract(name: str) -> str | None:
    """The task whose contract has this very name."""
    return next((task.name for task in TASKS.values() if name in task.functions or name in task.classes), None)


def says_causal(name: str) -> bool:
    found = names.key(name)
    return "causal" in found or ("masked" in found and "mask" in found)


def by_name(name: str) -> str | None:
    for task, functions in FUNCTIONS.items():
        if any(name.startswith(f"{function}_") for function in functions):
            return task
    return names.says_task(name)


def of_function(name: str, roles: dict[str, Any]) -> tuple[str, str] | None:
    """(task, why) of a function whose arguments mean `roles`, or None where they fit no task."""
    says = by_name(name)
    weights = {role for role in roles if role.startswith("W_")}
    signature = f"the arguments of {name}"
    if {"params", "tokens"} <= set(roles) or {"model", "tokens"} <= set(roles):
        return "lm", signature
    if {"q", "k", "v"} <= set(roles):
        for role, task in (("dout", "backward"), ("block_size", "flash"), ("positions", "rope"), ("training", "dropout")):
            if role in roles:
                return task, signature
        if names.key(name).startswith("linear"):
            return "linear", f"the name {name}"
        if says in ("flash", "linear", "causal", "sdpa"):
            return says, f"the name {name}"
        return "sdpa", signature
    if "x" in roles and "positions" in roles:
        return "rope", signature
    if not weights or not ({"x", "q", "k"} & set(roles)):
        return None
    for role, task in (("dout", "backward"), ("memory", "cross"), ("cache", "cache"), ("num_kv_heads", "gqa")):
        if role in roles:
            return task, signature
    if says in (*SINGLE, "mha", "cross", "cache", "gqa"):
        return says, f"the name {name}"
    if "num_heads" in roles:
        return "mha", signature
    if "W_qkv" in weights:
        return ("v3" if "W_o" in weights else "v2"), signature
    if "W_o" not in weights:
        return "v1", signature
    biases = any(role.startswith("b_") for role in roles)
    return ("v4" if biases or "mask" in roles else "single-head"), signature


def of_class(name: str, settings: set[str], roles: list[str]) -> tuple[str, str] | None:
    """(task, why) of a class by its name, its constructor's and its forward's arguments; single heads are told apart later, by
    their parameters (of_parameters)."""
    says = by_name(name)
    arguments = f"the arguments of {name}"
    attention_like = "att" in names.key(name) or says is not None or names.key(name) == "head"
    if says in OF_QKV and "x" in roles and not {"q", "k", "v"} & set(roles):
        if says == "linear":
            return None  # a layer around another formula: no task has it
        says = None
    if says in ("lm", "cache", "gqa", "cross", "mha", "dropout", "flash", "linear", "rope"):
        if says == "mha" and "kv_heads" in settings:
            return "gqa", arguments
        if says == "mha" and "memory" in roles:
            return "cross", arguments
        return says, f"the name {name}"
    if "tokens" in roles and "vocab" in settings:
        return "lm", arguments
    if not attention_like and not roles:
        return None
    if "kv_heads" in settings:
        return "gqa", arguments
    if "memory" in roles:
        return "cross", arguments
    if {"cache", "past_k"} & set(roles):
        return "cache", arguments
    if "heads" in settings:
        return "mha", arguments
    if {"q", "k", "v"} <= set(roles) and not ({"embed", "config"} & settings):
        drops = "dropout" in settings and "mask" not in roles and says != "sdpa"
        return ("causal" if says == "causal" else "dropout" if drops else "sdpa"), arguments
    if says in SINGLE:
        return says, f"the name {name}"
    if "x" in roles or {"q", "k", "v"} <= set(roles) or attention_like:
        return ("self-attention" if "head_dim" in settings else "v1"), arguments
    return None


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
