"""Looks at a person's code: builds it, matches its parameters, calls it once, and says what it is (look.json).

Not: the calls that are judged (answering.py).
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from . import building, names, parameters, tasks
from .calling import Binding
from .errors import FAILURES, People, Stop
from .finding import Candidate, find, forward_of, load, of_thing
from .frameworks import framework_of, is_module, named, reads, rounds
from .matching import Assignment, assign
from .subject import Subject
from .training import model_class
from .trying import materialise, try_out


def look_at_file(request: dict[str, Any]) -> Subject:
    """A file, as request.json names it."""
    file = request["file"]
    module = load(file)
    people = People(module.__file__)
    shown = people.file.rpartition("/")[2]
    candidate, notes = find(module, shown, request.get("name"), request.get("task"))
    return look_at(candidate, module, people, request, notes)


def look_at_object(
    thing: Any, task: str | None, mapping: dict[str, str], init: dict[str, Any], alternatives: int = 24
) -> Subject:
    """A function, class or module of this process."""
    owner = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = getattr(owner, "__name__", str(owner))
    module = inspect.getmodule(owner)
    try:
        people = People(inspect.getsourcefile(owner))
    except TypeError:
        people = People(None)
    request = {"map": mapping, "init": init, "alternatives": alternatives}
    return look_at(of_thing(name, thing, task), module, people, request, [])


def _hollow(thing: Any) -> bool:
    """A body of nothing but a docstring, pass and ... ."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return False
    body = getattr(tree, "body", [])
    return isinstance(body, list) and all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body
    )


def look_at(
    candidate: Candidate, module: ModuleType | None, people: People, request: dict[str, Any], notes: list[str]
) -> Subject:
    """A Subject that was called once. Raises Stop: failed, unfilled; it says as which task."""
    try:
        return _look_at(candidate, module, people, request, notes)
    except Stop as stop:
        stop.seen = {"file": people.file, "name": candidate.name, "task": candidate.task}
        raise


def _look_at(
    candidate: Candidate, module: ModuleType | None, people: People, request: dict[str, Any], notes: list[str]
) -> Subject:
    thing = candidate.thing
    is_function = isinstance(thing, FunctionType)
    kind = "function" if is_function else "class" if isinstance(thing, type) else "module"
    owner = thing if is_function or kind == "class" else type(thing)
    subject = Subject(
        name=candidate.name, thing=thing, kind=kind, task=candidate.task, why=candidate.why, framework=framework_of(thing),
        people=people, sizes=building.Sizes(0, 0, 0, 0), line=_line(owner), notes=list(notes),
        precision="float32" if rounds(thing) else None,
    )  # fmt: skip
    if is_function:
        _look_at_functions(subject, module, request)
    else:
        _look_at_object(subject, owner, request)
    for binding in subject.bindings.values():
        binding.check()
        subject.notes += binding.notes
    unfilled: list[tuple[str, Stop]] = []
    for function in subject.bindings:
        try:
            try_out(subject, function)
        except Stop as stop:
            if stop.verdict != "unfilled":
                raise
            unfilled.append((function, stop))
    if len(unfilled) == len(subject.bindings):
        raise unfilled[0][1]
    _unread(subject)
    for function, _ in unfilled:  # one of two functions of a task
        del subject.bindings[function]
        subject.notes.append(f"{function} is not filled in yet")
    return subject


def _line(owner: Any) -> int:
    try:
        return inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return 0


def _look_at_functions(subject: Subject, module: ModuleType | None, request: dict[str, Any]) -> None:
    """One function, and the other of its task where the file has it under the contract's name and none was asked for."""
    values, _ = building.values_for(subject.task, request.get("init") or {})
    subject.sizes = building.Sizes(values["embed"], values["heads"], values["kv_heads"], values["head_dim"])
    mapping = request.get("map") or {}
    contracts = tasks.FUNCTIONS[subject.task]
    own = subject.name if subject.name in contracts else _nearest(subject.thing, contracts)
    functions = {own: subject.thing}
    for name in contracts:
        other = vars(module).get(name) if module is not None else None
        if name not in functions and isinstance(other, FunctionType) and not request.get("name"):
            functions[name] = other
    hollow = [name for name, function in functions.items() if _hollow(function)]
    if own in hollow:
        raise Stop(f"not filled in yet: {subject.name} has no body", "unfilled")
    subject.bindings = {
        name: Binding(functions[name], subject.task, name, mapping)
        for name in contracts
        if name in functions and name not in hollow
    }
    binding = subject.bindings[own]
    if subject.task == "lm" and not binding.takes("params"):
        subject.helpers.update({"class": model_class(module, subject.thing), "init": request.get("init") or {}})
    covered = {role[:2] + letter for role in binding.roles.values() if role and role[:2] in ("W_", "b_") for letter in role[2:]}
    if binding.takes("params"):
        covered = {prefix + letter for prefix in ("W_", "b_") for letter in "qkvo"}
    absent = _absent(subject.task, own, covered)
    subject.has = {
        **_lacks(absent),
        "mask": any(one.takes("mask") for one in subject.bindings.values()),
        "merged": any(len(role or "") > 3 and (role or "").startswith("W_") for role in binding.roles.values()),
        "weights": False,
        "dropout": None,
        "causal": subject.task not in tasks.CAUSAL and tasks.says_causal(subject.name) and not binding.takes("causal"),
        "absent": absent,
    }


def _unread(subject: Subject) -> None:
    """What the code did not read of a dict of parameters, it lacks."""
    if subject.lookup is None or not subject.lookup.read:
        return
    own = next(iter(subject.bindings))
    covered = {role[:2] + letter for role in subject.lookup.read for letter in role[2:]}
    covered |= {role[:2] + letter for role in subject.bindings[own].roles.values() if role for letter in role[2:]}
    subject.has["absent"] = absent = _absent(subject.task, own, covered)
    subject.has.update(_lacks(absent))


def _nearest(function: Any, contracts: dict[str, list[tuple[str, bool]]]) -> str:
    """The contract function whose arguments this one's are."""
    have = {names.argument(one.name) for one in building.parameters_of(function)}
    return max(contracts, key=lambda name: len(have & dict(contracts[name]).keys()))


def _absent(task: str, function: str, covered: set[str]) -> list[str]:
    """The contract's parameters that the code has nothing for."""
    wanted = [name for name, _ in tasks.FUNCTIONS[task][function] if name[:2] in ("W_", "b_")]
    return [name for name in wanted if not any(name[:2] + letter in covered for letter in name[2:])]


def _lacks(absent: list[str]) -> dict[str, bool]:
    """`bias`, `output`: false where the code lacks what the contract has. One bias of several is judged without any."""
    return {"bias": not any(name.startswith("b_") for name in absent), "output": "W_o" not in absent}


def _look_at_object(subject: Subject, cls: type, request: dict[str, Any]) -> None:
    method = forward_of(cls)
    if method is None:
        raise Stop(f"{subject.name} has no method forward or __call__", "unfilled" if is_module(subject.thing) else "failed")
    if _hollow(getattr(cls, method)):
        raise Stop(f"not filled in yet: {subject.name}.{method} has no body", "unfilled")
    init = request.get("init") or {}
    values, own = building.values_for(subject.task, init)
    given: dict[str, Any] = {}
    if subject.kind == "class":
        subject.prototype, given, notes = building.build(cls, values, own, subject.people)
        subject.notes += notes
    else:
        try:
            subject.prototype = copy.deepcopy(subject.thing)
        except FAILURES as error:
            raise subject.people.stop(error, f"copying {subject.name}") from None
    subject.method = method
    subject.helpers["init"] = init
    if parameters.is_lazy(subject.prototype):
        subject.sizes = building.Sizes(values["embed"], values["heads"], values["kv_heads"], values["head_dim"])
        binding = Binding(getattr(subject.prototype, method), subject.task, None, request.get("map") or {})
        materialise(subject, binding)
    entries, rest = parameters.collect(subject.prototype)
    if rest:
        subject.notes.append(f"left as they are: {', '.join(entry.path for entry in rest)}")
    if not entries:
        subject.sizes = building.Sizes(values["embed"], values["heads"], values["kv_heads"], values["head_dim"])
    else:
        if subject.kind == "module" and init:
            given = {name: values[kind] for name in init if (kind := names.setting(name))}
        subject.sizes = building.sizes_of(subject.prototype, entries, subject.task, values, given)
        subject.assignments = assign(entries, subject.sizes, request.get("map") or {}, int(request.get("alternatives") or 24))
    _describe(subject, cls, given, request.get("task"))
    subject.bindings = {"": Binding(getattr(subject.prototype, method), subject.task, None, request.get("map") or {})}
    subject.has["mask"] = subject.bindings[""].takes("mask")


def _describe(subject: Subject, cls: type, given: dict[str, Any], task: str | None) -> None:
    """`has`, and which of the single heads it is."""
    slots = subject.assignments[0].slots if subject.assignments else []
    covered = {name for slot in slots for name in slot.names}
    merged = any(len(slot.letters) > 1 for slot in slots)
    flags = [one for one in building.parameters_of(cls) if names.setting(one.name) == "causal"]
    flag = bool(flags) or "causal" in building.settings_of(cls).values()
    causal = any(one.default is True for one in flags) or tasks.says_causal(subject.name) or _masks_itself(cls)
    output = "W_o" in covered
    if task is None and slots:
        square = subject.sizes.heads * subject.sizes.head_dim == subject.sizes.embed
        forward = getattr(cls, subject.method)
        named_so = tasks.by_name(subject.name) in tasks.SINGLE
        roles = {one.name: names.argument(one.name) for one in building.parameters_of(forward)}
        masked = any(role == "mask" and reads(forward, name) for name, role in roles.items())
        refined = tasks.of_parameters(
            subject.task, named=named_so, merged=merged, output=output, masked=masked, causal=causal, square=square
        )
        if refined != subject.task:
            inputs = "q, k, v in one matrix" if merged else "three matrices"
            rest = "an output projection" if output else "no output projection"
            subject.task = refined
            subject.why = f"{subject.name} has {inputs} and {rest}" + (", is causal" if refined == "single-head" else "")
    absent = _absent(subject.task, next(iter(tasks.FUNCTIONS[subject.task])), covered)
    subject.has = {
        **_lacks(absent), "mask": False, "merged": merged, "weights": False,
        "dropout": building.dropout_of(subject.prototype, given),
        "causal": subject.task not in tasks.CAUSAL and not flag and (tasks.says_causal(subject.name) or _masks_itself(cls)),
        "absent": absent,
    }  # fmt: skip


def _masks_itself(cls: type) -> bool:
    """A class that makes a triangle and takes no mask: it is always causal."""
    used = named(cls)
    takes_mask = any(
        names.argument(one.name) == "mask" for one in building.parameters_of(getattr(cls, forward_of(cls) or "", None))
    )
    return bool({"tril", "triu", "tri", "triu_indices"} & used) and not takes_mask


def as_json(subject: Subject) -> dict[str, Any]:
    """look.json."""
    sizes = subject.sizes
    assignments = subject.assignments or [Assignment("their names say", [])]
    conventions = list(subject.conventions)
    if subject.mask_form is not None and subject.mask_form.convention:
        conventions.append(subject.mask_form.convention)
    masked = any(name == "mask" for function in tasks.FUNCTIONS[subject.task].values() for name, _ in function)
    return {
        "file": subject.people.file, "name": subject.name, "line": subject.line, "kind": subject.kind,
        "framework": subject.framework, "task": subject.task, "why": subject.why,
        "sizes": {"embed": sizes.embed, "heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim},
        "has": subject.has,
        "assignments": [{"label": one.label, "convention": one.convention} for one in assignments],
        "conventions": conventions, "notes": subject.notes,
        "untried": list(dict.fromkeys(name for one in subject.bindings.values() for name in one.untried(masked))),
    }  # fmt: skip
