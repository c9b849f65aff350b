"""Describes a person's code (subject.json): finds and builds it, matches its parameters, calls it once. Not: the calls that are
judged (answering.py)."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from . import asked, blocks, building, match, parameters, parts, plain, widths
from .calling import Binding
from .contracts import names, tasks
from .errors import FAILURES, NoTask, People, Stop
from .finding import Candidate, find, forward_of, load, of_thing
from .frameworks import framework_of, is_module, makes_triangle, named, reads, rounds, to_numpy, told, told_with_parts
from .masks import ROWS, promised_by
from .parameters import Assignment, assign
from .slots import Sizes
from .steps import memory_of, model_class
from .subject import Skipped, Subject, Way, square
from .trial import gradients, options, returned
from .trial.first_calls import Trial, first_call, hides_future, only_square, other_mask, ways_of
from .trial.flags import try_causal, try_mask_in_training


def subject_of_file(request: dict[str, Any]) -> Subject:
    """A file, as request.json names it."""
    module = load(request["file"])
    people = People(module.__file__)
    candidate, notes = find(module, people.file.rpartition("/")[2], request.get("name"), request.get("task"))
    return described(candidate, module, people, request, notes)


def subject_of_object(thing: Any, request: dict[str, Any]) -> Subject:
    """A function, class or module of this process."""
    thing = plain.function_of(None, thing, request.get("task"), None)
    owner = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = getattr(owner, "__name__", str(owner))
    return described(of_thing(name, thing, request.get("task")), inspect.getmodule(owner), People(plain.file_of(owner)), request, [])


def _hollow(thing: Any) -> bool:
    """A body of nothing but a docstring, pass and ... ."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return False
    body = getattr(tree, "body", [])
    return isinstance(body, list) and bool(body) and all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body
    )


def described(candidate: Candidate, module: ModuleType | None, people: People, request: dict[str, Any], notes: list[str]) -> Subject:
    """A Subject that was called once. Raises Stop: failed, unfilled; it says as which task."""
    try:
        return _described(candidate, module, people, request, notes)
    except Stop as stop:
        stop.about |= {"file": people.file, "name": candidate.name, "task": candidate.task}
        raise


def _described(candidate: Candidate, module: ModuleType | None, people: People, request: dict[str, Any], notes: list[str]) -> Subject:
    thing = candidate.thing
    kind = "function" if isinstance(thing, FunctionType) else "class" if isinstance(thing, type) else "module"
    owner = type(thing) if kind == "module" else thing
    asked.check_map(mapping := request.get("map") or {}, candidate.task)
    model = model_class(module, thing) if candidate.task == "lm" and kind == "function" else None
    asked.check_init(request.get("init") or {}, model or thing)
    values, own = building.values_for(candidate.task, request.get("init") or {})
    if candidate.task in tasks.PARTS and kind != "function":
        if kind == "module":
            raise Stop(f"{candidate.name} is a module that is made already: judge its class, whose sizes and numbers change from call to call")
        if (method := forward_of(thing)) and _hollow(getattr(thing, method)):
            raise Stop(f"not filled in yet: {candidate.name}.{method} has no body", "unfilled")
        thing = parts.function_of(thing, candidate.task, people, own, mapping)
    elif candidate.task in ("gqa", "gqa-cache") and match.one_kv_head(candidate.name, thing):
        values["kv_heads"] = 1
    elif kind == "class":
        building.fix_by_module(values, thing, module, candidate.task)
    fixed = ""
    if kind != "module" and not {names.setting(name) for name in request.get("init") or {}} & {"heads", "head_dim"}:
        fixed = building.fix_heads(values, thing, vars(module or object).get(candidate.name), module, candidate.task)
    sizes = Sizes(values["embed"], values["heads"], values["kv_heads"], values["head_dim"], values["hidden"] if candidate.task == "block" else 0)
    subject = Subject(
        name=candidate.name, thing=thing, kind=kind, task=candidate.task, framework=framework_of(candidate.thing),
        people=people, sizes=sizes, notes=[*notes, *filter(None, [fixed])], precision="float32" if rounds(candidate.thing) else None,
        helpers={"init": request.get("init") or {}, "callers": candidate.callers, "asked": candidate.strong or bool(request.get("task")),
                 "fixed": bool(fixed), **widths.of(thing, candidate.task, values, own, people)},
    )  # fmt: skip
    with contextlib.suppress(OSError, TypeError):
        subject.line = inspect.getsourcelines(owner)[1]
    if candidate.task in tasks.PARTS:
        _of_parts(subject, module, request)
    elif kind == "function":
        _of_functions(subject, module, request)
    else:
        _subject_of_object(subject, owner, values, own, request)
    asked.check_arguments(mapping, subject.bindings.values(), kind != "function")
    for binding in subject.bindings.values():
        binding.check()
        subject.notes += binding.notes
        subject.helpers["callers"] += (kept := binding.kept_defaults())
        subject.notes += [f"the default of {name} is one object for all calls: what a call puts into it the next one finds" for name in kept]
    unfilled: list[tuple[str, Stop]] = []
    trials = [Trial(subject, function) for function in subject.bindings]
    for trial in trials:
        try:
            subject.ways = ways_of(subject, trial.binding) if subject.prototype is None else subject.ways
            first_call(trial)
            _readings(trial)
            other_mask(trial)
            subject.helpers |= {"square": only_square(trial), "ungrouped": _ungrouped(trial)}
            subject.helpers["callers"] += (*_axis(trial),)
            try_causal(trial, values, own)
            for attempt in (try_mask_in_training, options.try_options, returned.try_call, gradients.try_gradients):
                attempt(trial)
        except Stop as stop:
            if stop.verdict != "unfilled":
                raise
            unfilled.append((trial.function, stop))
    if len(unfilled) == len(subject.bindings):
        raise unfilled[0][1]
    if subject.read:  # of a dict of parameters what is neither read nor spoken of is not there
        spoken = [names.argument(word) for word in re.findall(r"\b[Ww]_?(?:q|k|v|o|out)\b", told(thing))]
        holders = [one for argument in match.arguments_of(thing) if (one := building.annotated(thing, argument))]
        spoken += [names.argument(field.name) for one in holders for field in dataclasses.fields(one)]
        _cover(subject, [*subject.read, *spoken, *next(iter(subject.bindings.values())).roles.values()])
        subject.helpers["callers"] += ("b_o",) * ({"W_o", "b_q"} <= subject.read and "b_o" in subject.has["absent"])
    if subject.task == "score-modifiers" and not subject.helpers["asked"]:
        code = {subject.name.lower(), *named(owner)}
        means = makes_triangle(owner) or trials[0].binding.takes("causal") or any("causal" in one for one in code)
        if not means and not hides_future(trials[0]):
            raise NoTask(f"no exercise asks for what {subject.name} does; the nearest is `{subject.task}`")
    if request.get("task") is None and subject.prototype is not None and subject.task not in tasks.STEPPED:
        if kept := memory_of(subject, trials[0].binding, trials[0].ran, trials[0].metadata):
            raise NoTask(f"no exercise asks for what {kept} in {subject.name} does; the nearest is `cache`")
    if request.get("task") is None:
        if norm := _norm_of(trials[0]):
            raise NoTask(f"no exercise asks for what {norm} in {subject.name} does; the nearest is `{subject.task}`")
        _causal(trials[0], owner, candidate.strong)
    if subject.helpers.get("whole"):
        subject.tell(whole="1")
    if subject.task == "block":
        _of_a_block(trials[0], owner)
    for function, _ in unfilled:  # one of two functions of a task
        del subject.bindings[function]
        subject.notes.append(f"{function} is not filled in yet")
    subject.small = building.smaller(subject, values, own)
    return subject


def _causal(trial: Trial, owner: Any, strong: bool) -> None:
    """Code that hides the future by itself, whatever its task: heads that take no mask, and do it or mean to, are a task of their
    own. An exercise's own name asks for what the exercise does."""
    subject, binding, settings = trial.subject, trial.binding, building.settings_of(owner) if isinstance(owner, type) else {}
    parts = tasks.TASKS[subject.task].parts
    if not {"bidirectional", "linear", "flash"} & {*parts} or "cross" in parts or binding.takes("causal") or "causal" in settings.values():
        return
    if strong and subject.task in (*tasks.SINGLE, *tasks.OF_QKV):
        return
    if not subject.has.get("causal"):
        subject.has["causal"] = hides_future(trial)
    if subject.task == "mha" and not binding.takes("mask") and (subject.has["causal"] or makes_triangle(owner)):
        subject.task, subject.has["causal"] = "causal-mha", False
        if subject.prototype is None:
            subject.bindings = {tasks.TASKS[subject.task].own: binding}


def _of_a_block(trial: Trial, owner: Any) -> None:
    """Whether it may be an encoder's: it hides no token, and no name says that it means to."""
    subject, code = trial.subject, {trial.subject.name, *named(owner)}
    means = makes_triangle(owner) or any(re.search("causal|decoder|gpt", names.key(name)) for name in code)
    means = means or ("masked_fill" in code and not {"mask", "other_mask"} & {*trial.binding.roles.values()}) or _says_decoder(owner)
    subject.tell(**blocks.says_of(owner, subject.prototype))
    if not means and not hides_future(trial):
        subject.tell(encoder="1")


def _says_decoder(owner: Any) -> bool:
    """Whether docstrings and comments speak of a decoder and of nothing else."""
    module = sys.modules.get(owner.__module__)
    users = [name for name, one in vars(module or owner).items() if isinstance(one, type) and owner.__name__ in named(one) - {name}]
    says = " ".join([inspect.getdoc(module) or "", told_with_parts(owner), *re.findall("(?i)gpt|causal", " ".join(users))])
    other = re.search(r"(?i)encoder|\bBERT|\bViT|patch|image|bidirectional|no(?:t|n)?[- ]causal|双向|编码", says)
    return bool(re.search(r"(?i)\bcausal|\bdecoder|\bGPT|autoregressive|因果|解码", says)) and not other


def _ungrouped(trial: Trial) -> bool:
    """Whether code that repeats heads of k and v for groups of q's does it in another way than repeat_interleave: no probe asks."""
    subject = trial.subject
    if subject.kind != "function" or subject.task not in tasks.OF_QKV or not {"repeat", "expand", "tile"} & named(subject.thing):
        return False
    q, k, v = (trial.inputs[name] for name in ("q", "k", "v"))
    pairs = np.concatenate([q[:, :2], q[:, :2] + 1], 1)
    with contextlib.suppress(*FAILURES):
        ways = [{"q": pairs, "k": k[:, :2].repeat(n, 1), "v": v[:, :2].repeat(n, 1)} for n in (1, 2)]
        shared, repeated = (to_numpy(trial.call(way).out) for way in ways)
        return not np.allclose(shared, repeated)
    return False


def _axis(trial: Trial) -> list[str]:
    """Of a function of rows with an axis that may be missing what no probe asks: what it gives without one, another one."""
    binding = trial.binding
    if not binding.takes("axis") or binding.requires("axis"):
        return []
    name, x = binding.argument("axis"), next(iter(trial.subject.leaves(trial.ran).values()))

    def same(array: Any, turned: bool, **given: int) -> bool:
        out = to_numpy(binding.function(array, **given))
        return np.allclose(out.swapaxes(0, 1) if turned else out, to_numpy(binding.function(x, **{name: -1})))

    with contextlib.suppress(*FAILURES):
        without, other = same(x, False), same(x.swapaxes(0, 1), True, **{name: 0})
        return [f"{binding.name} without {name}"] * (not without) + [f"{name}=0"] * (not other)
    return []


def _readings(trial: Trial) -> None:
    """Square matrices may be [in, out] or [out, in]: both are tried, where no exercise says which."""
    subject, way = trial.subject, trial.subject.ways[0]
    exercise = subject.helpers["asked"] and not trial.binding.takes("params")  # none has a dict
    known = exercise or subject.task in tasks.PARTS or subject.prototype is not None
    if known or way.turned or way.heads or ways_of(subject, trial.binding) == [Way()]:
        return
    subject.ways = [way._replace(turned=True)]
    with contextlib.suppress(*FAILURES):
        trial.call(square(trial.inputs))
        subject.assignments = [Assignment(label, []) for label in ("matrices [in, out] (x W)", "matrices [out, in] (x W^T)")]
    subject.ways = [way]


def _cover(subject: Subject, names: Iterable[str | None], function: str | None = None) -> None:
    """`has["absent"]`: the contract's parameters that the code has nothing for; one bias of several is judged without any."""
    have = {name[:2] + letter for name in names if name and name[:2] in ("W_", "b_") for letter in name[2:]}
    contract = tasks.FUNCTIONS[subject.task][function or next(iter(subject.bindings), "") or tasks.TASKS[subject.task].own]
    subject.has["absent"] = [name for name, _ in contract if name[:2] in ("W_", "b_") and not any(name[:2] + letter in have for letter in name[2:])]


def _of_functions(subject: Subject, module: ModuleType | None, request: dict[str, Any]) -> None:
    """One function, and the other of its task where the file has it under the contract's name and none was asked for."""
    contracts = tasks.FUNCTIONS[subject.task]
    roles = {names.argument(one.name) for one in match.arguments_of(subject.thing)}
    nearest = max(contracts, key=lambda name: len(roles & dict(contracts[name]).keys()))
    own = subject.name if subject.name in contracts else nearest
    beside = vars(module) if module is not None and not request.get("name") else {}
    functions = {name: beside[name] for name in contracts if isinstance(beside.get(name), FunctionType)} | {own: subject.thing}
    if _hollow(subject.thing):
        raise Stop(f"not filled in yet: {subject.name} has no body", "unfilled")
    subject.bindings = {
        name: Binding(functions[name], subject.task, name, request.get("map") or {})
        for name in contracts
        if name in functions and not _hollow(functions[name])
    }
    binding = subject.bindings[own]
    if subject.task in tasks.STEPPED and not binding.takes("num_heads") and not subject.helpers["fixed"]:
        subject.sizes = Sizes(subject.sizes.embed, 1, 1, subject.sizes.embed)
    if subject.task == "lm" and not binding.takes("params"):
        subject.helpers["class"] = model_class(module, subject.thing)
    _cover(subject, ["W_qkvo", "b_qkvo"] if binding.takes("params") else binding.roles.values(), own)
    says = match.says_causal(subject.name, binding.roles.values(), subject.thing)
    subject.has["causal"] = subject.task not in tasks.CAUSAL and says and not binding.takes("causal")


def _of_parts(subject: Subject, module: ModuleType | None, request: dict[str, Any]) -> None:
    """The function, or a class as one, and the others of its task that the file has where none was asked for by name."""
    mapping, task = request.get("map") or {}, subject.task
    found = {subject.name: subject.thing}
    if module is not None and not request.get("name") and subject.kind == "function":
        found.update({name: one for name, one in vars(module).items() if isinstance(one, FunctionType) and parts.guess(name, one) == task})
    for name, one in sorted(found.items(), key=lambda one: parts.takes_cache(*one)):
        contract, one = parts.fitted(name, one, task, subject.bindings)
        if _hollow(one):
            subject.notes.append(f"{name} is not filled in yet")
        elif contract in subject.bindings:
            subject.helpers["callers"] += (name,)
        else:
            subject.bindings[contract] = Binding(one, task, contract, mapping)
    if not subject.bindings:
        raise Stop(f"not filled in yet: {subject.name} has no body", "unfilled")
    subject.bindings = {name: subject.bindings[name] for name in tasks.FUNCTIONS[task] if name in subject.bindings}


def _subject_of_object(subject: Subject, cls: type, values: dict[str, Any], own: dict[str, Any], request: dict[str, Any]) -> None:
    method = forward_of(cls)
    if method is None:
        raise Stop(f"{subject.name} has no method forward or __call__")
    if _hollow(getattr(cls, method)):
        raise Stop(f"not filled in yet: {subject.name}.{method} has no body", "unfilled")
    mapping = request.get("map") or {}
    if subject.kind == "class":
        subject.prototype, given, notes = building.build(cls, values, own, subject.people)
        subject.notes += notes
    else:
        given = {name: values[kind] for name in own if (kind := names.setting(name))}
        subject.prototype = subject.thing
    subject.method = method
    entries, rest = parameters.collect_called(subject.prototype, method if subject.task in tasks.LAYERS else "", values["embed"])
    block = blocks.of_block(entries, rest) if request.get("task") in (None, "block") and subject.task in tasks.LAYERS else None
    if block:
        subject.task, entries, rest = "block", block.rest, []
    elif subject.task == "block":
        have = parameters.describe([*entries, *rest]) or "no parameters"
        raise Stop(f"{subject.name} is no block that can be judged: its norms and its feed-forward part are not found in {have}")
    if not entries and subject.task in tasks.LAYERS:
        parameters.none_in(subject.name, subject.prototype, subject.task in tasks.SINGLE and not subject.helpers["asked"])
    if entries:
        subject.sizes = building.sizes_of(subject.prototype, entries, subject.task, values, given, subject.helpers["fixed"])
        subject.assignments = assign(entries, subject.sizes, mapping, int(request.get("alternatives") or 24), cls)
        if subject.kind == "class" and (says := building.unheeded(subject.sizes, subject.task, values, given, subject.helpers["asked"])):
            subject.tell(unheeded=says)
    held = {slot.path for one in subject.assignments for slot in one.slots}
    normed = [entry.path for entry in [*entries, *rest] if re.search(r"(?i)\b(?:q|k|query|key)_?(?:layer)?_?(?:norm|ln)\b", entry.path)]
    more = normed or [entry.path for entry in entries if entry.path not in held]
    if more and not block and request.get("task") is None:
        raise NoTask(f"no exercise asks for what {more[0]} in {subject.name} does; the nearest is `{subject.task}`")
    if block:
        subject.sizes = subject.sizes._replace(hidden=block.hidden)
        subject.assignments = [one._replace(slots=one.slots + way) for way in block.ways for one in subject.assignments]
    _describe(subject, cls, given, request.get("task"))
    subject.bindings = {"": Binding(getattr(subject.prototype, method), subject.task, None, mapping)}


def _norm_of(trial: Trial) -> str:
    """A norm that a layer applies, no block, by its type's name: it changes the layer's input, whatever its parameters are; "" without."""
    layer, applied = trial.subject.prototype, []
    if not is_module(layer) or trial.subject.task not in {*tasks.LAYERS} - {"block"}:
        return ""
    norms = [(name, part) for name, part in layer.named_children() if re.search("(?:Layer|RMS)Norm", type(part).__name__)]
    hooks = [part.register_forward_hook(lambda *_, name=name: applied.append(name)) for name, part in norms]
    with contextlib.suppress(Skipped, *FAILURES):
        trial.call(trial.ran)
    for hook in hooks:
        hook.remove()
    return next(iter(applied), "")


def _describe(subject: Subject, cls: type, given: dict[str, Any], task: str | None) -> None:
    """`has`, and which of the single heads it is."""
    slots = subject.assignments[0].slots if subject.assignments else []
    covered = {name for slot in slots for name in slot.names}
    merged, output = any(len(slot.letters) > 1 for slot in slots), "W_o" in covered
    forward = getattr(cls, subject.method)
    roles = {one.name: names.argument(one.name) for one in match.arguments_of(forward)}
    flags = [one for one in match.arguments_of(cls) if match.setting_of(one) == "causal"]
    # Always causal: its name says so, or it makes a triangle and takes no mask.
    own_causal = match.says_causal(subject.name, roles.values(), cls) or (makes_triangle(cls) and "mask" not in roles.values())
    if task is None and slots:
        subject.task = match.of_parameters(
            subject.task, named=match.by_name(subject.name) in tasks.SINGLE, merged=merged, output=output,
            masked=any(role == "mask" and reads(forward, name) for name, role in roles.items()),
            causal=own_causal or any(one.default is True for one in flags),
            square=subject.sizes.heads * subject.sizes.head_dim == subject.sizes.embed,
        )  # fmt: skip
    _cover(subject, covered)
    flag = bool(flags) or "causal" in {*building.settings_of(cls).values(), *roles.values()}
    subject.has["causal"] = subject.task not in tasks.CAUSAL and not flag and own_causal
    subject.helpers["never_causal"] = not flag and not own_causal
    if flags and subject.task not in tasks.CAUSAL and "causal" not in roles.values():
        subject.helpers["callers"] += (flags[0].name,)
    subject.has["dropout"] = building.dropout_of(subject.prototype, given)
    if subject.has["dropout"] is None:  # taken, and off by its default
        subject.helpers["callers"] += tuple(name for name in given if names.setting(name) == "dropout")


def as_json(subject: Subject) -> dict[str, Any]:
    """subject.json."""
    assignments = subject.assignments or [Assignment("their names say", [])]
    conventions, form = list(subject.conventions), subject.mask_form
    masked = subject.task in tasks.MASKED or (subject.task == "block" and form is not None and form.shape not in ROWS)
    if form is not None and form.convention:
        conventions.append(form.convention)
    untried = [name for one in subject.bindings.values() for name in one.untried(masked)] + [*subject.helpers["callers"]]
    untried = [name for name in untried if name not in subject.helpers.get("tried", ())]
    tiles = [[name for name, role in one.roles.items() if role == "block_size"] for one in subject.bindings.values()]
    untried += [f"{one[0]} != {one[1]}" for one in tiles if len(one) > 1]
    untried += [own[0] for one, own in zip(subject.bindings.values(), tiles) if own and not any(reads(one.function, name) for name in own)]
    begins = getattr(subject.thing, "begins", ())  # whether A, B have numbers at first
    untried += ["training from A = B = 0"] * (begins == {False})
    notes = subject.notes + ["neither A nor B is 0 at first: it does not begin as its frozen matrix"] * (begins == {True})
    untried += ["len(k) > len(q)"] * bool(subject.helpers.get("square")) + ["fewer heads of k and v"] * bool(subject.helpers.get("ungrouped"))
    return {
        "file": subject.people.file, "name": subject.name, "line": subject.line, "kind": subject.kind,
        "framework": subject.framework, "task": subject.task, "has": subject.has,
        "sizes": subject.sizes.known(), "small": [one.sizes.known() for one in subject.small],
        "assignments": [{"label": one.label, "convention": one.convention} for one in assignments],
        "conventions": conventions, "notes": notes,
        "promised": promised_by(subject.thing) + ["mask-true-shows"] * subject.helpers.get("said", False),
        "untried": list(dict.fromkeys(untried)),
    }  # fmt: skip
