"""What a function or a layer returns beside its output: weights or not, a row's maximum, sum and logarithm by their names. Not: options
(options.py)."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..calling import Result, attributes
from ..contracts import names
from ..contracts.tasks import LAYERS, STEPPED
from ..errors import FAILURES
from ..frameworks import is_array, source_of, to_numpy, told
from ..slots import Tensors
from ..subject import Skipped, lengths
from .first_calls import Trial
from .flags import same

#: Names of what is returned beside the output, and what they may be: of scores in powers of two too, without the maximum taken off.
_STATISTICS = {
    **dict.fromkeys(("lse", "logsumexp", "softmaxlse", "rowlse"), ("lse",)),
    **dict.fromkeys(("max", "rowmax", "maxima", "maximum", "runningmax"), ("top",)),
    **dict.fromkeys(("sum", "rowsum", "expsum", "sumexp", "runningsum"), ("sum", "total")),
    **dict.fromkeys(("denom", "denominator", "normalizer"), ("sum", "total", "lse", "log")),
}
_CALLED = {"lse": "the logarithm of the sum", "top": "the largest score", "sum": "the sum of exp(score - the largest)",
           "log": "the logarithm of the sum of exp(score - the largest)", "total": "the sum of exp(score)"}  # fmt: skip
#: What a docstring calls an array beside the output that is no weights: said to be untried.
_OF_ANOTHER = re.compile(r"(?i)score|logit|mask|ind(?:ex|ices)|log[_ -]?(?:weight|soft|sum|prob)|lse|\bstat|present|past|cache|unnormali[sz]ed")
#: The same of a layer, whose docstring may speak of scores that are not returned; names of what is no weights.
_RETURNS_SCORES = re.compile(r"(?i)\breturn[^.\n]{0,60}\b(?:score|logit)s?\b|返回[^。\n]{0,30}(?:分数|得分)")
_SCORES = re.compile(r"(?:raw|attn|attention)?(?:scores?|logits?|energy|energies|sims?|dots?|qk)")
#: Methods that change no number.
_SHAPES = ("squeeze", "unsqueeze", "reshape", "view", "flatten", "detach", "contiguous", "copy", "clone", "float", "double", "to", "astype")


def _name(value: ast.expr) -> str:
    """Of a variable, whatever its shape becomes; "" of an expression."""
    while True:
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SHAPES:
            value = value.func.value
        else:
            return value.id if isinstance(value, ast.Name) else ""


def _own_returns(node: ast.AST) -> Iterator[ast.expr]:
    """The values that a function itself returns, not those inside it."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Return) and one.value is not None:
            yield from (one.value.body, one.value.orelse) if isinstance(one.value, ast.IfExp) else (one.value,)
        elif not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_returns(one)


def _names(function: Any, count: int) -> list[str]:
    """Of the values of the tuple that a function returns, as far as its returns agree; "" of an expression."""
    found: list[set[str]] = [set() for _ in range(count)]
    with contextlib.suppress(SyntaxError, IndexError):
        tree = ast.parse(textwrap.dedent(source_of(function))) if inspect.unwrap(function) is function else ast.Module([], [])
        for value in _own_returns(tree.body[0]):
            if isinstance(value, ast.Tuple) and len(value.elts) == count:
                for names_of_it, one in zip(found, value.elts):
                    names_of_it |= {_name(one)} - ({""} if isinstance(one, ast.Constant) else set())
    return [next(iter(one)) if len(one) == 1 else "" for one in found]


def values_of(raw: Any, function: Any = None) -> list[tuple[str, str, Any]]:
    """(how it is said, its name, value) of everything that a call returned; a tuple's names are those of the function's text."""
    if isinstance(raw, (tuple, list)):
        own = getattr(raw, "_fields", None) or _names(function, len(raw))
        return [(f"returned[{index}]", name, value) for index, (name, value) in enumerate(zip(own, raw))]
    if isinstance(raw, dict):
        return [(f'returned["{name}"]', str(name), value) for name, value in raw.items()]
    return [] if is_array(raw) else [(f"returned.{name}", name, value) for name, value in attributes(raw).items()]


def like_of(value: Any, right: Tensors) -> list[str]:
    """Which of a row's statistics an array is, whatever its precision."""
    found = to_numpy(value) if is_array(value) else np.zeros(0)
    found = found[..., 0] if found.shape == (*right["top"].shape, 1) else found
    if found.shape != right["top"].shape or not np.issubdtype(found.dtype, np.floating):
        return []
    lse, top, total = right["lse"], right["top"], right["sum"]
    known = {"lse": (lse, lse / np.log(2)), "top": (top, top / np.log(2)), "sum": (total,), "log": (np.log(total), np.log2(total)),
             "total": (np.exp(lse),)}  # fmt: skip
    tolerance = 2e-2 if str(value.dtype).endswith("16") else 1e-4
    return [name for name, ways in known.items() if any((np.abs(found - one) <= tolerance * (1 + np.abs(one))).all() for one in ways)]


def _no_weights(trial: Trial, result: Result, returned: list[tuple[str, str, Any]], keys: int) -> bool:
    """Whether what has their place is something else: of other columns, or rows that sum to something else and are called so."""
    subject, own, weights = trial.subject, trial.binding.function, result.weights
    if weights is None or weights.shape[-1] != keys or (weights.ndim == 4 and weights.shape[1] != subject.sizes.heads):
        return True
    called = [name for _, name, value in returned if value is weights]
    if subject.prototype is None:
        says = _OF_ANOTHER.search(" ".join([told(own), *([] if isinstance(result.raw, tuple) else called)]))
    else:
        says = _RETURNS_SCORES.search(told(subject.thing))
    scores = (subject.prototype is not None or not subject.helpers["asked"]) and any(_SCORES.fullmatch(names.key(name)) for name in called)
    return bool(says or scores) and not same(to_numpy(weights).sum(-1), np.ones(weights.shape[:-1]))


def _changed_inputs(trial: Trial) -> None:
    """Of a function, whose second call is not asked for in every task: an array that is another one after a call, unless its text says so."""
    subject, tensors = trial.subject, trial.ran
    free = subject.task in ("lm", "sampling")  # steps of training; logits[logits < kth] = -inf is how it is written everywhere
    if free or re.search(r"(?i)in[- ]?place|原地", told(subject.thing)):
        return
    with contextlib.suppress(Skipped, *FAILURES):
        trial.call(tensors)
        for name, value in trial.given.items():
            if not np.array_equal(to_numpy(value), tensors[name].astype(to_numpy(value).dtype)):
                subject.tell(unheeded=f"the call changes its input {name}", unheeded_as="inputs-changed")
                return


def _of_a_layer(trial: Trial, result: Result) -> None:
    """Keys, heads side by side, scores that are called so: no weights, and said to be untried."""
    subject = trial.subject
    if result.weights is None or subject.task not in LAYERS:
        return
    returned = values_of(result.raw, trial.binding.function)
    if _no_weights(trial, result, returned, lengths(trial.ran)[1]):
        subject.helpers["no_weights"] = True
        subject.helpers["callers"] += tuple(label for label, _, value in returned if value is result.weights)


def _of_one_sequence(trial: Trial, result: Result) -> None:
    """Of a layer or a block: an axis that a batch of one loses."""
    if trial.subject.slices is not None or len(result.out.shape) != 3:
        return
    with contextlib.suppress(Skipped, *FAILURES):
        one = {name: x[:1] if name in ("x", "memory") else x for name, x in trial.ran.items()}
        alone = list(trial.call(one).out.shape)
        if len(alone) < 3:
            trial.subject.tell(unheeded=f"x {list(one['x'].shape)}: it returns {alone}", unheeded_as="size-not-followed")


def beside(trial: Trial, result: Result, right: Tensors) -> tuple[tuple[str, ...], list[str], str]:
    """Of a function of q, k and v: (what is returned beside output and weights of which nothing says what it should be, what is the
    logarithm of each row's sum, what was seen of one that is not what its name says)."""
    subject = trial.subject
    returned = values_of(result.raw, trial.binding.function)
    # With other numbers of keys, or as many tokens as heads, an array may look like them.
    subject.helpers["no_weights"] = _no_weights(trial, result, returned, right["weights"].shape[-1])
    subject.helpers["no_lse"] = not any(is_array(value) and tuple(value.shape) == right["lse"].shape for _, _, value in returned)
    result.weights = None if subject.helpers["no_weights"] else result.weights
    others, logarithms, seen = [], [], ""
    for label, name, value in returned:
        if value is None or value is result.out or value is result.weights:
            continue
        like: list[str] = []
        with contextlib.suppress(*FAILURES):  # what cannot be made an array
            like = like_of(value, right)
        wanted = _STATISTICS.get(names.key(name), ())
        if subject.slices is not None or not like or (like == ["log"] and not wanted):
            others.append(label)
        elif wanted and not {*like} & {*wanted}:
            seen = seen or f"{label}, {name}, is not {_CALLED[wanted[0]]} of each row: it is {_CALLED[like[0]]}"
        elif "lse" in like:
            logarithms.append(label)
    return tuple(others), logarithms, seen


def try_call(trial: Trial) -> None:
    """What one call leaves behind: its inputs as they were, beside the output what it is called. Notes for the verdict."""
    if trial.subject.prototype is None:
        _changed_inputs(trial)
    elif trial.subject.task not in STEPPED:
        with contextlib.suppress(Skipped, *FAILURES):
            result = trial.call(trial.ran)
            _of_one_sequence(trial, result)
            _of_a_layer(trial, result)
