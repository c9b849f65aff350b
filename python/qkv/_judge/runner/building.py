"""Makes an object of a person's class: arguments of the constructor by the usual names, or by --init; sizes as they came out, and the
same object at other sizes. Not: parameters (parameters.py), calls (calling.py)."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from . import blocks, parameters
from .contracts import names
from .contracts.tasks import CAUSAL, LAYERS, PARTS, SINGLE, STEPPED, TASKS, TURNED
from .errors import FAILURES, People, Stop, plainly
from .frameworks import code_of, framework_of, from_numpy, is_array, is_module, modules_in, named, parts_of, source_of, torch_of
from .match import arguments_of, heads_in, required, setting_of, ways
from .slicing import FULL_BATCH
from .slots import Sizes, numbers
from .subject import Subject

DEFAULTS = {"dropout": 0.25, "context": 64, "vocab": 11, "base": 10000.0, "batch_first": True, "batch": FULL_BATCH, "device": "cpu",
            "bias": True, "tile": 3}  # fmt: skip


def _settings(values: dict[str, Any]) -> names.ByName:
    """A configuration: config.n_embd, config["emb_dim"], "bias" in config."""

    def find(name: str) -> Any:
        kind = names.setting(name)
        if kind is None or values.get(kind) is None:
            raise KeyError(f"{name}: not a usual name of a setting; --init {name}=...")
        return values[kind]

    return names.ByName(find)


def values_for(task: str, init: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """({setting: value}, --init by their own names): the sizes of a task, changed by --init."""
    sizes, parts = TASKS[task].sizes, TASKS[task].parts
    values = {**DEFAULTS, "embed": sizes["E"], "heads": sizes["H"], "kv_heads": sizes["Hkv"], "head_dim": sizes["d"],
              "causal": task in CAUSAL, "window": 3 if "windowed" in parts else None,
              "turned": task in TURNED, "tiled": "flash" in parts, **({"hidden": sizes["F"], "ratio": 2} if "F" in sizes else {})}  # fmt: skip
    own: dict[str, Any] = {}
    for name, value in init.items():
        if isinstance(value, str):
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
        own[name] = value
        if kind := names.setting(name):
            values[kind] = value
    given = {names.setting(name) for name in init}
    if "heads" in given and "kv_heads" not in given and "grouped" not in parts:
        values["kv_heads"] = values["heads"]
    _check(values, ("embed", "heads", "kv_heads"))
    if "head_dim" not in given and task != "self-attention":
        if values["embed"] % values["heads"]:
            raise Stop(f"--init: embed {values['embed']} must be a multiple of heads {values['heads']}")
        values["head_dim"] = values["embed"] // values["heads"]
    _check(values, ("head_dim",))
    if task == "rope":  # what is made for it turns heads
        values |= {"embed": values["head_dim"], "context": 256}
    return values, own


def fix_by_module(values: dict[str, Any], cls: type, module: Any, task: str) -> None:
    """Sizes that a class has from its module ("n_embd = 32") and not from its constructor."""
    if module is None or ({"embed", "config"} if task != "block" else {"config"}) & set(settings_of(cls).values()):
        return
    numbers = {name: value for name, value in vars(module).items() if type(value) is int}
    embed = next((numbers[name] for name in sorted(named(cls) & numbers.keys()) if names.setting(name) == "embed"), None)
    if embed is None:
        return
    found = {names.setting(name): value for name, value in numbers.items()}
    heads = 1 if task in SINGLE else found.get("heads") or next(count for count in (4, 3, 2, 1) if embed % count == 0)
    narrow = task in SINGLE and embed % 4 == 0 and "head_dim" in settings_of(cls).values()  # so that d is not E
    values.update(embed=embed, heads=heads, kv_heads=heads, head_dim=embed // (4 if narrow else heads))
    _check(values, ("embed", "heads", "head_dim"))


def _constants(thing: Any, owner: Any, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Names and values that code reads and no argument gives: of its module, of objects and dicts there, of a function around it, of its
    class, of functools.partial."""
    if id(thing) in visited:
        return
    visited.add(id(thing))
    if isinstance(thing, functools.partial):
        yield from thing.keywords.items()
        thing = thing.func
    if isinstance(thing, type):
        yield from vars(thing).items()
        yield from heads_in(source_of(thing))
    spoken, module = named(thing), sys.modules.get(getattr(thing, "__module__", ""), owner)
    for name, value in vars(module).items() if module is not None else ():
        if name in spoken:
            yield name, value
            if isinstance(value, dict):
                yield from value.items()
            elif not callable(value) or isinstance(value, type):
                yield from ((attribute, getattr(value, attribute, None)) for attribute in spoken)
    code, cells = getattr(thing, "__code__", None), getattr(thing, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells):
        with contextlib.suppress(ValueError):  # not filled yet
            yield name, cell.cell_contents
            if isinstance(cell.cell_contents, FunctionType):
                yield from _constants(cell.cell_contents, owner, visited)


def many_heads(cls: type) -> bool:
    """Whether a class has more than one head from its module or from itself, and not from its constructor."""
    return any(type(value) is int and value > 1 and names.setting(str(name)) == "heads" for name, value in _constants(cls, None, set()))


def fix_heads(values: dict[str, Any], thing: Any, given: Any, module: Any, task: str) -> str:
    """The number of heads, or their width, that several heads have from the code itself and from no argument; says so. given: what the
    file calls by its name, perhaps a partial."""
    own = {names.setting(one.name) for one in arguments_of(thing) if names.argument(one.name) != "params"}
    takes = set(settings_of(thing).values()) if isinstance(thing, type) else own
    if task not in LAYERS or task in SINGLE or takes & {"heads", "head_dim", "config"}:
        return ""
    found = {
        kind: value
        for name, value in (*_constants(thing, module, set()), *_constants(given, module, set()))
        if type(value) is int and isinstance(name, str) and (kind := names.setting(name)) in ("embed", "heads", "kv_heads", "head_dim")
    }
    if not found.keys() & {"heads", "head_dim"}:
        return ""
    embed = found.get("embed", values["embed"])
    heads = found.get("heads") or (embed // found["head_dim"] if "embed" in found else values["heads"])
    width = found.get("head_dim") or (embed // heads if "embed" in found or embed % heads == 0 else 6)
    grouped = "grouped" in TASKS[task].parts
    kv_heads = found.get("kv_heads") or (values["kv_heads"] if heads % values["kv_heads"] == 0 else 1) if grouped else heads
    values.update(embed=found.get("embed") or heads * width, heads=heads, kv_heads=kv_heads, head_dim=width)
    _check(values, ("embed", "heads", "kv_heads", "head_dim"))
    return f"judged with {heads} heads of {width} numbers, as the code has them without an argument"


def _check(sizes: dict[str, Any], names: Iterable[str]) -> None:
    """Before anything of these sizes is made."""
    for name in names:
        most = 4096 if name == "embed" else 256
        if not (isinstance(sizes[name], int) and 1 <= sizes[name] <= most):
            raise Stop(f"the size {name} must be an integer from 1 to {most}: got {sizes[name]!r} (build it smaller: --init dim=48,heads=4)")


def settings_of(cls: type) -> dict[str, str]:
    """{argument: setting} of a class's constructor; with a configuration, of what the class names in it too."""
    found = {one.name: "config" if annotated(cls, one) else setting_of(one) for one in arguments_of(cls)}
    code = getattr(cls.__init__, "__code__", None)
    if code is not None and "config" in found.values():
        for name in (*sorted(named(cls)), *(constant for constant in code.co_consts if isinstance(constant, str))):
            kind = names.setting(name)
            if kind in ("embed", "heads", "kv_heads", "dropout", "causal") and len(names.key(name)) > 1:
                found.setdefault(name, kind)
    return {name: kind for name, kind in found.items() if kind}


def annotated(owner: Any, one: inspect.Parameter) -> Any:
    """The dataclass that annotates an argument of a constructor or a function, if any."""
    try:
        hint = typing.get_type_hints(owner.__init__ if isinstance(owner, type) else owner).get(one.name)
    except Exception:  # a person's annotation may name what does not exist
        hint = one.annotation
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _is_weight(one: inspect.Parameter) -> bool:
    """A constructor's argument that is one of the matrices, or a bias."""
    role = names.argument(one.name) or ""
    return required(one) and names.setting(one.name) is None and role[:2] in ("W_", "b_") and names.key(one.name)[0] in "wb"


def _weight(cls: type, name: str, values: dict[str, Any]) -> Any:
    """An array of its size, [in, out]; its numbers come with each probe."""
    role, grouped = names.argument(name) or "", "kv_heads" in settings_of(cls).values()
    sizes = Sizes(values["embed"], values["heads"], values["kv_heads" if grouped else "heads"], values["head_dim"])
    count = numbers(tuple(role[2:]), role[0] == "b", sizes)
    shape = (-1,) if role[0] == "b" else (-1, sizes.embed) if role == "W_o" else (sizes.embed, -1)
    return from_numpy(np.zeros(count).reshape(shape), framework_of(cls))


def _kind(cls: type, one: inspect.Parameter, values: dict[str, Any]) -> str | None:
    """What an argument is; of a block's two widths the one that is called hidden is that of its feed-forward part."""
    kind, widths = setting_of(one), [other.name for other in arguments_of(cls) if names.setting(other.name) == "embed"]
    if kind == "context" and values["tiled"] and "block" in names.key(one.name):
        return "tile"
    return "hidden" if kind == "embed" and "hidden" in values and len(widths) > 1 and "hidden" in one.name else kind


def arguments(cls: type, values: dict[str, Any], own: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """({argument: value}, notes)."""
    given: dict[str, Any] = {}
    notes: list[str] = []
    unnamed: list[str] = []
    for one in arguments_of(cls):
        kind = _kind(cls, one, values)
        optional = not required(one)
        default = {  # where that is as good
            "bias": True, "device": True, "tile": True, "base": not values.get("turned"), "kv_heads": values["kv_heads"] == values["heads"],
            "causal": values["heads"] == 1 and not values["causal"],  # a single head's default says whether it is causal
        }.get(kind or "", False)  # fmt: skip
        if one.name in own:
            given[one.name] = own[one.name]
        elif _is_weight(one):
            given[one.name] = _weight(cls, one.name, values)
        elif kind == "config" or (not optional and annotated(cls, one)):
            holder = annotated(cls, one)
            if holder is not None:
                inner, more = arguments(holder, values, own)
                given[one.name], notes = holder(**inner), notes + more
            elif not optional or one.default is None:
                given[one.name] = _settings({**values, **{names.setting(name) or name: value for name, value in own.items()}})
        elif kind is not None and values.get(kind) is not None and not (optional and default):
            given[one.name] = values[kind]
        elif not optional:
            unnamed.append(one.name)
    spare = [kind for kind in ("embed", "heads")[: values["heads"]] if kind not in settings_of(cls).values()]
    taken = dict(next(ways(unnamed, spare)))
    for name in unnamed:
        if name not in taken:
            raise Stop(f"cannot tell what the argument {name} of {cls.__name__}(...) is: --init {name}=VALUE")
        given[name] = values[taken[name]]
        notes.append(f"{cls.__name__}({name}=...) was taken for {taken[name]}")
    return given, notes


def make(cls: type, given: dict[str, Any], people: People) -> Any:
    """An object of a class with these arguments."""
    try:
        positional = [given.pop(one.name) for one in arguments_of(cls) if one.kind is one.POSITIONAL_ONLY and one.name in given]
        with plainly():
            return cls(*positional, **given)
    except FAILURES as error:
        shown = ", ".join(f"{name}={'...' if isinstance(value, names.ByName) or is_array(value) else value!r}" for name, value in given.items())
        raise people.stop(error, f"making {cls.__name__}({shown})") from None


def build(cls: type, values: dict[str, Any], own: dict[str, Any], people: People) -> tuple[Any, dict[str, Any], list[str]]:
    """(object, arguments it was made with, notes)."""
    given, notes = arguments(cls, values, own)
    thing = make(cls, given, people)
    if is_module(thing) and any(isinstance(one, torch_of().nn.parameter.UninitializedParameter) for one in thing.parameters()):
        with torch_of().no_grad():  # nn.LazyLinear gets its shape in the first call
            thing(*[torch_of().zeros(1, 2, values["embed"]) for one in arguments_of(thing.forward) if required(one)])
    return thing, given, notes


def _attribute(thing: Any, kind: str) -> Any:
    """A number that the object or one of its parts keeps under a usual name."""
    parts = [thing, *(thing.children() if is_module(thing) else [])]
    kept = [(name, value) for part in parts for name, value in getattr(part, "__dict__", {}).items() if type(value) is int and value > 0]
    return next((value for name, value in kept if names.setting(name) == kind), None)


def sizes_of(thing: Any, entries: list[Any], task: str, values: dict[str, Any], given: dict[str, Any], fixed: bool = False) -> Sizes:
    """The sizes the object really has: from its constructor's arguments, its attributes and its parameters' shapes. `fixed`: from the
    code itself (fix_heads)."""
    configured = fixed or any(isinstance(value, names.ByName) or dataclasses.is_dataclass(value) for value in given.values())
    kinds = {names.setting(name) for name in given} | ({"embed", "heads", "kv_heads"} if configured else set())
    weights = {entry.path: entry for entry in entries if not entry.bias and len(entry.shape) >= 2}
    by_letter = {names.letters(entry.path): entry for entry in reversed(weights.values())}  # the first of each
    embed = values["embed"] if "embed" in kinds else _attribute(thing, "embed")
    if embed is None:
        linear = next((e for e in weights.values() if e.layout == "out_in"), None)
        embed = linear.shape[1] if linear is not None else next((e.shape[0] for e in weights.values()), values["embed"])
    heads = values["heads"] if "heads" in kinds or task in SINGLE else _attribute(thing, "heads") or _listed(weights)
    heads = heads or (1 if task == "block" or task in STEPPED else values["heads"])
    width = embed
    query = by_letter.get(("q",))
    if query is not None and len(query.shape) == 2 and _listed(weights) is None:
        raw = query.layout is None and query.shape[0] != embed == query.shape[1]
        width = query.shape[0] if query.layout == "out_in" or raw else query.shape[1]
    elif task == "self-attention":
        width = values["head_dim"] if "head_dim" in kinds else embed
    if width % heads:
        raise Stop(f"{width} columns cannot be split into {heads} heads: --init heads=NUMBER")
    head_dim = width // heads
    kv_heads = heads
    letters = next((letters for letters in (("k",), ("k", "v")) if letters in by_letter), ())
    key = by_letter.get(letters)
    if key is not None and len(key.shape) == 2 and _listed(weights) is None:
        columns = (key.shape[0] if key.layout == "out_in" else key.shape[1]) // len(letters)
        kv_heads = columns // head_dim if columns % head_dim == 0 and columns else heads
    elif "kv_heads" in kinds or "grouped" in TASKS[task].parts:
        kv_heads = values["kv_heads"]
    sizes = Sizes(int(embed), int(heads), int(kv_heads), int(head_dim))
    _check(sizes._asdict(), Sizes._fields[:4])
    return sizes


def unheeded(sizes: Sizes, task: str, values: dict[str, Any], given: dict[str, Any], asked: bool) -> str:
    """What a constructor was given and its parameters do not follow, as a sentence; "" without. `asked`: the task was, by name."""
    grouped = "grouped" in TASKS[task].parts
    for name in given:
        kind = names.setting(name)
        if grouped and kind == "kv_heads" and sizes.kv_heads != values["kv_heads"]:
            return f"{name}={values['kv_heads']} was asked for, and its keys have {sizes.kv_heads} heads"
        if task == "self-attention" and kind == "head_dim" and sizes.heads == 1 and sizes.head_dim != values["head_dim"]:
            return f"{name}={values['head_dim']} was asked for, and its queries have {sizes.head_dim} columns"
    return f"its keys have as many heads as its queries: {sizes.heads}" if grouped and asked and sizes.kv_heads == sizes.heads > 1 else ""


def _listed(weights: dict[str, Any]) -> Any:
    """How many heads a list of heads has ("heads.0.query.weight" ...), or None."""
    count = sum(1 for path in weights if names.letters(path) == ("q",) and any(part.isdigit() for part in path.split(".")))
    return count if count > 1 else None


def dropout_of(thing: Any, given: dict[str, Any]) -> Any:
    """The rate that the object was asked for, whether it drops anything or not; None where nobody speaks of one."""
    asked = [value for name, value in given.items() if names.setting(name) == "dropout"]
    parts = [thing, *(one for module in modules_in(thing) for one in module.modules() if one is not thing)]
    rates = [float(part.p) for part in parts if is_module(part) and isinstance(part, torch_of().nn.Dropout)]
    kept = [(name, value) for part in parts for name, value in getattr(part, "__dict__", {}).items() if isinstance(value, float)]
    rates += [value for name, value in kept if names.setting(name) == "dropout" and (value > 0 or asked)]
    wanted = [value for value in asked if isinstance(value, float)]
    if not rates:
        off = {one.name for one in arguments_of(type(thing)) if not one.default}  # by its default nobody asks for any
        wanted = [value for name, value in given.items() if names.setting(name) == "dropout" and name not in off and isinstance(value, float)]
        return next(iter(wanted + _called_dropout(type(thing))), None)
    return rates[0] if not wanted or rates[0] in wanted else wanted[0]


def _called_dropout(cls: type) -> list[float]:
    """Rates written in calls: F.dropout(weights, 0.1, self.training)."""
    try:
        calls = [one for one in ast.walk(ast.parse(textwrap.dedent(source_of(cls)))) if isinstance(one, ast.Call)]
    except SyntaxError:
        return []
    calls = [one for one in calls if getattr(one.func, "attr", getattr(one.func, "id", "")) == "dropout" and len(one.args) + len(one.keywords) > 1]
    rates = [next((word.value for word in one.keywords if word.arg == "p"), one.args[1] if len(one.args) > 1 else None) for one in calls]
    return [rate.value if isinstance(rate, ast.Constant) else 0.5 for rate in rates if rate is None or isinstance(rate, ast.Constant)]


def smaller(subject: Subject, values: dict[str, Any], own: dict[str, Any]) -> list[Subject]:
    """The same code at the smallest sizes that it can have, for a counter-example of few numbers, and since one size shows little; none
    where its sizes are its own, or its task has such numbers anyway. `values`, `own`: of its constructor (values_for)."""
    embed, heads, kv_heads, dim, _ = subject.sizes
    parts = TASKS[subject.task].parts
    if subject.task in PARTS or not (subject.task in LAYERS or {"rope", "backward", "dropout", "lm"} & {*parts}):
        return []
    if subject.kind == "class" and _from_module(subject.thing):
        return []
    if heads == 1 or subject.task not in LAYERS:
        sizes = [Sizes(3 if dim < embed else 2, 1, 1, 4 if "rope" in parts else 2)]
    else:  # groups show with two of two heads, the scale with a head of more than one number
        sizes = [Sizes(4, 2, 2 if kv_heads == heads else 1, 2)] + [Sizes(4, 4, 2, 1)] * (1 < kv_heads < heads and "rope" not in parts)
        sizes += [Sizes(6 * width, 6, 2, width) for width in (2 if "rope" in parts else 1,) if 1 < kv_heads < heads]  # groups of three
    found = []
    for one in sizes:
        with contextlib.suppress(Stop, *FAILURES):
            found.append(_at_sizes(subject, one, values, own))
    return [one for one in found if one is not None]


def _from_module(cls: type) -> bool:
    """Whether a class, or one that it is made of, has a size from its module ("n_embd = 32"), perhaps beside its own arguments."""
    module = sys.modules.get(cls.__module__)
    sizes = {name for name, value in vars(module or cls).items() if type(value) is int and names.setting(name) in ("embed", "heads", "head_dim")}
    parts = [cls, *(one for part in parts_of(cls) for one in (part, *parts_of(part)))]
    steps = (step for part in parts for code in code_of(part) for step in dis.get_instructions(code))
    return any(step.opname == "LOAD_GLOBAL" and step.argval in sizes for step in steps)


def _at_sizes(subject: Subject, sizes: Sizes, values: dict[str, Any], own: dict[str, Any]) -> Subject | None:
    """None where it cannot have them."""
    if subject.prototype is None:
        fixed = sizes.heads > 1 and not any(one.takes("num_heads") for one in subject.bindings.values())
        return None if fixed else dataclasses.replace(subject, sizes=sizes)
    kinds = {*settings_of(subject.thing).values()} if subject.kind == "class" else set()
    if not subject.assignments:
        return dataclasses.replace(subject, sizes=sizes) if subject.task == "dropout" else None
    if not kinds & {"embed", "config"} or (sizes.heads > 1 and not kinds & {"heads", "config"}):
        return None
    values = {**values, **sizes.known(), "hidden": 2}
    thing, given, _ = build(subject.thing, values, own, subject.people)
    mine, rest = parameters.collect(thing)
    shapes = {one.path: one.shape for one in mine + rest}
    if subject.task == "block":
        block = blocks.of_block(mine, rest)
        if block is None:
            return None
        sizes, mine = sizes._replace(hidden=block.hidden), block.rest
    if sizes_of(thing, mine, subject.task, values, given) != sizes._replace(hidden=0):
        return None
    assignments = []
    for label, slots, convention in subject.assignments:
        kept = [slot for slot in slots if slot.head is None or slot.head < sizes.heads_of(slot.letters[0])]
        assignments.append(parameters.Assignment(label, [slot._replace(shape=shapes[slot.path]) for slot in kept], convention))
    return dataclasses.replace(subject, prototype=thing, sizes=sizes, assignments=assignments)
