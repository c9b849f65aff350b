"""The first calls, before the tool's probes exist: whether the code runs, in which type, with or without a batch, with which form of
mask. Not: what is judged (answering.py)."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from typing import Any

import numpy as np

from .. import masks
from ..calling import Binding, beginnings, step_values
from ..contracts import names
from ..contracts.tasks import CAUSAL, LAYERS, MASKED, OF_QKV, PARTS, STEPPED, TASKS
from ..errors import FAILURES, Stop
from ..frameworks import source_of, to_numpy, told
from ..slicing import ROWS, TIME_FIRST, WHOLE, Slices, choices, choices_of_part, heads_behind, tokens_first
from ..slots import Sizes, Tensors
from ..steps import settle, train_steps, trial_tensors
from ..subject import Skipped, Subject, Way, causal_mask, has_more_keys, lengths, padding_mask, square

#: Of the inputs of these calls: all different, so that nothing fits by chance.
BATCH, LENGTH, MEMORY = 2, 5, 7


def inputs_of(task: str, function: str, sizes: Sizes) -> Tensors:
    """Tensors of a function's contract, without a mask; of backward as many keys as queries."""
    rng, (embed, heads, kv_heads, dim, hidden) = np.random.default_rng(15), sizes
    letters = {**TASKS[task].sizes, "B": BATCH, "T": LENGTH, "L": LENGTH, "S": MEMORY, "M": MEMORY, "E": embed, "H": heads, "d": dim,
               "P": heads * dim, "G": kv_heads * dim, "3E": 3 * embed, **({"F": hidden} if hidden else {})}  # fmt: skip
    axes = TASKS[task].tensors
    tensors: Tensors = {}
    for name in (arguments := [name for name, _ in TASKS[task].functions[function]]):
        own = axes.get("dout_layer" if task == "backward" and name == "dout" and "x" in arguments else name)
        if name == "positions":
            tensors[name] = np.arange(LENGTH)
        elif name != "mask" and own is not None:
            tensors[name] = rng.standard_normal([letters[axis] for axis in own]) / (1 if len(name) == 1 else 3)
            if name in TASKS[task].whole:
                tensors[name] = np.full_like(tensors[name], 4)
    return square(tensors) if task in ("causal", "backward") else tensors


class Trial:
    """The first calls of one function of a subject: `inputs` of its contract, `ran` those that it runs with, as they are or cut."""

    def __init__(self, subject: Subject, function: str) -> None:
        self.subject, self.function, self.binding = subject, function, subject.bindings[function]
        task, sizes = subject.task, subject.sizes
        numbers = dict(re.findall(r"(\w+) (-?[\d.][\d.e-]*)", " ".join(TASKS[task].probes[:1]).partition("|")[2].partition("|")[0]))
        self.metadata = {
            "task": task, "name": "trial", "call": "forward", "heads": str(sizes.heads), "kv_heads": str(sizes.kv_heads),
            "causal": "1" if task in CAUSAL else "0", "block": "3", "dropout": "0.25", "base": "10000", "lr": "0.1", "window": "3", **numbers,
        }  # fmt: skip
        self.inputs = trial_tensors() if task == "lm" else inputs_of(task, function or TASKS[task].own, sizes)
        self.ran, self.given = self.inputs, dict[str, Any]()  # given: the arrays that the last call had

    def call(self, tensors: Tensors) -> Any:
        """In the first way that runs; Skipped, or the error of the first way."""
        subject, binding = self.subject, self.binding
        target = subject.fresh(tensors, 0)
        failure: BaseException | None = None
        ways, states = subject.ways, beginnings(binding) if subject.task == "cache" else [subject.helpers.get("cache")]
        ran: list[tuple[Any, Way, Any]] = []
        for way, state in itertools.product(ways, states):
            subject.ways, subject.helpers["cache"], own = [way], state, copy.deepcopy(state)
            try:
                leaves = subject.leaves(tensors)
                values = subject.values(binding, tensors, self.metadata, leaves)
                values = step_values(binding, values, own, 0) if subject.task in STEPPED else values
                result = subject.call(binding, target, values, tensors)
            except Skipped:
                subject.ways = ways
                raise
            except FAILURES as error:
                failure = failure or error
                continue
            ran.append((result, way, state))
            self.given = leaves
            if result.rest or own or len(states) == 1:  # a dict that was filled keeps what None does not
                break
        subject.ways = ways
        if not ran:
            assert failure is not None
            raise failure
        result, way, subject.helpers["cache"] = ran[-1] if ran[-1][0].rest or own else ran[0]
        subject.ways = [way]
        return result

    def masked(self, form: masks.Form) -> masks.Call:
        """Calls with a mask in this form."""

        def call(tensors: Tensors) -> Any:
            self.subject.mask_form = form
            return self.call(tensors)

        return call

    def unmasked(self, tensors: Tensors) -> Any:
        return self.call({name: value for name, value in tensors.items() if name != "mask"})


#: How a projection's weight and bias may be called in a dict of both.
_PAIRS = (("w", "b"), ("weight", "bias"), ("W", "b"), ("kernel", "bias"))
_TURNED = re.compile(r"[\[(]\s*out\w*\s*,\s*in|nn\.Linear|\bW @? ?x\b")


def ways_of(subject: Subject, binding: Binding) -> list[Way]:
    """Every way to give a function its parameters; [out, in] alone where it says so itself."""
    if not any(role and (role == "params" or role[:2] == "W_") for role in binding.roles.values()):
        return [Way()]
    ways = [Way(), Way(nested=True)] if binding.takes("params") else [Way(), *(Way(pair=pair) for pair in _PAIRS)]
    turned = [way._replace(turned=True) for way in ways]
    return turned if _TURNED.search(told(subject.thing)) else [*ways, *turned, *(Way(heads=axes) for axes in (1, 2, 3) if subject.sizes.heads > 1)]


def first_call(trial: Trial) -> None:
    """One call in the first way that works; then with a mask in each form until one is taken."""
    subject, binding = trial.subject, trial.binding
    if subject.task == "lm":
        try:
            train_steps(subject, trial.inputs, {"repeat": "1"}, 0)
        except FAILURES as error:
            raise subject.people.stop(error, subject.calling) from None
        return
    if subject.task in PARTS:
        return _try_part(trial)
    if subject.task in STEPPED and subject.task != "cache" and settle(subject, binding, trial.inputs, trial.metadata, beginnings(binding)):
        subject.notes += ["judged in float32: it does not run in float64"] if subject.dtype == "float32" else []
        return
    if binding.requires("mask"):
        _swapped(trial, trial.inputs)  # a mask may be None all the same
        subject.notes += [subject.slices.note] if subject.slices is not None else []
        return _try_mask_in_slices(trial, None)
    plain = _plain(trial)
    subject.notes += [subject.slices.note] if subject.slices is not None else []
    subject.notes += ["judged in float32: it does not run in float64"] if subject.dtype == "float32" else []
    found, wanted = ([*shape] for shape in (plain.out.shape, subject.expected(trial.ran)))
    if subject.slices is None and len(found) > len(wanted) and [n for n in found if n > 1] == [n for n in wanted if n > 1]:
        subject.notes.append(f"it returns {found}, and not {wanted}: axes of size 1 are too many")
    if plain.weights_first:
        subject.conventions.append("weights-first")
    if subject.task not in MASKED and not (subject.task == "block" and binding.takes("mask")):
        return
    if binding.takes("mask"):
        _try_mask_in_slices(trial, tuple(plain.out.shape))
    else:
        _guess_mask(trial, tuple(plain.out.shape))


def _plain(trial: Trial) -> Any:
    """A call without a mask: as the contract has it; with as many keys as queries, as some mistakes need; without a batch;
    each in float64, then in float32."""
    subject, tensors, task = trial.subject, trial.inputs, TASKS[trial.subject.task]
    ways: list[tuple[Any, Tensors]] = [(None, tensors)]
    first = tokens_first(subject.thing, trial.binding.function) if getattr(tensors.get("x"), "ndim", 0) == 3 else ""
    if first:
        ways = [(Slices("[L, B, E]", TIME_FIRST, swaps=(0, 1)), tensors), *(ways if first == "named" else [])]
    elif "norm" in task.parts and _of_rows(trial):
        ways = [(Slices("[N, E]", ROWS, {"x": (), "dout": ()}), tensors)]
    if subject.task in PARTS:
        own = choices_of_part({name: task.tensors[name] for name in tensors}, task.returns[trial.function])
        ways += [(slices, tensors) for slices in own]
    else:
        cut = square(tensors)
        ways += [(None, cut)] if has_more_keys(tensors) else []
        if subject.task == "cache":
            cut = {name: value[:, :1] if name == "x" else value for name, value in cut.items()}
        ways += [(slices, cut) for slices in choices(tensors, subject.task == "cache")]
    failures: list[BaseException] = []
    for subject.slices, inputs in ways:
        for subject.dtype in ("float64", "float32"):
            try:
                result = trial.call(inputs)
            except FAILURES as error:
                if isinstance(error, (Stop, SystemExit)) or subject.people.unfilled(error):  # another way would not help
                    raise subject.people.stop(error, subject.calling) from None
                failures.append(error)
                continue
            if subject.slices is None or subject.task in ("backward", *PARTS) or tuple(result.out.shape) == subject.expected(inputs):
                if (swapped := _swapped(trial, inputs)) is not None:
                    return swapped
                if first == "named" and subject.slices is not None and masks.mixes(trial.call, inputs):
                    break
                trial.ran = inputs
                return result
            break
    raise subject.people.stop(max(failures, key=subject.people.reached), subject.calling) from None


def _of_rows(trial: Trial) -> bool:
    """Whether a function says that it takes [N, D], or has no other axis than 1 and is no exercise's own."""
    subject, binding = trial.subject, trial.binding
    axes = {*re.findall(r"\b(?:axis|dim)\s*=\s*(-?\w+)", source_of(binding.function))} - {"0"}
    says = re.search(rf"\b{binding.argument('x')}\b[^(\[\n]{{0,20}}[(\[]\s*\w+,\s*\w+\s*[)\]]", told(binding.function))
    return bool(says) or (axes == {"1"} and subject.kind == "function" and not subject.helpers["asked"])


def _swapped(trial: Trial, inputs: Tensors) -> Any:
    """A call of code that takes or returns heads behind tokens; None otherwise."""
    subject = trial.subject
    if subject.slices is not None or "q" not in inputs or subject.task not in (*OF_QKV, "rope") or subject.sizes.heads < 2:
        return None
    other = {name: np.concatenate([1 - inputs[name][:, :1], inputs[name][:, 1:]], 1) for name in ("k", "v")}
    try:
        one, two = (to_numpy(trial.call({**inputs, **given}).out) for given in ({}, other))
        subject.slices = heads_behind(one, two, inputs["q"].shape, told(subject.thing), subject.helpers["asked"])
        return None if subject.slices is None else trial.call(trial.inputs)
    except FAILURES:
        subject.slices = None
    return None


def _try_part(trial: Trial) -> None:
    """In every way that names leave; then with matrices as [out, in]."""
    failure, subject, binding = None, trial.subject, trial.binding
    matrices = any(len(axes) == 2 and axes[0] != "B" for name, axes in TASKS[subject.task].tensors.items() if name in trial.inputs)
    for binding.turned, binding.roles in itertools.product((False, True)[: 1 + matrices], binding.readings or [binding.roles]):
        try:
            _plain(trial)
        except Stop as stop:
            failure = failure or stop
            continue
        binding.slices, subject.slices = subject.slices, None
        notes = [binding.slices.note] if binding.slices else []
        if subject.task == "rmsnorm" and re.search(r"\b(?:normalize|clip|clamp|clamp_min|maximum)\(", source_of(binding.function)):
            subject.tell(clamped="1")
        subject.notes += notes + ([f"the matrices of {binding.name} are given as [out, in]"] if binding.turned else [])
        return
    assert failure is not None
    raise failure


def _try_mask_in_slices(trial: Trial, shape: tuple[int, ...] | None) -> None:
    """With a mask; without a batch where only that runs. Code that runs without one (`shape`) may fail: its probes say so."""
    subject = trial.subject
    failure, form, own = None, None, subject.slices
    for subject.slices in [own, *(choices(trial.ran) if subject.task not in STEPPED and own is None else [])]:
        try:
            _try_masks(trial, shape)
        except Stop as stop:
            failure, form = failure or stop, form or subject.mask_form
            if stop.verdict != "failed":
                break
            continue
        if subject.slices is not None and own is None:
            subject.notes.append(subject.slices.note)
        return
    subject.slices, subject.mask_form = own, form
    if failure is not None and (shape is None or failure.verdict != "failed"):
        raise failure


def _guess_mask(trial: Trial, shape: tuple[int, ...]) -> None:
    """An argument whose name says nothing, and that is None where it is missing, is the mask if one of its forms hides keys."""
    subject, binding = trial.subject, trial.binding
    unknown = [one.name for one in binding.parameters if one.default is None and binding.roles[one.name] is None]
    for name in [name for name in binding.untried(True) if name in unknown]:
        binding.roles[name] = "mask"
        with contextlib.suppress(Stop):
            if _try_masks(trial, shape, guessed=True):
                subject.notes.append(f"{name} was taken for the mask: its name says nothing, what it does hides keys")
                return
        binding.roles[name], subject.mask_form = None, None


def _try_masks(trial: Trial, shape: tuple[int, ...] | None, guessed: bool = False) -> bool:
    """Padding first, which most forms can say; then one mask for all sequences. `shape`: of a call without a mask, if there is one;
    `guessed`: the argument's name says nothing. Whether what the mask hides stays hidden."""
    subject, tensors, argument = trial.subject, trial.ran, trial.binding.argument("mask")
    says = masks.meaning_of(argument, subject.thing, trial.binding.function)
    hides = type(subject.thing).__module__.startswith("torch.nn") and argument == "attn_mask"
    shown = "shows it" in says and not says & {"hides it", "added"}
    forms = masks.forms(argument, subject.task, False if shown else hides or None)
    if subject.slices is not None:
        forms = [form for form in forms if subject.slices.takes_mask(form.shape)]
    if "float" in says:
        forms.sort(key=lambda form: form.dtype != "float")

    fallback, failure = None, None
    for mask in (padding_mask(tensors, 1, 2), causal_mask(tensors)):
        for form in forms:
            try:
                result = trial.masked(form)({**tensors, "mask": mask})
            except Skipped:
                continue
            except FAILURES as error:
                if isinstance(error, Stop) or subject.people.unfilled(error):
                    raise subject.people.stop(error, f"calling {subject.name} with a mask") from None
                failure = failure or error
                continue
            if tuple(result.out.shape) == (shape or subject.expected(tensors)):
                subject.mask_form, hides = _meaning(trial, form, forms, mask, guessed)
                _say_form(subject, argument, guessed)
                subject.helpers["said"] = masks.said_by_file(argument, subject.thing)
                return hides
            fallback = fallback or form
    if not forms:
        raise Stop("it takes no mask")
    subject.mask_form = fallback or forms[0]
    if failure is not None and (shape is None or fallback is None):
        raise subject.people.stop(failure, f"calling {subject.name} with a mask")
    return False


def _meaning(trial: Trial, chosen: masks.Form, forms: list[masks.Form], mask: np.ndarray, guessed: bool) -> tuple[masks.Form, bool]:
    """The form in which what the mask hides stays hidden: as chosen; one whose True hides, where the code says so or nothing says
    what True means; one that is added to the scores. As chosen where none does, and then False."""
    subject, tensors, argument = trial.subject, trial.ran, trial.binding.argument("mask")

    def keeps(form: masks.Form, *idle: masks.Form) -> bool:
        """`idle`: forms in which a mask that hides nothing must change nothing."""
        try:
            changes = not all(masks.neutral(trial.masked(one), tensors, mask) for one in (idle or (form,) * guessed))
            return not changes and not masks.leaks(trial.masked(form), tensors, mask)
        except FAILURES:  # Skipped too: the form cannot say this mask
            return False

    says = masks.meaning_of(argument, subject.thing, trial.binding.function)
    hiding = [one._replace(hides=True) for one in (chosen, *forms)] if guessed or "hides" in says else []
    contract = subject.task not in LAYERS and names.key(argument) == "mask"
    if "hides it" in says and "visible" not in says and not chosen.hides and keeps(chosen):
        return chosen._replace(hides=True), True
    if keeps(chosen) or (chosen.added and not guessed):
        return chosen, True
    if "visible" in says and not says & {"hides", "added"}:
        return chosen, False
    found = next((form for form in dict.fromkeys(hiding) if keeps(form)), None)
    # What is added before a softmax may be any number everywhere.
    added = next((form for form in dict.fromkeys(map(masks.added, (chosen, *forms))) if keeps(form, form, form._replace(shift=0.5))), None)
    # A function's contract says what its `mask` is, unless the code says otherwise.
    if added and contract and "added" not in says:
        subject.notes.append(f"right if {argument} holds 0 and -inf, to be added to the scores: the task's is bool")
        added = None
    either = added and "float" not in says and any(keeps(form._replace(hides=True)) for form in forms if form.dtype == "bool")
    if "added" not in says and ("hides it" in says or either):  # True for hidden does as well, and nobody says which is meant
        added = None
    found = found or added
    return found or chosen, found is not None


def other_mask(trial: Trial) -> None:
    """A second mask, of padding: tried where what it hides is as if it were not there, or where its name or a docstring says what 1 means."""
    subject, binding, tensors = trial.subject, trial.binding, trial.ran
    whole = subject.slices is None or subject.slices.how in WHOLE
    names_of = [name for name in binding.untried(subject.task in MASKED) if re.search("pad|valid|len", name)]
    for name in [name for name in names_of if whole and names.argument(name) == "mask"]:
        before, binding.roles[name] = binding.roles[name], "other_mask"
        says = masks.meaning_of(name, subject.thing, binding.function)
        known = {"hides", "hides it"} & says or {"visible", "shows it"} & says or names.mask_kind(name) == "lengths"
        ran: list[masks.Form] = []
        for form in [one for one in masks.forms(name, subject.task) if one.shape in masks.ROWS]:
            with contextlib.suppress(*FAILURES):
                off = masks.beyond(trial.unmasked, tensors, form, padding_mask(tensors, 1, 2))
                ran.append(form)
                if not off.any():
                    subject.helpers["other_mask"] = form
                    break
        else:
            binding.roles[name], subject.helpers["other_mask"] = ("other_mask", ran[0]) if ran and known else (before, None)
        return


def _say_form(subject: Subject, argument: str, guessed: bool) -> None:
    form = subject.mask_form
    assert form is not None
    if subject.slices is not None:
        return
    if form.added and names.mask_kind(argument) != "added":
        subject.notes.append(f"{argument} was taken for 0 and -inf, to be added to the scores: only so it hides what it should")
    elif form.shape not in ("[B, 1, L, L]", "[B, L, L]") or form.dtype != "bool":
        subject.notes.append(f"its mask is {form.dtype} {form.shape}")
    if form.hides:
        why = "only so it hides what it should" if guessed else "as its name or the docstring says"
        subject.notes.append(f"{argument}: True was taken for hidden, {why}")


def only_square(trial: Trial) -> bool:
    """Whether code that no exercise asks for fails with more keys than queries, or never reads the last of them."""
    subject, tensors = trial.subject, trial.inputs
    convention = subject.has.get("causal") and subject.task != "linear"  # of the task
    if subject.helpers["asked"] or convention or not has_more_keys(tensors):
        return False
    try:
        return not masks.leaks(trial.unmasked, tensors, padding_mask(tensors, 1))
    except Skipped:
        return False
    except FAILURES:
        return True


def hides_future(trial: Trial) -> bool:
    """Whether later tokens change nothing of the first one's output, and earlier ones change the last one's, without a mask."""
    tensors = square(trial.inputs)
    (batch, rows), columns = lengths(tensors)
    last = np.broadcast_to(np.arange(columns) == columns - 1, (batch, 1, rows, columns))
    return not masks.leaks(trial.unmasked, tensors, causal_mask(tensors)) and masks.leaks(trial.unmasked, tensors, last)
