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


def _read_guesses() -> dict[str, list[tuple[list[str], bool, list[str]]]]:
    """{function or class: [(tasks, by name, words)]}."""
    guesses: dict[str, list[tuple[list[str], bool, list[str]]]] = {}
    for line in Path(__file__).with_name("guesses.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rows = guesses.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            found, _, words = line.partition(":")
            rows.append((found.removesuffix(" by name").split(), found.endswith(" by name"), words.split()))
    return guesses


_GUESSES = _read_guesses()


def _guess(kind: str, name: str, says: str | None, facts: set[str]) -> tuple[str, str] | None:
    facts = {*facts, f"={says}"}
    for found, by_name, words in _GUESSES[kind]:
        if (says in found or not by_name) and all(word[1:] not in facts if word[0] == "-" else word in facts for word in words):
            return (says, f"the name {name}") if by_name and says else (found[0], f"the arguments of {name}")
    return None


def of_function(name: str, roles: dict[str, Any]) -> tuple[str, str] | None:
    """(task, why) of a function whose arguments mean `roles`, or None where they fit no task."""
    facts, says = set(roles), by_name(name)
    if {"q", "k", "v"} <= facts and names.key(name).startswith("linear"):
        says = "linear"
    if {"x", "q", "k"} & facts and any(role.startswith("W_") for role in roles):
        facts |= {"weights"} | ({"biases"} if any(role.startswith("b_") for role in roles) else set())
    return _guess("function", name, says, facts)


def of_class(name: str, settings: set[str], roles: list[str]) -> tuple[str, str] | None:
    """(task, why) of a class by its name, its constructor's and its forward's arguments; single heads are told apart later, by
    their parameters (of_parameters)."""
    facts, says = {*roles, *(f".{one}" for one in settings)}, by_name(name)
    if "att" in names.key(name) or says is not None or names.key(name) == "head":
        facts.add("like")
    if says in OF_QKV and "x" in roles and not {"q", "k", "v"} & facts:
        if says == "linear":
            return None  # a layer around another formula: no task has it
        says = None
    return _guess("class", name, says, facts | ({"some"} if roles or "like" in facts else set()))


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
