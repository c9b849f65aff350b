"""A flag `causal` of code whose task hides nothing: no probe gives it, so it is tried here. With it query i must give what it gives without
it on keys 0 to i alone. A mask in training mode. Not: code that is always causal (describing.py), options of the formula (options.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Any

import numpy as np

from .. import building
from ..calling import Binding
from ..contracts import tasks
from ..errors import FAILURES
from ..frameworks import is_module, reads, to_numpy, told, torch_of
from ..masks import LENGTHS, ROWS, leaks
from ..match import arguments_of, setting_of
from ..slots import Tensors
from ..subject import Skipped, causal_mask, lengths, padding_mask, square
from .first_calls import Trial

#: Words of code whose flag means another triangle.
_OTHERWISE = re.compile(r"(?i)strict|exclu|look_?-? ?ahead|shift|delay|不(?:含|包括)自身|不能看到?自己")
#: What else a flag may do: a mistake, and how many of the keys 0 to i + 1 its query i sees.
_MISTAKES = (("causal-sees-next", 2), ("causal-off-by-one", 0))


def _out(trial: Trial, tensors: Tensors, causal: bool = False) -> np.ndarray:
    metadata, trial.metadata = trial.metadata, {**trial.metadata, "causal": str(int(causal))}
    try:
        return np.asarray(to_numpy(trial.call(tensors).out), np.float64)
    finally:
        trial.metadata = metadata


def _row(trial: Trial, tensors: Tensors, i: int, end: int, begin: int = 0) -> np.ndarray:
    """The output of query i without the flag on keys [begin, end), [B, .., columns]."""
    layer = "x" in tensors
    cut = {
        name: x[..., i : i + 1, :] if name == "q" else x[..., begin:end, :] if name in ("x", "k", "v") else x for name, x in tensors.items()
    }
    return _out(trial, cut)[..., i - begin if layer else 0, :]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool((np.abs(one - other) <= 1e-4 * (1 + np.abs(other))).all())


def _found(trial: Trial, flagged: Trial, name: str) -> dict[str, str] | None:
    """{}: the flag does what it says; a mistake for the engine (its id and what was seen); None: nothing can be said."""
    tensors = square({name: x for name, x in trial.ran.items() if name != "mask"})
    with contextlib.suppress(Skipped, *FAILURES):
        got = _out(flagged, tensors, True)
        length = got.shape[-2]
        if all(same(got[..., i, :], _row(trial, tensors, i, i + 1)) for i in range(length)):
            return _padded(trial, flagged, name, tensors)
        for mistake, count in _MISTAKES:
            rows = range(1, length - 1)
            with contextlib.suppress(*FAILURES):  # a layer has no query without its own key
                if all(same(got[..., i, :], _row(trial, tensors, i, i + count)) for i in rows):
                    return {"unheeded_as": mistake, "unheeded": f"{name}=True: query 1 gives what it gives without it on keys 0 to {count} alone"}
        for more in (0, 1):
            if all(same(got[..., i, :], _row(trial, tensors, i, length, i + more)) for i in range(1, length - 1)):
                return {"unheeded_as": "causal-flipped", "unheeded": f"{name}=True: query 1 gives what it gives without it on keys {1 + more} on"}
    return None


def _padded(trial: Trial, flagged: Trial, name: str, tensors: Tensors) -> dict[str, str]:
    """What is lost of a flag that works, or of a mask of keys alone, where both are given: the first key of every sequence is hidden."""
    form = trial.subject.mask_form
    if form is None or form.shape not in ROWS or form.shape == LENGTHS or not trial.binding.takes("mask"):
        return {}
    (batch, rows), columns = lengths(tensors)
    mask = np.broadcast_to(np.arange(columns) > 0, (batch, 1, rows, columns)).copy()
    cut = {name: x[..., 1:, :] if name in ("x", "q", "k", "v") else x for name, x in tensors.items()}
    with contextlib.suppress(Skipped, *FAILURES):
        alone, both = _out(flagged, cut, True), _out(flagged, {**tensors, "mask": mask}, True)[..., 1:, :]
        if same(both, alone):
            return {}
        given = f"{name}=True and {trial.binding.argument('mask')} that hides the first token: "
        if same(both, _out(flagged, tensors, True)[..., 1:, :]):
            return {"unheeded_as": "other-mask", "unheeded": given + "as without the mask"}
        if same(both, _out(trial, cut)):
            return {"unheeded_as": "no-causal", "unheeded": given + f"as without {name}"}
    return {}


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
            subject.helpers["callers"] += (name,)
            return
    elif subject.kind == "class":
        flags = [one.name for one in arguments_of(subject.thing) if setting_of(one) == "causal"]
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
        note(trial, name, found)


def try_mask_in_training(trial: Trial) -> None:
    """Whether what the mask hides stays hidden in training mode, where the same numbers are drawn: no probe gives a mask there. What cannot be
    told is untried."""
    subject, binding = trial.subject, trial.binding
    trains = is_module(subject.prototype) or hasattr(subject.prototype, "training") or binding.takes("training")
    if subject.mask_form is None or not binding.takes("mask") or not trains or subject.task in tasks.STEPPED:
        return

    def call(tensors: Tensors, mode: str = "training") -> Any:
        np.random.seed(0)
        if torch_of() is not None:
            torch_of().manual_seed(0)
        values = subject.values(binding, tensors, {**trial.metadata, "call": mode}, subject.leaves(tensors))
        return subject.call(binding, subject.fresh(tensors, 0, mode == "training"), values, tensors)

    for mask in (padding_mask(trial.ran, 1, 2), causal_mask(trial.ran)):
        with contextlib.suppress(Skipped, *FAILURES):
            if leaks(lambda tensors: call(tensors, "forward"), trial.ran, mask):
                return  # its probes say so
            one, other = (to_numpy(call({**trial.ran, "mask": mask}).out) for _ in range(2))
            if not np.array_equal(one, other, equal_nan=True):
                break
            if leaks(call, trial.ran, mask):
                seen = "train(), the same numbers drawn: keys that the mask hides change the output, and do not in eval()"
                subject.tell(unheeded=seen, unheeded_as="mask-in-training")
            return
    subject.helpers["callers"] += ("mask in train()",)


def note(trial: Trial, name: str, found: dict[str, str]) -> None:
    """What was found of an option, which counts as tried."""
    trial.subject.helpers["tried"] = (*trial.subject.helpers.get("tried", ()), name)
    trial.subject.tell(**found)
