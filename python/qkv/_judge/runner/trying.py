"""The first calls: whether the code runs, in which type, with which form of mask. Not: what is judged (answering.py)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from . import masks, names, tasks, trial
from .calling import Binding
from .errors import FAILURES, Stop
from .slicing import choices
from .steps import beginnings, step_values
from .subject import Skipped, Subject
from .training import train_steps, trial_tensors


def _attempt(subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> Any:
    target = subject.fresh(tensors, 0) if subject.prototype is not None else None
    values = subject.values(binding, tensors, metadata, subject.leaves(tensors))
    if subject.task != "cache":
        return subject.call(binding, target, values, tensors)
    failure: BaseException | None = None
    for state in beginnings(binding):
        subject.helpers["cache"] = copy.deepcopy(state)
        try:
            return subject.call(binding, target, step_values(binding, values, state, 0), tensors)
        except FAILURES as error:
            failure = failure or error
    assert failure is not None
    raise failure


def materialise(subject: Subject, binding: Binding) -> None:
    """One call of the object itself: parameters without shapes get them."""
    tensors = trial.probe(subject.task, next(iter(tasks.FUNCTIONS[subject.task])), subject.sizes)
    inputs = {name: value for name, value in tensors.items() if name[:2] not in ("W_", "b_")}
    subject.dtype = "float32"
    try:
        values = subject.values(binding, inputs, trial.metadata(subject.task, subject.sizes), subject.leaves(inputs))
        subject.call(binding, subject.prototype, values, inputs)
    except (*FAILURES, Skipped) as error:
        raise subject.people.stop(error, f"calling {subject.name}") from None


def try_out(subject: Subject, function: str) -> None:
    """One call: in float64, in float32 where that fails; then with a mask in each form until one is taken."""
    if subject.task == "lm":
        return _try_training(subject)
    tensors = trial.probe(subject.task, function or next(iter(tasks.FUNCTIONS[subject.task])), subject.sizes)
    metadata = trial.metadata(subject.task, subject.sizes)
    binding = subject.bindings[function]
    plain = None
    if not binding.requires("mask"):
        # As many keys as queries where that is the only thing that works: some mistakes are of that kind.
        plain, failure = _try_types(subject, binding, tensors, metadata)
        if failure is not None and trial.has_more_keys(tensors):
            tensors = trial.square(tensors)
            plain, again = _try_types(subject, binding, tensors, metadata)
            failure = again and failure
        if failure is not None:
            plain, failure, tensors = _try_slices(subject, binding, tensors, metadata, failure)
        if failure is not None:
            raise subject.people.stop(failure, f"calling {subject.name}") from None
        if plain is None:
            return
        if subject.dtype == "float32":
            subject.notes.append("judged in float32: it does not run in float64")
        subject.has["weights"] = subject.has["weights"] or plain.weights is not None
        if plain.weights_first:
            subject.conventions.append("weights-first")
        _try_longer(subject, function, binding)
    if binding.takes("mask"):
        try:
            _try_masks(subject, binding, tensors, metadata, plain)
        except Stop as stop:
            if plain is not None or stop.verdict != "failed" or not _masked_slices(subject, binding, tensors, metadata):
                raise


def _masked_slices(subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bool:
    """Whether code that must have a mask runs without a batch."""
    for slices in choices(tensors) if subject.task != "cache" else []:
        subject.slices = slices
        try:
            _try_masks(subject, binding, tensors, metadata, None)
        except Stop:
            continue
        subject.notes.append(slices.note)
        return True
    subject.slices = None
    return False


def _try_longer(subject: Subject, function: str, binding: Binding) -> None:
    """Causal code: whether it takes more keys than queries, now that it takes as many."""
    causal = subject.task == "causal" or subject.has.get("causal") or binding.takes("causal")
    tensors = trial.probe("sdpa", "sdpa", subject.sizes)
    if subject.task not in ("causal", "sdpa", "flash", "linear") or not causal or subject.square:
        return
    metadata = {**trial.metadata(subject.task, subject.sizes), "causal": "1"}
    works = []
    for inputs in (trial.square(tensors), tensors):
        try:
            _attempt(subject, binding, inputs, metadata)
            works.append(True)
        except Skipped:
            return
        except FAILURES:
            works.append(False)
    if works == [True, False]:
        subject.square = True
        subject.notes.append(f"{binding.name} takes as many queries as keys only: it was not asked for more keys")


def _ends(subject: Subject, error: BaseException) -> bool:
    """Other arguments would not help."""
    return isinstance(error, (Stop, SystemExit)) or subject.people.unfilled(error)


def _try_slices(
    subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str], failure: BaseException
) -> tuple[Any, BaseException | None, dict[str, np.ndarray]]:
    """(result, None, inputs) of a call without a batch; the error of the contract's form where none works."""
    if subject.task == "cache" or _ends(subject, failure):
        return None, failure, tensors
    for slices in choices(tensors):
        subject.slices = slices
        plain, again = _try_types(subject, binding, tensors, metadata)
        if again is None and plain is not None and _fits(subject, plain, tensors):
            subject.notes.append(slices.note)
            return plain, None, tensors
    subject.slices = None
    return None, failure, tensors


def _fits(subject: Subject, result: Any, tensors: dict[str, np.ndarray]) -> bool:
    return subject.task == "backward" or tuple(result.out.shape) == subject.expected(tensors)


def _try_types(
    subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str]
) -> tuple[Any, BaseException | None]:
    """(result, None), or (None, the error); both None where there is nothing to call."""
    failure: BaseException | None = None
    for dtype in ("float64", "float32"):
        subject.dtype = dtype
        try:
            return _attempt(subject, binding, tensors, metadata), None
        except Skipped:
            return None, None
        except FAILURES as error:
            failure = error
            if _ends(subject, error):
                break
    return None, failure


def _try_training(subject: Subject) -> None:
    try:
        train_steps(subject, trial_tensors(), {"repeat": "1"}, 0)
    except FAILURES as error:
        raise subject.people.stop(error, f"calling {subject.name}") from None


def _try_masks(
    subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str], plain: Any
) -> None:
    """Padding first, which most forms can say; then one mask for all sequences."""
    shape = tuple(plain.out.shape) if plain is not None else subject.expected(tensors)
    argument = binding.argument("mask")
    hides = type(subject.thing).__module__.startswith("torch.nn") and argument == "attn_mask"
    forms = masks.forms(argument, subject.task, hides)
    if subject.slices is not None:
        forms = [form for form in forms if form.shape == subject.slices.mask_shape]
    fallback, failure = None, None
    for mask in (trial.padding_mask(tensors), trial.causal_mask(tensors)):
        for form in forms:
            subject.mask_form = form
            try:
                result = _attempt(subject, binding, {**tensors, "mask": mask}, metadata)
            except Skipped:
                continue
            except FAILURES as error:
                if isinstance(error, Stop) or subject.people.unfilled(error):
                    raise subject.people.stop(error, f"calling {subject.name} with a mask") from None
                failure = failure or error
                continue
            if tuple(result.out.shape) == shape:
                _or_added(subject, binding, {**tensors}, metadata, mask, forms)
                return _say_form(subject, argument)
            fallback = fallback or form
    subject.mask_form = fallback or forms[0]
    for mask in (trial.padding_mask(tensors), trial.causal_mask(tensors)):
        if fallback is None and _or_added(subject, binding, {**tensors}, metadata, mask, forms):
            return _say_form(subject, argument)
    if plain is None and failure is not None:
        raise subject.people.stop(failure, f"calling {subject.name} with a mask")


def _or_added(
    subject: Subject, binding: Binding, tensors: dict[str, np.ndarray], metadata: dict[str, str], mask: np.ndarray,
    forms: list[masks.Form],
) -> bool:  # fmt: skip
    """Reads the mask as one whose True hides (where the code says so), or that is added to the scores, where only so what it
    hides stays hidden."""
    chosen = subject.mask_form
    assert chosen is not None

    def calling(form: masks.Form) -> Any:
        def call(given: dict[str, np.ndarray]) -> Any:
            subject.mask_form = form
            return _attempt(subject, binding, given, metadata)

        return call

    def keeps(form: masks.Form) -> bool:
        try:
            return not masks.leaks(calling(form), tensors, mask)
        except FAILURES:  # Skipped too: the form cannot say this mask
            return False

    def is_added(form: masks.Form) -> bool:
        try:
            return masks.adds(calling(form), calling(form._replace(shift=0.5)), tensors, mask)
        except FAILURES:
            return False

    hiding = [one._replace(hides=True) for one in (chosen, *forms)] if masks.says_hidden(subject.thing, binding.function) else []
    contract = subject.task not in tasks.LAYERS and names.key(binding.argument("mask")) == "mask"
    if chosen.added or (contract and not hiding) or keeps(chosen):  # a function's contract says what its `mask` is
        subject.mask_form = chosen
        return False
    for form in dict.fromkeys(hiding):
        if keeps(form):
            subject.mask_form = form
            return True
    for form in () if contract else dict.fromkeys(masks.added(one) for one in (chosen, *forms)):
        if keeps(form) and is_added(form):
            subject.mask_form = form
            return True
    subject.mask_form = chosen
    return False


def _say_form(subject: Subject, argument: str) -> None:
    form = subject.mask_form
    assert form is not None
    if subject.slices is not None:
        return
    if form.added and names.mask_kind(argument) != "added":
        subject.notes.append(f"{argument} was taken for 0 and -inf, to be added to the scores: only so it hides what it should")
    elif form.shape not in ("[B, 1, L, L]", "[B, L, L]") or form.dtype != "bool":
        subject.notes.append(f"its mask is {form.dtype} {form.shape}")
    if form.hides:
        subject.notes.append(f"{argument}: True was taken for hidden, as its name or the docstring says")
