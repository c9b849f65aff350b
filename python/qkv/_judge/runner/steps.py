"""Calls one after another: of code that keeps keys and values, and steps of training, of a dict of arrays or of a model that is built
for each probe. Not: where a cache lies (calling.py)."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from . import building
from .calling import TURNS, Binding, after, array_of, keeps, resets_of, step_values
from .contracts import names
from .contracts.tasks import TASKS, TURNED
from .errors import FAILURES, Stop
from .frameworks import arrays_in, default_dtype, from_numpy, is_array, is_module_class, of_type, to_numpy, torch_of
from .slots import Tensors, Words
from .subject import Skipped, Subject, Way

#: Masks that code may want in each call: none, 0 and -inf that are added, True for visible, the same with four axes.
MASKS = ("", "added", "bool", "bool4")
#: Rotations: of the call's tokens or a table of all; a column for each number of a head, or for each pair.
ROTATIONS = tuple(itertools.product((False, True), (False, True)))


def stepped(subject: Subject, binding: Binding, tensors: Tensors, metadata: Words, assignment: int, counts: list[int]) -> list[np.ndarray]:
    """`out` of each call, the first of which begins with an empty state; joined, however it is called."""
    if subject.helpers.get("single") and tensors["x"].ndim == 3:
        rows = [stepped(subject, binding, {**tensors, "x": x}, metadata, assignment, counts) for x in tensors["x"]]
        return [np.stack(parts) for parts in zip(*rows)]
    target = subject.fresh(tensors, assignment)
    _used(subject, binding, target, tensors, metadata, counts)
    state, outs, start = copy.deepcopy(subject.helpers.get("cache")), [], 0
    for count in [sum(counts)] if subject.helpers.get("whole") else counts:
        piece = {**tensors, "x": tensors["x"][..., start : start + count, :]}
        values = subject.values(binding, piece, {**metadata, "start": str(start)}, subject.leaves(piece))
        result = subject.call(binding, target, step_values(binding, values, state, start), piece)
        state = after(binding, result, state)
        outs.append(array_of(result.out, subject.precision))
        start += count
    subject.helpers["filled"] = state is not None and not (isinstance(state, (dict, list, tuple)) and not state)
    return outs


def _used(subject: Subject, binding: Binding, target: Any, tensors: Tensors, metadata: Words, counts: list[int]) -> None:
    """An object that was called and reset before, where it is called token by token."""
    resets = resets_of(type(target))
    if not resets or len(counts) < 2 or {*counts} != {1}:
        return
    piece = {**tensors, "x": tensors["x"][..., :2, :]}
    values = subject.values(binding, piece, {**metadata, "start": "0"}, subject.leaves(piece))
    subject.call(binding, target, step_values(binding, values, copy.deepcopy(subject.helpers.get("cache")), 0), piece)
    getattr(target, resets[0])()


def settle(subject: Subject, binding: Binding, tensors: Tensors, metadata: Words, states: list[Any]) -> bool:
    """Chooses how it is called: with which state at first, mask and rotations, with or without a batch; whether it has a state.
    False where no way runs."""
    x, length = tensors["x"], tensors["x"].shape[1]
    future = x.copy()
    future[:, -1] += 1
    ran: list[tuple[bool, Way, dict[str, Any]]] = []

    def joined(inputs: np.ndarray, counts: list[int]) -> np.ndarray:
        return np.concatenate(stepped(subject, binding, {**tensors, "x": inputs}, metadata, 0, counts), 1)

    forms = MASKS[binding.requires("mask") :] if binding.takes("mask") else ("",)
    rotations = ROTATIONS if subject.task in TURNED and any(map(binding.takes, TURNS)) else ROTATIONS[:1]
    ways = subject.ways
    for single, subject.dtype in itertools.product((False, True), ("float64", "float32")):
        for way, state, mask, turns in itertools.product(ways, states, forms, rotations):
            subject.ways = [way]
            subject.helpers.update(cache=state, step_mask=mask, turns=turns, single=single)
            try:
                one, two = (joined(inputs, [length]) for inputs in (x, future))
                first, second = np.split(joined(np.concatenate([x[:, :2]] * 2, 1), [2, 2]), 2, 1)
            except (*FAILURES, Skipped):
                continue
            if one.shape[:2] != x.shape[:2]:
                continue
            lives, hides = not np.allclose(first, second), np.allclose(one[:, :-1], two[:, :-1])
            keeps_state = lives or any(map(binding.takes, ("cache", "past_k"))) or _writes(subject, binding, tensors, metadata)
            ran.append((hides, way, {**subject.helpers, "whole": not keeps_state}))
            if hides and lives:  # a dict may keep what None does not
                ran = ran[-1:]
                break
        if ran:
            _, way, helpers = max(ran, key=lambda one: (one[0], one[2]["filled"]))
            subject.ways = [way]
            subject.helpers.update(helpers)
            return True
    subject.helpers.update(cache=states[0], step_mask=forms[0], turns=rotations[0], single=False)
    subject.dtype, subject.ways = "float64", ways
    return False


def _calls(subject: Subject, binding: Binding, tensors: Tensors, metadata: Words, times: int) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    """(`out` of calls of one object with the same input; the arrays that it holds before the first and after each)"""
    target, outs = subject.fresh(tensors, 0), []
    held = [arrays_in(target)]
    for _ in range(times):
        values = subject.values(binding, tensors, metadata, subject.leaves(tensors))
        state = copy.deepcopy(subject.helpers.get("cache"))
        outs.append(to_numpy(subject.call(binding, target, step_values(binding, values, state, 0), tensors).out))
        held.append(arrays_in(target))
    return outs, held


def _writes(subject: Subject, binding: Binding, tensors: Tensors, metadata: Words) -> bool:
    """Whether an object that speaks of a cache has other arrays after a call."""
    if subject.prototype is None or not keeps(subject.thing, binding.name, binding.roles.values()):
        return False
    before, after = _calls(subject, binding, tensors, metadata, 1)[1]
    return before.keys() != after.keys() or any(not np.array_equal(before[path], after[path]) for path in before)


def memory_of(subject: Subject, binding: Binding, tensors: Tensors, metadata: Words) -> str:
    """What an object keeps of earlier calls to attend to in later ones: arrays that grow, or a memory by its name; "" without."""
    with contextlib.suppress(*FAILURES):
        (first, second), (before, once, twice) = _calls(subject, binding, tensors, metadata, 2)
        for path, array in twice.items() if not np.array_equal(first, second) else ():
            grows = path not in once or once[path].shape != array.shape
            new = path not in before or not np.array_equal(before[path], array)
            if grows or (new and re.search("mem|segment", path.lower())):
                return names.stem(path)
    return ""


PARAMETERS = tuple(name for name in TASKS["lm"].tensors if name != "tokens")


def _name_of(path: str, shape: tuple[int, ...], tensors: Tensors) -> str | None:
    """The contract's name of one of the model's parameters: by name where the shape fits, then by shape."""
    wanted = {name: tensors[name].shape for name in PARAMETERS}
    flat = tuple(size for size in shape if size != 1)
    stem = names.key(names.stem(path))
    says = names.meaning("model", stem)
    if len(flat) <= 1:
        named = says == "head" or "head" in stem or names.letters(path, True) == ("o",)
        return "head_bias" if flat == wanted["head_bias"] and named else None
    fits = [name for name, size in wanted.items() if flat in (tuple(size), tuple(size)[::-1])]
    letters = names.letters(path)
    if letters and len(letters) == 1 and f"W_{letters[0]}" in fits:
        return f"W_{letters[0]}"
    if says in fits:
        return says
    return fits[0] if len(fits) == 1 and fits[0] not in ("W_q", "W_k", "W_v") else None


def _model(subject: Subject, tensors: Tensors) -> tuple[Any, dict[str, tuple[Any, bool]]]:
    """(model, {contract name: (a parameter that is trained, whether it is [out, in])})."""
    cls = subject.helpers["class"]
    values, own = building.values_for("lm", subject.helpers.get("init") or {})
    vocab, embed = tensors["embed"].shape
    values.update(vocab=vocab, embed=embed, head_dim=embed, heads=1, kv_heads=1, context=tensors["position"].shape[0], dropout=0.0)
    model, _, _ = building.build(cls, values, own, subject.people)
    torch = torch_of()
    model = of_type(model, subject.dtype)
    found: dict[str, tuple[Any, bool]] = {}
    for path, parameter in model.named_parameters():
        name = _name_of(path, tuple(parameter.shape), tensors)
        with torch.no_grad():
            if name is None or name in found:
                # What the contract does not have: an output projection is the identity, biases are zero; neither is trained.
                square = parameter.ndim == 2 and len(set(parameter.shape)) == 1
                parameter.copy_(torch.eye(len(parameter)) if square else torch.full_like(parameter, float("norm" in path)))
                continue
            turned = type(model.get_submodule(path.rpartition(".")[0])).__name__ == "Linear" and tensors[name].ndim == 2
            turned = turned and name not in ("embed", "position")
            value = tensors[name].T if turned else tensors[name]
            if parameter.numel() != value.size:
                raise Stop(f"{path} must have the shape {list(value.shape)}: it has {list(parameter.shape)}")
            parameter.copy_(torch.from_numpy(np.array(value)).reshape(parameter.shape))
        found[name] = (parameter, turned)
    missing = [name for name in PARAMETERS if name not in found and name != "head_bias"]
    if missing:
        have = ", ".join(path for path, _ in model.named_parameters())
        raise Stop(f"cannot find {', '.join(missing)} of {subject.name} among {have}")
    return model, found


def _loss(returned: Any) -> Any:
    """The loss that a step returned, alone or first in a tuple."""
    if isinstance(returned, (tuple, list)):
        numbers = (one for one in returned if isinstance(one, (float, np.generic)) or (is_array(one) and np.prod(one.shape) == 1))
        returned = next(numbers, None)
    return None if returned is None else float(to_numpy(returned).reshape(()))


@contextlib.contextmanager
def _globals_kept(function: Any) -> Iterator[None]:
    """Each probe is a training of its own: what a function keeps in dicts, lists and arrays of its module is put back."""
    scope = getattr(getattr(function, "__func__", function), "__globals__", {})
    own = {name: value for name, value in scope.items() if not name.startswith("__")}
    kept = {name: copy.deepcopy(value) for name, value in own.items() if type(value) in (dict, list, set, np.ndarray)}
    try:
        yield
    finally:
        scope.update(kept)


def train_steps(subject: Subject, tensors: Tensors, metadata: Words, assignment: int) -> Tensors:
    """`loss` [steps], and every parameter after the last step as after_NAME."""
    count, rate = int(metadata.get("repeat") or metadata.get("steps") or 3), float(metadata.get("lr", "0.1"))
    tokens = from_numpy(tensors["tokens"].astype(np.int64), subject.framework)
    binding: Binding = subject.bindings["train_step"]
    losses = []
    with default_dtype(subject.framework, subject.dtype), _globals_kept(binding.function):
        if binding.takes("params"):
            params: Any = {name: from_numpy(tensors[name], subject.framework, subject.dtype) for name in PARAMETERS if name in tensors}
            for _ in range(count):
                returned = binding({"params": params, "tokens": tokens, "lr": rate})
                losses.append(_loss(returned))
                params = next((one for one in (returned if isinstance(returned, (tuple, list)) else ()) if isinstance(one, dict)), params)
            after = {name: to_numpy(value) for name, value in params.items() if name in tensors}
        else:
            if not isinstance(subject.helpers.get("class"), type):
                raise Stop(f"{subject.name} takes a model, but the file has no model: a class like ToyLM(vocab_size, context_len, dim)")
            model, found = _model(subject, tensors)
            optimizer = torch_of().optim.SGD([parameter for parameter, _ in found.values()], lr=rate)
            model.train()
            losses = [_loss(binding({"model": model, "optimizer": optimizer, "tokens": tokens, "lr": rate})) for _ in range(count)]
            after = {name: to_numpy(value).T if turned else to_numpy(value) for name, (value, turned) in found.items()}
            after = {name: value.reshape(tensors[name].shape) for name, value in after.items()}
    if any(loss is None for loss in losses):
        raise Stop(f"not filled in yet: {subject.name} returns nothing", "unfilled")
    answers = {"loss": np.array(losses)} | {f"after_{name}": array_of(value, subject.precision) for name, value in after.items()}
    return {"out": answers["loss"], **answers}


def model_class(module: Any, judged: FunctionType) -> Any:
    """The model's class in a file: the last nn.Module whose constructor takes a vocabulary."""
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == judged.__module__]
    fitting = [cls for cls in own if "vocab" in building.settings_of(cls).values()] or [cls for cls in own if is_module_class(cls)]
    return fitting[-1] if fitting else None


def trial_tensors() -> Tensors:
    """A small model's parameters and tokens."""
    rng, sizes = np.random.default_rng(15), {"B": 2, "V": 7, "T": 5, "N": 6, "E": 6}
    shapes = {name: [sizes[axis] for axis in axes] for name, axes in TASKS["lm"].tensors.items()}
    return {name: rng.integers(0, 7, shape) if name == "tokens" else rng.standard_normal(shape) for name, shape in shapes.items()}
