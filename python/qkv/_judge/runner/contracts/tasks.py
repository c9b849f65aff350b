"""The tasks (tasks.txt): contracts of functions, classes by name. Not: which of them code is (match.py), numbers of probes (the tool's)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """`functions` {name: [(argument, may be missing)]}, the task's own first, `returns` {name: its answers}; `tensors` {name: axes}, of
    which `whole` are whole numbers; `sizes` {letter: size}; `probes` as they are written."""

    name: str
    functions: dict[str, list[tuple[str, bool]]]
    classes: list[str]
    tensors: dict[str, list[str]]
    parts: list[str]
    sizes: dict[str, int]
    returns: dict[str, list[str]]
    whole: set[str]
    probes: list[str]

    @property
    def own(self) -> str:
        """The function that the task is named for."""
        return next(iter(self.functions))


def _read() -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    task = None
    for line in Path(__file__).with_name("tasks.txt").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("["):
            name = line[1 : line.index("]")]
            task = tasks[name] = Task(name, {}, [], {}, [], {"E": 18, "H": 3, "Hkv": 3, "d": 6}, {}, {"positions", "tokens"}, [])
        elif task is None:
            continue
        elif word == "function":
            contract, _, outputs = rest.partition(" -> ")
            function, *arguments = contract.split()
            task.returns[function] = outputs.split() or ["out"]
            task.functions[function] = [(argument.rstrip("?"), argument.endswith("?")) for argument in arguments]
        elif word == "class":
            task.classes.append(rest)
        elif word == "tensors":
            task.tensors.update({name: axes.split() for name, axes in re.findall(r"(\w+)\?? \[([^]]*)\]", rest)})
            task.whole.update(re.findall(r"(\w+)\?? \[[^]]*\] <", rest))
        elif word == "probe":
            task.probes.append(rest)
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
#: Layers that are called again and again, with a state of keys and values; of these, those that turn queries and keys.
STEPPED, TURNED = _with("cache"), _with("llama")
#: Functions of arrays beside attention, whose probes are written in tasks.txt.
PARTS = tuple(task.name for task in TASKS.values() if task.probes and task.name not in LAYERS)
#: Of these, what attention uses.
BESIDE = tuple(name for name in PARTS if "values" not in TASKS[name].parts)
#: Tasks of q, k and v: no layer with parameters is one of them.
OF_QKV = _with("function", "flash", "linear")
#: The same, and dropout of their weights: each probe has a width of its own.
OF_WIDTHS = (*OF_QKV, "dropout")
#: Tasks that are asked with masks.
MASKED = _with("mask")
#: Tasks whose formula has a causal mask in every probe.
CAUSAL = _with("always-causal")
