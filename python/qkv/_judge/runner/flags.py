"""Options that no probe gives, so they are tried here. A flag `causal` of code whose task hides nothing: with it query i must give what it
gives without it on keys 0 to i alone. Of the formula a scale, fewer heads of k and v, masks of floats beside bool. Not: code that is
always causal (describing.py)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
from typing import Any

import numpy as np

from . import building
from .calling import Binding, Result
from .contracts import names, tasks
from .errors import FAILURES
from .first_calls import Trial
from .frameworks import is_array, reads, source_of, to_numpy, told
from .match import arguments_of, required
from .slots import Tensors
from .subject import Skipped, attended, causal_mask, padding_mask, square

#: Words of code whose flag means another triangle.
_OTHERWISE = re.compile(r"(?i)strict|exclu|look_?-? ?ahead|shift|delay|不(?:含|包括)自身|不能看到?自己")
#: What else a flag may do: a mistake, and how many of the keys 0 to i + 1 its query i sees.
_MISTAKES = (("causal-sees-next", 2), ("causal-off-by-one", 0))


def _out(trial: Trial, tensors: Tensors, causal: bool = False) -> np.ndarray:
    metadata, trial.metadata = trial.metadata, {**trial.metadata, "causal": str(int(causal))}
    try:
        return np.asarray(to_numpy(trial.unmasked(tensors).out), np.float64)
    finally:
        trial.metadata = metadata


def _row(trial: Trial, tensors: Tensors, i: int, count: int) -> np.ndarray:
    """The output of query i without the flag on the first `count` keys, [B, .., columns]."""
    layer = "x" in tensors
    cut = {name: x[..., i : i + 1, :] if name == "q" else x[..., :count, :] if name in ("x", "k", "v") else x for name, x in tensors.items()}
    return _out(trial, cut)[..., i if layer else 0, :]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool((np.abs(one - other) <= 1e-4 * (1 + np.abs(other))).all())


def _found(trial: Trial, flagged: Trial, name: str) -> dict[str, str] | None:
    """{}: the flag does what it says; a mistake for the engine (its id and what was seen); None: nothing can be said."""
    tensors = square({name: x for name, x in trial.ran.items() if name != "mask"})
    with contextlib.suppress(Skipped, *FAILURES):
        got = _out(flagged, tensors, True)
        length = got.shape[-2]
        if all(_same(got[..., i, :], _row(trial, tensors, i, i + 1)) for i in range(length)):
            return {}
        for mistake, count in _MISTAKES:
            rows = range(1, length - 1)
            with contextlib.suppress(*FAILURES):  # a layer has no query without its own key
                if all(_same(got[..., i, :], _row(trial, tensors, i, i + count)) for i in rows):
                    return {"unheeded_as": mistake, "unheeded": f"{name}=True: query 1 gives what it gives without it on keys 0 to {count} alone"}
    return None


def try_causal(trial: Trial, values: dict[str, Any], own: dict[str, Any]) -> None:
    """Of a function's argument, or a constructor's: tried where the task's own calls leave it out. Notes for the verdict."""
    subject, binding = trial.subject, trial.binding
    asked_for = subject.task in tasks.CAUSAL or any("causal" in dict(contract) for contract in tasks.FUNCTIONS[subject.task].values())
    if asked_for or subject.task not in (*tasks.OF_QKV, *tasks.LAYERS) or subject.task in tasks.STEPPED or subject.task == "cross":
        return
    if _OTHERWISE.search(" ".join([told(subject.thing), told(binding.function), *binding.roles])):
        return
    name, flagged = "", trial
    if binding.takes("causal"):
        name = binding.argument("causal")
        if not reads(binding.function, name):
            return
    elif subject.kind == "class":
        flags = [one.name for one in arguments_of(subject.thing) if names.setting(one.name) == "causal"]
        if not flags:
            return
        name = flags[0]
        with contextlib.suppress(Exception):
            made, _, _ = building.build(subject.thing, {**values, "causal": True}, own, subject.people)
            bindings = {"": Binding(getattr(made, subject.method), subject.task, None, {})}
            flagged = Trial(dataclasses.replace(subject, prototype=made, notes=[], bindings=bindings), trial.function)
            flagged.subject.branches = subject.branches
            flagged.ran = trial.ran
        if flagged is trial:
            return
    else:
        return
    with subject.branches.watched():
        found = _found(trial, flagged, name)
    if found is not None:
        _note(trial, name, found)


def _note(trial: Trial, name: str, found: dict[str, str]) -> None:
    subject = trial.subject
    subject.helpers["tried"] = (*subject.helpers.get("tried", ()), name)
    if found:
        subject.has["metadata"] = {**subject.has.get("metadata", {}), **found}


#: Names of what the scores are multiplied by; the number that is tried.
_SCALES, _SCALE = ("scale", "softmaxscale", "smscale", "scaling"), 0.37


def _called(trial: Trial, tensors: Tensors, **given: Any) -> np.ndarray:
    """The output where arguments have these values, by their names."""
    other = copy.copy(trial)
    other.binding = copy.copy(trial.binding)
    other.binding.function = functools.partial(trial.binding.function, **given)
    return _out(other, tensors)


def _scales(trial: Trial, tensors: Tensors, one: Any, asked: bool) -> str | None:
    """"": the argument does what it says; what was seen of one that does not; None: nothing can be said."""
    root = np.sqrt(tensors["q"].shape[-1])
    own, inverse = [_SCALE, _SCALE / root], [1 / _SCALE, 1 / _SCALE / root]
    if isinstance(one.default, bool):
        value, right, others = not one.default, [1.0], []
    elif one.default is None:
        value, right, others = _SCALE, own[:1], own[1:] + inverse
    elif isinstance(one.default, (int, float)):
        value, right, others = _SCALE, own + inverse, []
    else:
        return None
    got = _called(trial, tensors, **{one.name: value})
    if any(_same(got, attended(tensors, scale)["out"]) for scale in right):
        return ""
    if _same(got, attended(tensors)["out"]):  # what is read may count beside another option alone
        return f"{one.name}={value}: it gives what it gives without" if asked or not reads(trial.binding.function, one.name) else None
    known = any(_same(got, attended(tensors, scale)["out"]) for scale in others)  # a divisor, a factor more: its author's to say
    return f"{one.name}={value}: the scores are not q.k times {value}" if asked and value == _SCALE and not known else None


def _groups(trial: Trial, tensors: Tensors, name: str) -> str | None:
    """As _scales, for a flag with which neighbouring heads of q share one of k and v."""
    if tensors["q"].ndim != 4:
        return None
    rng = np.random.default_rng(16)
    grouped = {x: rng.standard_normal((one.shape[0], 4 if x == "q" else 2, *one.shape[2:])) for x, one in tensors.items()}
    expected = attended({x: one if x == "q" else one.repeat(2, 1) for x, one in grouped.items()})["out"]
    got = _called(trial, grouped, **{name: True})
    if got.shape != expected.shape:
        return None
    if _same(got, expected):
        return ""
    if re.search(r"(?i)%|\btil(?:e|ed|ing)\b|\bmod", told(trial.binding.function)):  # says which heads share one
        return None
    head = next(h for h in range(4) if not _same(got[:, h], expected[:, h]))
    return f"{name}=True, 4 heads of q on 2 of k and v: head {head} of q gives other numbers than on head {head // 2} of k and v"


def _floats(trial: Trial, tensors: Tensors, asked: bool) -> str | None:
    """As _scales, for a mask that is bool, or numbers that are added to the scores."""
    subject, name = trial.subject, trial.binding.argument("mask")
    chosen, own = subject.mask_form, (padding_mask(tensors, 1, 2), causal_mask(tensors))
    mask = next(one for one in own if chosen.of(one, 1, subject.framework, subject.dtype) is not None)
    noise = np.random.default_rng(17).standard_normal(mask.shape[-1])
    numbers = np.where(mask if tensors["q"].ndim == 4 else mask[:, 0], noise, -np.inf)
    added = chosen._replace(dtype="float", hides=False, added=True, shift=noise)
    try:
        got, kept = (trial.masked(form)({**tensors, "mask": mask}).out for form in (added, added._replace(added=False)))
    finally:
        subject.mask_form = chosen
    expected, hidden = (attended(tensors, bias=bias)["out"] for bias in (numbers, np.where(numbers > -np.inf, 0, -np.inf)))
    if _same(to_numpy(got), expected) or _same(to_numpy(kept), hidden):  # added, or 1 and 0
        return ""
    return f"{name} as numbers and -inf: they are not what is added to the scaled scores" if asked else None


#: What a docstring calls an array beside the output that is no weights: said to be untried.
_OF_ANOTHER = re.compile(r"(?i)score|logit|mask|ind(?:ex|ices)|log[_ -]?(?:weight|soft|sum|prob)|lse|\bstat|present|past|cache|unnormali[sz]ed")


def _beside(trial: Trial, result: Result, right: Tensors) -> tuple[str, ...]:
    """What is returned beside output and weights, and is no maximum, sum or logarithm of the sum of a row: nothing says what it should be."""
    subject = trial.subject
    if result.weights is not None and _OF_ANOTHER.search(told(trial.binding.function)):
        if not _same(to_numpy(result.weights).sum(-1), np.ones(result.weights.shape[:-1])):
            result.weights = None
    subject.helpers["no_weights"] = result.weights is None  # with other numbers of keys an array may look like them
    returned = result.raw if isinstance(result.raw, (tuple, list)) else ()
    known, others = (right["top"], right["sum"], right["lse"], right["lse"] / np.log(2)), []
    for index, value in enumerate(returned):
        if value is None or value is result.out or value is result.weights:
            continue
        found = to_numpy(value) if is_array(value) else np.zeros(0)
        found = found[..., 0] if found.shape == (*right["top"].shape, 1) else found
        if subject.slices is not None or not any(found.shape == one.shape and _same(found, one) for one in known):
            others.append(f"returned[{index}]")
    return tuple(others)


def try_options(trial: Trial) -> None:
    """Of a function of q, k and v that is right without: a scale, fewer heads of k and v, masks of floats. Notes for the verdict."""
    subject, binding = trial.subject, trial.binding
    if subject.kind != "function" or subject.task not in ("sdpa", "flash"):
        return
    tensors = {name: trial.ran[name] for name in "qkv"}
    optional = {names.key(one.name): one for one in binding.parameters if binding.roles[one.name] is None and not required(one)}
    torchs = names.key(subject.name) == "scaleddotproductattention" and "enablegqa" in optional
    ways = [(one.name, functools.partial(_scales, trial, tensors, one, torchs)) for key, one in optional.items() if key in _SCALES]
    ways += [(one.name, functools.partial(_groups, trial, tensors, one.name)) for key, one in optional.items() if key == "enablegqa"]
    form = subject.mask_form if binding.takes("mask") and re.search(r"\bdtype|is_floating_point", source_of(binding.function)) else None
    if form is not None and form.dtype == "bool" and not form.hides and not form.added:
        ways.append((binding.argument("mask"), functools.partial(_floats, trial, tensors, torchs)))
    with contextlib.suppress(Skipped, *FAILURES):
        result, right = trial.unmasked(tensors), attended(tensors)
        subject.helpers["callers"] += _beside(trial, result, right)
        if not _same(to_numpy(result.out), right["out"]):
            return
        for name, way in ways:
            with contextlib.suppress(Skipped, *FAILURES):
                seen = way()
                if seen is None:
                    continue
                with subject.branches.watched():
                    way()
                _note(trial, name, {"unheeded": seen, "unheeded_as": "option-not-followed"} if seen else {})
