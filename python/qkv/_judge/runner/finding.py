"""Loads a person's file, and finds in it what to judge: the function or class that is meant, and which task it is."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from . import match, parts, plain
from .building import many_heads, settings_of
from .calling import keeps
from .contracts import names, tasks
from .errors import NoTask, People, Stop, plainly
from .frameworks import gives_tables, is_module_class, makes_triangle, named, reads, source_of
from .match import arguments_of, required
from .rotating import turned


def load(path: Any) -> ModuleType:
    """The file as a module, whose folder comes first on sys.path; `if __name__ == "__main__"` does not run. Raises Stop with the
    person's lines if the file cannot be read, compiled or executed."""
    file = Path(path).resolve()
    if not file.is_file():
        raise Stop(f"no such file: {path}")
    taken = file.stem in sys.modules or file.stem in getattr(sys, "stdlib_module_names", ()) or not file.stem.isidentifier()
    name = f"judged_{file.stem}" if taken else file.stem
    spec = importlib.util.spec_from_file_location(name, str(file))
    if spec is None or spec.loader is None:
        raise Stop(f"{file.name} must be a Python file: its name must end in .py")
    sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes look their module up: dataclasses, pickle
    try:
        with plainly():
            spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        people = People(file)
        says = f"loading {file.name}: this Python ({sys.executable}) has no {error.name}: name another with --python, or activate its environment"
        raise Stop(says, "failed", people.lines(error)) from None
    except (Exception, SystemExit) as error:
        raise People(file).stop(error, f"loading {file.name}") from None
    return module


class Candidate(NamedTuple):
    name: str
    thing: Any
    task: str
    strong: bool  # has a contract's name
    beyond: str = ""  # an argument that no exercise has
    callers: tuple[str, ...] = ()  # what else the file has: functions that call it, what is no part of it


def _roles(function: Any) -> dict[str, Any]:
    """{role: argument}; what is optional and never read says nothing of the task, but for a mask and the mode."""
    roles = match.roles_of(function)
    return {
        role: one.name
        for one in arguments_of(function)
        if (role := roles[one.name])
        and (role in ("mask", "training") or one.default is one.empty or reads(function, one.name))
    }


def forward_of(cls: type) -> str | None:
    """The method that is called: forward of an nn.Module, otherwise forward, __call__ or the one public method."""
    if is_module_class(cls):
        return "forward"
    for name in ("forward", "__call__"):
        if isinstance(inspect.getattr_static(cls, name, None), (FunctionType, staticmethod)):
            return name
    public = [name for name, value in vars(cls).items() if isinstance(value, FunctionType) and not re.match("_|reset|clear", name)]
    return public[0] if len(public) == 1 else None


def _called(thing: Any) -> Any:
    """What is called of a function or class; None where there is nothing."""
    return thing if isinstance(thing, FunctionType) else (method := forward_of(thing)) and getattr(thing, method, None)


#: Tasks of layers that may have rotary positions too.
_TURNED = ("mha", "causal-mha", "gqa", "cache", "gqa-cache")


def _rotations(inside: set[str]) -> list[str]:
    """The names in a code that speak of rotary positions."""
    found = [name for name in inside if re.search("rope|rotary|rotate|freqs|^polar$", name, re.IGNORECASE)]
    return sorted(found) + ["cos"] * ({"cos", "sin"} <= inside)


def _beyond(thing: Any, task: str) -> str:
    """An argument that the code needs and that says that it is more than the task: a cache, token ids, a window; "" without."""
    called = arguments_of(_called(thing))
    more = {"cache", "past_k", "tokens"} - {name for contract in tasks.FUNCTIONS[task].values() for name, _ in contract}
    if "cache" not in more:
        more -= {"past_k"}
    if "x" not in {names.argument(one.name) for one in called}:
        more -= {"tokens"}
    for one in called:
        if required(one) and names.argument(one.name) in more:
            return one.name
    inside = set() if task in ("rope", *tasks.TURNED) or {"turns", "cos", "sin"} & {names.argument(one.name) for one in called} else named(thing)
    if turns := _rotations(inside):
        return turns[0]
    windowed = "windowed" in tasks.TASKS[task].parts
    if names.speaks_of("variant", thing.__name__) and not windowed:
        return thing.__name__
    for one in [*called, *(arguments_of(thing) if isinstance(thing, type) else [])]:
        known = names.argument(one.name) or names.setting(one.name)
        known = None if known == "window" and not windowed else known
        if not known and names.speaks_of("beyond", one.name) and (required(one) or one.default not in (None, False, 0)):
            return one.name
    return ""


def guess(name: str, thing: Any) -> Candidate | None:
    """What a function or class would be judged as; None where nothing fits."""
    if gives_tables(_called(thing)):
        return None  # what rotates with them is beside it
    part = parts.guess(name, thing)
    if part is not None:
        own = name in (*tasks.FUNCTIONS[part], *tasks.TASKS[part].classes)
        return Candidate(name, thing, part, own or part not in tasks.BESIDE)
    found = _guessed(name, thing)
    return found and found._replace(beyond=_beyond(thing, found.task))


def _appends(inside: set[str]) -> bool:
    """Whether a layer that takes a cache and no mask joins it with its own keys and hides the future itself."""
    return bool({"cat", "concat", "concatenate"} & inside and {"tril", "triu", "tri", "arange"} & inside)


def _guessed(name: str, thing: Any) -> Candidate | None:
    function, called = isinstance(thing, FunctionType), _called(thing)
    task = next((one.name for one in tasks.TASKS.values() if one.name not in tasks.PARTS and name in (*one.functions, *one.classes)), None)
    roles = set(_roles(called))
    holds = re.compile("norm|^ln|^ff|mlp|feed|elu|transformer")
    if match.is_block(name) and not function and not any(holds.search(names.key(one)) for one in named(thing)):
        return None
    if "cache" in roles and (function or task == "gqa") and task not in tasks.STEPPED:
        task = None if function else "gqa-cache"  # "gqa" with a cache
    if "cache" in roles and task in ("mha", "causal-mha") and "mask" not in roles and _appends(named(thing)):
        task = "cache"  # whatever its name says
    takes = {names.argument(one.name) for one in arguments_of(called)}
    layer = not function and "x" in takes and not {"q", "k", "v"} & takes  # whatever its name says
    settings = set() if function else {*settings_of(thing).values()} | ({"heads"} if many_heads(thing) else set())
    heads = "num_heads" in roles if function else "heads" in settings
    if task is not None and not (layer and task in tasks.OF_QKV) and not (heads and task in tasks.SINGLE):
        return Candidate(name, thing, task, True)
    if function:
        found, text = match.fitting(name, roles), source_of(sys.modules.get(thing.__module__)).lower()
        if found in ("sdpa", "causal") and re.search("linear[ -_]attention|线性注意力", text) and "softmax" not in text:
            found = "linear"
    elif called is None:
        return None
    else:
        inside = {*named(thing), *roles, *(one.name for one in arguments_of(called))}
        state = re.search("cache|past|tril|triu|causal|mask", " ".join(inside).lower())  # or it hides the future
        roles |= {"cache"} if keeps(thing, forward_of(thing) or "", roles) else set()
        found = match.of_class(thing.__name__, settings, roles)
        if found in _TURNED and (state or makes_triangle(thing)) and _rotations({thing.__name__, *inside}):
            found = "llama-attention"
    return Candidate(name, thing, found, found == "block") if found else None


def members(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that the file itself defines, in its order; what it gives a name, where that calls all that could be
    meant besides."""
    own = {
        name: turned(name, value)
        for name, value in vars(module).items()
        if isinstance(value, (FunctionType, type)) and value.__module__ == module.__name__ and value.__name__ != "<lambda>"
    }
    meant = {name for name, value in own.items() if guess(name, value)}
    for name, thing, defined in plain.assigned(module):
        if defined or meant - {name} <= _reached(thing):
            own[name] = thing
    return {name: own[name] for name in vars(module) if name in own}


def _reached(thing: Any) -> set[str]:
    """What the code of a function or class names, and what it is a method of."""
    return {*named(thing), *getattr(inspect.unwrap(thing), "__qualname__", "").split(".")}


#: Tasks with the same kind of arguments: code that looks like one may be meant for another.
_ALIKE = ({*tasks.LAYERS}, {"sdpa", "causal", "flash", "linear", "dropout", "rope"})


def find(module: ModuleType, file: str, name: str | None, task: str | None) -> tuple[Candidate, list[str]]:
    """(candidate, notes); raises Stop with what there is to choose from."""
    known = members(module)
    if name is not None:
        thing = turned(name, plain.function_of(name, vars(module).get(name), task, module))
        if thing is None:
            raise Stop(f"{file} has no {name}: it has {', '.join(known) or 'neither functions nor classes'}")
        chosen, step = of_thing(name, thing, task), known.get("train_step")
        if chosen.task == "lm" and isinstance(thing, type) and isinstance(step, FunctionType):
            chosen = chosen._replace(name="train_step", thing=step)  # the step is what is called, with this model
        return chosen, []
    found = every = [one for key, value in known.items() if (one := guess(key, value)) is not None]
    if task is None:  # what attention or another part uses is no answer of its own
        found = [one for one in found if one.task not in tasks.BESIDE] or [one for one in found if not _is_helper(one, known)]
    else:
        like = {other for kind in _ALIKE if task in kind for other in kind}
        found = [one for one in found if one.task == task] or [one._replace(task=task) for one in found if one.task in like]
    if task is None and found and all(one.beyond for one in found):
        raise _unfit(found[-1])
    more, found = [one for one in found if one.beyond], [one for one in found if task or not one.beyond]
    if not found:
        wanted = "looks like attention" if task is None else f"looks like the task {task}"
        for key, thing in known.items():
            if (part := parts.named(key)) and task in (None, part) and parts.guess(key, thing) is None:
                raise Stop(parts.unfit(key, part, thing))
        has = ", ".join(known) or "neither functions nor classes"
        others = [f"{key} {other}" for key in known if task is None and (other := match.refused(key))]
        how = f"name the one to judge: {file}:NAME" + ("" if task else ", and --task NAME where its task is not clear")
        raise NoTask([*others, f"nothing in {file} {wanted} (it has {has}): {how}"][0])
    uses = {one.name: named(one.thing) for one in found}
    helpers = {name for one in found if isinstance(one.thing, type) and one.task in tasks.LAYERS for name in uses[one.name]}
    # A layer's own helper is not meant, whatever its name.
    strong = [one for one in found if one.strong and (one.task in tasks.LAYERS or one.name not in helpers)] or found
    top = [one for one in strong if not any(one.name in uses[other.name] for other in strong if other.name != one.name)] or strong
    chosen = top[-1]
    if outer := [one for one in more if task is None and chosen.name in named(one.thing)]:
        raise _unfit(outer[-1])
    if chosen.task == "lm" and not isinstance(chosen.thing, FunctionType):
        chosen = next((one for one in strong if one.task == "lm" and isinstance(one.thing, FunctionType)), chosen)
        if not chosen.strong and not isinstance(chosen.thing, FunctionType):
            wanted = "train_step(params, tokens, lr), or train_step(model, optimizer, tokens)"
            raise Stop(f"{chosen.name} is a model: `lm` asks for a function {wanted}")
    beside = tasks.FUNCTIONS[chosen.task]
    apart = [one for one in found if one.task != "lm" and not one.task == chosen.task in tasks.PARTS]
    others = [one.name for one in apart if one.name != chosen.name and not {one.name, chosen.name} <= beside.keys()]
    callers = [
        f"{key}()"
        for key, value in known.items()
        if isinstance(value, FunctionType) and not {key, chosen.name} <= beside.keys()
        and chosen.name in value.__code__.co_names and {"x", "q"} & set(_roles(value))
    ]  # fmt: skip
    callers += [key for key, value in known.items() if isinstance(value, type) and key != chosen.name and chosen.name in named(value)]
    callers += [one for one in _unreached(chosen, known, every) if f"{one}()" not in callers]
    chosen = chosen._replace(callers=tuple(callers))
    notes = [f"{chosen.name} was judged, not {', '.join(others)}: {file}:NAME chooses another"] if others else []
    return chosen, notes


def _unreached(chosen: Candidate, known: dict[str, Any], found: list[Candidate]) -> Iterator[str]:
    """What could be judged too and is no part of the chosen one; a gradient of its own."""
    beside = {key for key in tasks.FUNCTIONS[chosen.task] if chosen.task not in tasks.PARTS or parts.guess(key, known.get(key)) == chosen.task}
    reached = {chosen.name, *_reached(chosen.thing), *beside}
    others = {one.name for one in found if not one.task == chosen.task in tasks.PARTS}
    others |= {
        key for key, value in known.items()
        if isinstance(value, FunctionType) and len(arguments_of(value)) > 1 and (parts.named(key) or match.by_name(key))
        and chosen.name not in named(value)
        and parts.guess(key, value) != chosen.task and not any(key in named(other) for one, other in known.items() if one != key)
    }  # fmt: skip
    yield from (key for key in known if key not in reached and (key in others or chosen.task == "paged" or parts.BACKWARD.search(names.key(key))))
    if "dout" not in tasks.TASKS[chosen.task].tensors:
        yield from (f"{key}.backward()" for key, value in known.items() if key in reached and hasattr(value, "save_for_backward"))
    if isinstance(chosen.thing, type):
        yield from (f"{chosen.name}.{name}()" for name in vars(chosen.thing)
                    if name not in reached and (parts.BACKWARD.search(name) or "merge" in name))  # fmt: skip


def _unfit(one: Candidate) -> Stop:
    what = one.name if one.beyond == one.name else f"{one.beyond} in {one.name}"
    nearest = "cache" if names.argument(one.beyond) in ("cache", "past_k") else one.task
    return NoTask(f"no exercise asks for what {what} does; the nearest is `{nearest}`")


def _is_helper(one: Candidate, known: dict[str, Any]) -> bool:
    """Whether something else of the file that takes arguments uses it."""
    return any(
        one.name in named(other) and parts.named(name) != one.task and (isinstance(other, type) or bool(arguments_of(other)))
        for name, other in known.items()
        if name != one.name
    )


def of_thing(name: str, thing: Any, task: str | None) -> Candidate:
    """A chosen object as a candidate."""
    if type(thing).__module__.startswith("torch.jit"):
        raise Stop(f"{name} was compiled by torch.jit: judge what it was made of")
    if task is not None:
        return Candidate(name, thing, task, False)
    own = isinstance(thing, (FunctionType, type))  # an object is judged as its class, by its own name or the class's
    found = guess(name, thing) if own else guess(name, type(thing)) or guess(type(thing).__name__, type(thing))
    if found is None:
        if part := parts.named(name):
            raise Stop(parts.unfit(name, part, thing))
        if other := match.refused(name):
            raise Stop(f"{name} {other}")
        raise Stop(f"cannot tell from {name} which task it is: --task NAME, one of {', '.join(tasks.FUNCTIONS)}")
    if found.beyond:
        raise _unfit(found)
    return found._replace(name=name, thing=thing)
