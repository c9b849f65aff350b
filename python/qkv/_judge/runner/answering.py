"""Answers probes: forward, gradient, twice, training, evaluation. Errors of the person's code become metadata of the answer. Not:
how training steps go (steps.py)."""

from __future__ import annotations

import builtins
import contextlib
import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .calling import Result, array_of
from .contracts.tasks import FUNCTIONS, LAYERS, PARTS, STEPPED, TASKS
from .errors import FAILURES, Stop, line_of
from .frameworks import from_numpy, is_array, named, source_of, to_numpy, told, torch_of
from .masks import beyond
from .slots import Tensors, Words
from .steps import stepped, train_steps
from .subject import SQUARE, Skipped, Subject, causal_mask, has_more_keys, lengths, padding_mask, square

Answer = tuple[Tensors, dict[str, str]]
_NO_GRAD = "it runs under torch.no_grad"


def answer(subject: Subject, tensors: Tensors, metadata: Words, assignment: int = 0) -> Answer:
    """(tensors, metadata) of one answer; never raises for what the person's code does, but for KeyboardInterrupt. `unrun`: conditions of
    branches that no answer so far went through, and what the code refused."""
    one = subject.small[int(metadata["small"]) - 1] if "small" in metadata else subject
    with subject.branches.watched():
        found, notes = answered(one, tensors, metadata, assignment)
    unrun = subject.branches.unrun({name for one in subject.bindings.values() for name in one.untried(True)})
    unrun += subject.helpers.get("unasked", ())
    return found, notes | ({"unrun": "\n".join(unrun)} if unrun else {})


def answered(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Answer:
    """The same, and nobody watches."""
    if len(subject.assignments) > 1 and subject.prototype is None:  # matrices [in, out] or [out, in]
        subject.ways = [subject.ways[0]._replace(turned=assignment == 1)]
    try:
        kind = metadata.get("call", "forward")
        if subject.helpers.get("square") and has_more_keys(tensors):
            raise Skipped(SQUARE)
        if kind not in _CALLS:
            raise Skipped(f"this runner knows no call {kind}")
        found = _CALLS[kind](subject, tensors, metadata, assignment)
        given = not subject.helpers["asked"] and "out" in found and has_more_keys(tensors)
        if given and found["out"].shape[-2:-1] == tensors["k"].shape[-2:-1]:  # a row for each key
            return _unasked(subject, "len(k) > len(q)", SQUARE)
        return found, subject.helpers.pop("fails", {})
    except Skipped as reason:
        return {}, {"skipped": str(reason)}
    except FAILURES as error:
        causal = metadata.get("causal") == "1" or subject.has.get("causal")

        def runs(other: Tensors, **more: str) -> bool:
            with contextlib.suppress(*FAILURES):
                _CALLS[kind](subject, other, {**metadata, **more}, assignment)
                return True
            return False

        if causal and subject.task != "backward" and has_more_keys(tensors) and runs(square(tensors)):
            if metadata.get("causal") != "1" or subject.people.refuses(error) or not runs(tensors, causal="0"):
                return _unasked(subject, "len(k) > len(q)", f"{SQUARE}: {line_of(error)}")
        if "mask" in tensors and subject.people.refuses(error):
            mask = np.asarray(tensors["mask"], bool)
            if runs({**tensors, "mask": mask | (~mask.any(-1, keepdims=True) & (np.arange(mask.shape[-1]) == 0))}):
                return _unasked(subject, "a query that sees nothing", f"it refuses a query that sees nothing: {line_of(error)}")
        return {}, failure(subject, error)


def _unasked(subject: Subject, what: str, reason: str) -> Answer:
    """Skipped, and said of a right verdict."""
    subject.helpers["unasked"] = dict.fromkeys([*subject.helpers.get("unasked", ()), what])
    return {}, {"skipped": reason}


def failure(subject: Subject, error: BaseException) -> dict[str, str]:
    """Metadata of a call that failed."""
    if isinstance(error, Stop):
        return {"error": error.says, "traceback": error.traceback}
    return {"error": line_of(error), "traceback": subject.people.lines(error)}


def _out(subject: Subject, result: Result, tensors: Tensors) -> Tensors:
    if subject.task in PARTS:
        return _returned(subject, TASKS[subject.task].own, result, tensors)
    tensors = {"out": array_of(result.out, subject.precision)}
    lse = [one for one in result.rest if is_array(one) and tuple(one.shape) == tuple(result.out.shape[:-1])]
    known = subject.slices is None and not subject.helpers.get("no_lse")
    if subject.task == "flash" and known and len(lse) == 1 and re.search("logsumexp|lse", told(subject.thing), re.IGNORECASE):
        tensors["lse"] = array_of(lse[0], subject.precision)
    other = subject.helpers.get("no_weights") or any(result.weights is one for one in lse[: subject.task == "flash"])
    if result.weights is not None and subject.task not in STEPPED and not other:
        tensors["weights"] = array_of(result.weights, subject.precision)
    return tensors


def _prepared(
    subject: Subject, tensors: Tensors, metadata: Words, assignment: int, train: bool = False, gradient: bool = False,
    more: dict[str, Any] | None = None,
) -> tuple[Callable[[], Result], Any, dict[str, Any]]:
    """(one call, which object it is of, its tensors); `more`: given besides."""
    binding = subject.binding_for()
    target = subject.fresh(tensors, assignment, train)
    if subject.task in PARTS:
        tensors = {name: tensors[name] for name, _ in TASKS[subject.task].functions[TASKS[subject.task].own] if name in tensors}
    leaves = subject.leaves(tensors, gradient)
    values = {**subject.values(binding, tensors, metadata, leaves), **(more or {})}
    return (lambda: subject.call(binding, target, values, tensors)), target, leaves


def _forward(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    several = len(TASKS[subject.task].returns) > 1 and (subject.prototype is None or subject.task == "rope")
    if several or subject.task in PARTS:
        return _functions(subject, tensors, metadata)
    return _out(subject, _prepared(subject, tensors, metadata, assignment)[0](), tensors)


def _functions(subject: Subject, tensors: Tensors, metadata: Words) -> Tensors:
    """What each function that the file has, of a task with several, gives for its part of the probe."""
    answers: Tensors = {}
    skipped: list[str] = []
    for function, contract in FUNCTIONS[subject.task].items():
        inputs = [name for name, _ in contract]
        binding = subject.bindings.get(function) or subject.bindings.get("")
        if binding is None or inputs[0] not in tensors or not (function in subject.bindings or binding.takes(inputs[0])):
            continue
        mine = {name: tensors[name] for name in inputs if name in tensors}
        if subject.task == "backward":
            mine["dout"] = tensors.get("dout_layer" if "x" in inputs else "dout", tensors.get("dout"))
        try:
            # Only the function of q, k, v has a causal form.
            values = subject.values(binding, mine, metadata if "q" in inputs else {**metadata, "causal": "0"}, subject.leaves(mine))
        except Skipped as reason:
            skipped.append(str(reason))
            continue
        answers.update(_returned(subject, function, subject.call(binding, subject.fresh(tensors, 0), values, mine), mine))
    if not answers:
        raise Skipped("; ".join(skipped) or "it has no function for this")
    return answers


def _returned(subject: Subject, function: str, result: Result, tensors: Tensors) -> Tensors:
    """The answers of a function; with those of another of the same arguments, which the file lacks, where it returns them too."""
    task, binding = TASKS[subject.task], subject.bindings.get(function) or subject.bindings[""]
    outputs = task.returns[function]
    same = [one for one, contract in task.functions.items() if contract == task.functions[function]]
    every = [output for one in same for output in task.returns[one]]
    if isinstance(result.raw, (tuple, list)) and len(result.raw) == len(every) and len({*same} & {*subject.bindings}) == 1:
        both = _GRADIENT.search(source_of(subject.thing)) and not np.allclose(to_numpy(result.raw[1]).sum(-1), 1)  # no probabilities
        outputs = every if function.endswith("_backward") or len(every) == len(outputs) or both else outputs
    if binding.takes("sequences") and isinstance(result.raw, (tuple, list)) and len(result.raw) in (2, 3):
        result.raw = _continued(*result.raw)
    if len(outputs) == 1:
        found = {outputs[0]: array_of(_dense(result, subject, tensors), subject.precision)}
    else:  # in the contract's order, or a dict by name
        values = list(result.raw) if isinstance(result.raw, (tuple, list)) else [result.raw]
        if subject.task == "merge":  # out first or last
            values.sort(key=lambda one: len(getattr(one, "shape", ())))
        if isinstance(result.raw, dict):
            named = {str(key).lower().replace("_", ""): value for key, value in result.raw.items()}
            values = [named.get(output.lower().replace("_", "")) for output in outputs]
        if len(values) != len(outputs) or any(value is None for value in values):
            given = sum(value is not None for value in values)
            raise Stop(f"{binding.name} must return {', '.join(outputs)}: it returned {given} of these")
        found = {output: array_of(value, subject.precision) for output, value in zip(outputs, values)}
    turned = binding.turned and all(axes[0] != "B" for name, axes in task.tensors.items() if binding.takes(name))
    return {name: value.T for name, value in found.items()} if turned else found


def _continued(scores: Any, *rest: Any) -> tuple[Any, ...]:
    """(scores, parents, tokens) of sequences that begin with the number of their beam; what else is returned must be one of the two."""
    sequences = next((one for one in rest if np.ndim(one[0])), None)
    if sequences is None:
        return (scores, *rest)
    parents, tokens = np.array([(int(row[0]), int(row[-1])) for row in sequences]).T
    for one in rest:
        if not np.ndim(one[0]) and not any(np.array_equal(to_numpy(one), known) for known in (parents, tokens)):
            parents = np.full_like(parents, -1)
    return scores, parents, tokens


#: Words for what is returned beside a loss, where that is its gradient.
_GRADIENT = re.compile(r"\bd_?(?:logits|scores|x|y|z)\b|\b(?:grad|gradient|derivative)s?(?!\w)")


def _dense(result: Result, subject: Subject, tensors: Tensors) -> Any:
    """The first that was returned; of the k best with their indices, an array of all, 0 elsewhere."""
    parts = result.raw if isinstance(result.raw, (tuple, list)) and subject.task in PARTS else ()
    arrays = [to_numpy(one) for one in parts if is_array(one)]
    index = next((one for one in arrays if one.dtype.kind in "iu"), None)
    best = next((one for one in arrays if index is not None and one.dtype.kind == "f" and one.shape == index.shape), None)
    if best is None or index is None:
        return parts[0] if isinstance(result.raw, tuple) and parts else result.out
    out = np.zeros(next(iter(tensors.values())).shape, best.dtype)
    np.put_along_axis(out, index.astype(np.int64), best, -1)
    return out


def _gradient(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """Also by parameters that the code froze, and where its file turned gradients off."""
    call, target, leaves = _prepared(subject, tensors, metadata, assignment, gradient=True)
    function = getattr(target, subject.method) if target is not None else subject.binding_for().function
    if "_contextlib" in getattr(getattr(function, "__code__", None), "co_filename", ""):
        raise Skipped(_NO_GRAD)
    if subject.framework != "torch":
        return _out(subject, call(), tensors)
    inputs, collect = subject.gradients(target, leaves, tensors, assignment)
    for one in inputs:
        one.requires_grad_(True)
    with torch_of().enable_grad():
        result = call()
    answers = _out(subject, result, tensors)
    found = [None] * len(inputs)
    if getattr(result.out, "requires_grad", False):
        dout = from_numpy(tensors["dout"], "torch", subject.dtype).to(result.out.dtype)
        if dout.shape != result.out.shape:
            raise Stop(f"{subject.name} must return {list(dout.shape)}: it returned {list(result.out.shape)}")
        found = torch_of().autograd.grad(result.out, inputs, dout, allow_unused=True)
    elif {"no_grad", "inference_mode", "set_grad_enabled"} & named(subject.thing):
        raise Skipped(_NO_GRAD)
    grads = [np.zeros(tuple(one.shape)) if grad is None else to_numpy(grad) for one, grad in zip(inputs, found)]
    return answers | {f"d_{name}": array_of(value, subject.precision or subject.dtype) for name, value in collect(grads).items()}


def _twice(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """The same object and the very same arrays: state left behind and inputs changed show in the second call. Then in other ways."""
    call, _, leaves = _prepared(subject, tensors, metadata, assignment)
    call()
    changed = [name for name, value in leaves.items() if not np.array_equal(to_numpy(value), tensors[name])]
    answers = {**_out(subject, call(), tensors), **{f"changed_{name}": to_numpy(leaves[name]) for name in changed}}
    for other in (_apart, _in_half, _finite, _after_another, _one_mask, _other_mask):
        with contextlib.suppress(*FAILURES):
            answers |= other(subject, tensors, metadata, assignment)
    return answers


def _apart(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """Keys and values of their own, where a layer reads them: features in another order, and rows of their matrices with them."""
    binding, source = subject.binding_for(), tensors.get("memory", tensors.get("x"))
    if source is None or not (binding.takes("k") and binding.takes("v")) or len(binding.unread()) > 1:
        return {}
    tensors, given = dict(tensors), {}
    for shift, letter in enumerate("kv", 1):
        given[letter] = from_numpy(np.roll(source, shift, -1), subject.framework, subject.dtype)
        if "W_qkv" in tensors:
            q_to_v = np.split(tensors["W_qkv"], 3, 1)
            tensors["W_qkv"] = np.concatenate([np.roll(one, shift, 0) if n == shift else one for n, one in enumerate(q_to_v)], 1)
        else:
            tensors["W_" + letter] = np.roll(tensors["W_" + letter], shift, 0)
    return {"apart_out": _out(subject, _prepared(subject, tensors, metadata, assignment, more=given)[0](), tensors)["out"]}


def _after_another(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """An object that was called with a token fewer before, or with one sequence: what was made once must serve other sizes too. NaN
    where it fails then, and not as new."""
    if subject.prototype is None or subject.task not in LAYERS or subject.task in STEPPED or {"x", "memory"} & set(tensors) != {"x"}:
        return {}
    found: Tensors = {}
    for name, batch, tokens in (("later_out", np.s_[:], np.s_[:-1]), ("alone_out", np.s_[:1], np.s_[:])):
        fewer = {**tensors, "x": tensors["x"][batch, tokens]}
        if "mask" in tensors:
            fewer["mask"] = tensors["mask"][batch, ..., tokens, tokens]
        call, target, _ = _prepared(subject, tensors, metadata, assignment)
        binding = subject.binding_for()
        with contextlib.suppress(*FAILURES):  # of these sizes alone
            subject.call(binding, target, subject.values(binding, fewer, metadata, subject.leaves(fewer)), fewer)
            try:
                found[name] = _out(subject, call(), tensors)["out"]
            except FAILURES as error:
                found[name] = np.full(subject.expected(tensors), np.nan)
                subject.helpers["fails"] = {"traceback": failure(subject, error)["traceback"]}
    return found


def _all_visible(tensors: Tensors) -> Tensors:
    """With a mask that hides nothing."""
    (batch, rows), columns = lengths(tensors)
    return {**tensors, "mask": np.ones((batch, 1, rows, columns), bool)}


def _one_mask(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """The second of two calls with one array as the mask, which hides nothing."""
    if subject.mask_form is None or "mask" in tensors or not subject.binding_for().takes("mask"):
        return {}
    tensors = _all_visible(tensors)
    call = _prepared(subject, tensors, metadata, assignment)[0]
    call()
    return {"masked_out": _out(subject, call(), tensors)["out"]}


def _other_mask(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """With what its second mask changes beside hiding keys, alone or with a causal mask."""
    form = subject.helpers.get("other_mask")
    if form is None or lengths(tensors)[1] <= lengths(tensors)[0][0]:
        return {}
    padding = padding_mask(tensors, *range(1, 1 + lengths(tensors)[0][0]))
    out = _out(subject, _prepared(subject, tensors, metadata, assignment)[0](), tensors)["out"]
    for inputs in [tensors] + [{**tensors, "mask": causal_mask(tensors)}] * (subject.mask_form is not None):
        more = beyond(lambda given: _prepared(subject, given, metadata, assignment)[0](), inputs, form, padding)
        if more.any():
            return {"other_out": out + more}
    return {}


def _in_half(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """What float16 gives with a mask that hides nothing, where that is NaN."""
    if subject.framework != "torch" or subject.mask_form is None:
        return {}
    tensors, subject = _all_visible(tensors), copy.copy(subject)
    subject.dtype = "float16"
    out = _out(subject, _prepared(subject, tensors, metadata, assignment)[0](), tensors)["out"]
    return {"half_out": out} if np.isnan(out).any() else {}


def _finite(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """The same scores, half of them by a bias of any numbers that the code adds."""
    form, slices = subject.mask_form, subject.slices
    added = form is not None and form.added and "mask" not in tensors and "q" in tensors
    says = added and ("bias" in subject.binding_for().argument("mask") or re.search(r"added to (?:the )?scaled", told(subject.thing)))
    if not says or (slices is not None and not slices.takes_mask("[B, H, L, L]")):
        return {}
    half = {**tensors, "q": tensors["q"] / 2}
    bias = half["q"] @ half["k"].swapaxes(-1, -2) / np.sqrt(half["q"].shape[-1])
    given = {"mask": from_numpy(bias, subject.framework, subject.dtype)}
    return {"finite_out": _out(subject, _prepared(subject, half, metadata, assignment, more=given)[0](), half)["out"]}


@contextlib.contextmanager
def _without_prints() -> Iterator[None]:
    """Hundreds of calls that print their weights would spend the time limit on formatting."""
    before = builtins.print
    builtins.print = lambda *args, **kwargs: None  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.print = before


def _repeated(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """out [R, ...]: in training mode, or in evaluation mode."""
    call, _, _ = _prepared(subject, tensors, metadata, assignment, train=metadata["call"] == "training")
    torch = torch_of()
    with _without_prints(), torch.no_grad() if torch is not None else contextlib.nullcontext():
        outs = [_out(subject, call(), tensors)["out"] for _ in range(int(metadata.get("repeat", "1")))]
    return {"out": np.stack(outs)}


def _steps(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """`out` of all calls, joined along L."""
    counts = [int(count) for count in metadata.get("steps", str(tensors["x"].shape[1])).split(",")]
    if subject.slices is not None and set(counts) != {1}:
        raise Skipped("it takes one token at a time")
    outs = stepped(subject, subject.binding_for(), tensors, metadata, assignment, counts)
    return {"out": np.concatenate(outs, axis=1)}


_CALLS = {
    "forward": _forward, "gradient": _gradient, "twice": _twice, "training": _repeated,
    "evaluation": _repeated, "steps": _steps, "train-steps": train_steps,
}
