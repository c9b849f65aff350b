"""Options of the formula that no probe gives: a scale, fewer heads of k and v, masks of floats beside bool, two options at once. Not: what is
returned beside the output (returned.py), what a layer is built with."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import re
from typing import Any, NamedTuple

import numpy as np

from ..calling import SCALES, Result
from ..contracts import names
from ..errors import FAILURES
from ..frameworks import reads, source_of, to_numpy, told
from ..match import required
from ..slots import Tensors
from ..subject import Skipped, attended, causal_mask, padding_mask, square
from .first_calls import Trial
from .flags import note, same
from .returned import beside, like_of, values_of

#: The scale that is tried.
_SCALE = 0.37
#: Of an argument that is there for its callers' sake.
_UNHEEDED = re.compile(r"(?i)ignor|compatib|unused|not used|signature|忽略|兼容|未使用|不使用")


class _Given(NamedTuple):
    """One option, or several at once, and what they make of the formula."""

    said: str = ""
    values: dict[str, Any] = {}  # arguments by their names
    scale: float | None = None
    groups: bool = False
    causal: bool = False
    mask: bool = False


class _Options:
    """Calls of a function of q, k and v, each held to the formula."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.tensors = trial, {name: trial.ran[name] for name in "qkv"}
        self.causal = trial.subject.task == "causal"  # always
        self.weights = False  # whether they are the formula's without an option
        self.logarithms: list[str] = []  # what is a row's lse then, as it is said
        self.followed: dict[str, _Given] = {}  # by their arguments' names

    def result(self, tensors: Tensors, given: _Given = _Given()) -> Result:
        other = copy.copy(self.trial)
        other.binding = copy.copy(self.trial.binding)
        roles, values = self.trial.binding.roles, given.values
        must = {str(roles[name]): str(one) for name, one in values.items() if roles[name]}
        own = {name: one for name, one in values.items() if not roles[name]}
        other.binding.function = functools.partial(self.trial.binding.function, **own)
        other.metadata = {**self.trial.metadata, **must, "causal": str(int(given.causal or self.causal))}
        return other.call(tensors)

    def formula(self, tensors: Tensors, scale: float | None = None, bias: Any = 0) -> Tensors:
        """Neighbouring heads of q share one of k and v where there are fewer."""
        shared = tensors["q"].shape[1] // tensors["k"].shape[1] if tensors["q"].ndim == 4 else 1
        whole = {name: one if name == "q" else one.repeat(shared, 1) for name, one in tensors.items()}
        return attended(whole, scale, bias + (hidden(tensors, causal_mask(tensors)) if self.causal else 0))

    def mask(self, tensors: Tensors) -> np.ndarray:
        """Of padding; causal where the form of the function's mask cannot say that."""
        form, padding = self.trial.subject.mask_form, padding_mask(tensors, 1, 2)
        return padding if form.of(padding, tensors["q"].shape[1], "numpy", "float64") is not None else causal_mask(tensors)

    def out(self, tensors: Tensors, **values: Any) -> np.ndarray:
        return np.asarray(to_numpy(self.result(tensors, _Given(values=values)).out), np.float64)

    def differs(self, given: _Given) -> str:
        """What is not the formula's with all that is given: "output", or what is returned beside it; "": all is."""
        tensors = grouped(self.tensors) if given.groups else self.tensors
        tensors = square(tensors) if given.causal else tensors
        asked = {**tensors, "mask": self.mask(tensors)} if given.mask else tensors
        bias = (hidden(tensors, asked["mask"]) if given.mask else 0) + (hidden(tensors, causal_mask(tensors)) if given.causal else 0)
        right, got = self.formula(tensors, given.scale, bias), self.result(asked, given)
        if not same(to_numpy(got.out), right["out"]):
            return "output"
        if self.weights and got.weights is not None and not same(to_numpy(got.weights), right["weights"]):
            return "weights"
        beside = {label: value for label, _, value in values_of(got.raw)}
        return next((label for label in self.logarithms if "lse" not in like_of(beside.get(label), right)), "")

    def together(self) -> str:
        """What was seen of an option that the output follows alone, or of two that are followed alone and not together; "" of none."""
        binding = self.trial.binding
        tried = {"causal": not self.causal, "mask": self.trial.subject.mask_form is not None}
        alone = [*self.followed.values(), *(_Given(f"{binding.argument(role)}{'=True' * (role == 'causal')}", **{role: True})
                                            for role in tried if tried[role] and binding.takes(role))]  # fmt: skip
        right = []
        for one in alone:
            with contextlib.suppress(Skipped, *FAILURES):
                other = self.differs(one)
                if other not in ("", "output"):
                    return f"{one.said}: the output follows it, {other} does not"
                right += [one] * (not other)
        for one, other in itertools.combinations(right, 2):
            if one.causal and other.mask:  # which of them counts is its author's to say
                continue
            both = _Given(f"{one.said} and {other.said}", {**one.values, **other.values}, one.scale if other.scale is None else other.scale,
                          one.groups or other.groups, other.causal, other.mask)  # fmt: skip
            with contextlib.suppress(Skipped, *FAILURES):
                if (what := self.differs(both)) != "":
                    return f"{both.said}: each gives the formula's {what} alone, together they do not"
        return ""

    def scales(self, one: Any, asked: bool) -> str | None:
        """"": the argument does what it says; what was seen of one that does not; None: nothing can be said."""
        root = np.sqrt(self.tensors["q"].shape[-1])
        own, inverse = [_SCALE, _SCALE / root], [1 / _SCALE, 1 / _SCALE / root]
        if isinstance(one.default, bool):
            value, right, others = not one.default, [1.0], []
        elif one.default is None or required(one):
            value, right, others = _SCALE, own[:1], own[1:] + inverse
        elif isinstance(one.default, (int, float)):
            value, right, others = _SCALE, own + inverse, []
        else:
            return None
        got = self.out(self.tensors, **{one.name: value})
        for scale in right:
            if same(got, self.formula(self.tensors, scale)["out"]):
                self.followed[one.name] = _Given(f"{one.name}={value}", {one.name: value}, scale)
                return ""
        if same(got, self.formula(self.tensors)["out"]):  # what is read may count beside another option alone
            function = self.trial.binding.function
            unread = (asked or not reads(function, one.name)) and not _UNHEEDED.search(told(function))
            return f"{one.name}={value}: it gives what it gives without" if unread else None
        known = any(same(got, self.formula(self.tensors, scale)["out"]) for scale in others)  # a divisor, a factor more: its author's to say
        return f"{one.name}={value}: the scores are not q.k times {value}" if asked and value == _SCALE and not known else None

    def groups(self, name: str) -> str | None:
        """As scales, for a flag with which neighbouring heads of q share one of k and v."""
        if self.tensors["q"].ndim != 4:
            return None
        tensors, function = grouped(self.tensors), self.trial.binding.function
        expected = self.formula(tensors)["out"]
        got = self.out(tensors, **{name: True})
        said = f"{name}=True" if self.trial.binding.roles[name] is None else f"{name}.num_key_value_groups=2"
        if got.shape != expected.shape:
            return None
        if same(got, expected):
            self.followed[name] = _Given(said, {name: True}, groups=True)
            return ""
        if re.search(r"(?i)%|\btil(?:e|ed|ing)\b|\bmod", told(function)):  # says which heads share one
            return None
        head = next(h for h in range(4) if not same(got[:, h], expected[:, h]))
        return f"{said}, 4 heads of q on 2 of k and v: head {head} of q gives other numbers than on head {head // 2} of k and v"

    def floats(self, asked: bool) -> str | None:
        """As scales, for a mask that is bool, or numbers that are added to the scores."""
        trial, tensors = self.trial, self.tensors
        subject, name = trial.subject, trial.binding.argument("mask")
        chosen, mask = subject.mask_form, self.mask(tensors)
        noise, off = np.random.default_rng(17).standard_normal(mask.shape[-1]), hidden(tensors, mask)
        added = chosen._replace(dtype="float", hides=False, added=True, shift=noise)
        try:
            got, kept = (trial.masked(form)({**tensors, "mask": mask}).out for form in (added, added._replace(added=False)))
        finally:
            subject.mask_form = chosen
        added_to, kept_of = (self.formula(tensors, bias=bias)["out"] for bias in (noise + off, off))
        if same(to_numpy(got), added_to) or same(to_numpy(kept), kept_of):  # added, or 1 and 0
            return ""
        return f"{name} as numbers and -inf: they are not what is added to the scaled scores" if asked else None


def hidden(tensors: Tensors, keep: np.ndarray) -> np.ndarray:
    """What a mask [B, 1, Tq, Tk] adds to the scores: 0 and -inf."""
    return np.where(keep if tensors["q"].ndim == 4 else keep[:, 0], 0, -np.inf)


def grouped(tensors: Tensors) -> Tensors:
    """4 heads of q on 2 of k and v."""
    rng = np.random.default_rng(16)
    return {x: rng.standard_normal((one.shape[0], 4 if x == "q" else 2, *one.shape[2:])) for x, one in tensors.items()}


def try_options(trial: Trial) -> None:
    """Of a function of q, k and v that is right without: a scale, fewer heads of k and v, masks of floats, pairs of them with the others;
    what it returns. Notes for the verdict."""
    subject, binding = trial.subject, trial.binding
    if subject.kind != "function" or subject.task not in ("sdpa", "flash", "causal"):
        return
    options = _Options(trial)
    optional = {names.key(one.name): one for one in binding.parameters if binding.roles[one.name] == ("scale" if required(one) else None)}
    torchs = names.key(subject.name) == "scaleddotproductattention" and "enablegqa" in optional
    ways = [(one.name, functools.partial(options.scales, one, torchs)) for key, one in optional.items() if key in SCALES]
    sharing = [one.name for key, one in optional.items() if key == "enablegqa"] + [name for name, role in binding.roles.items() if role == "module"]
    ways += [(name, functools.partial(options.groups, name)) for name in sharing]
    form = subject.mask_form if binding.takes("mask") and re.search(r"\bdtype|is_floating_point", source_of(binding.function)) else None
    if form is not None and form.dtype == "bool" and not form.hides and not form.added:
        ways.append((binding.argument("mask"), functools.partial(options.floats, torchs)))
    with contextlib.suppress(Skipped, *FAILURES):
        result, right = options.result(options.tensors), options.formula(options.tensors)
        untried, options.logarithms, seen = beside(trial, result, right)
        subject.helpers["callers"] += untried
        if not same(to_numpy(result.out), right["out"]):
            return
        if seen:
            subject.tell(unheeded=seen, unheeded_as="statistic-mislabelled")
        options.weights = result.weights is not None and same(to_numpy(result.weights), right["weights"])
        for name, way in ways:
            with contextlib.suppress(Skipped, *FAILURES):
                seen = way()
                if seen is None:
                    continue
                with subject.branches.watched():
                    way()
                note(trial, name, {"unheeded": seen, "unheeded_as": "option-not-followed"} if seen else {})
        if seen := options.together():
            subject.tell(unheeded=seen, unheeded_as="option-not-followed")
