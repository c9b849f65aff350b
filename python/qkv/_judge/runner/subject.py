"""What is judged, ready to be called: an object or functions, filled with a probe's parameters by an assignment. Not: how it was
found (describing.py), what is asked of it (answering.py)."""

from __future__ import annotations

import dataclasses
from ast import literal_eval
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .calling import Binding, Result
from .contracts import names
from .contracts.tasks import CAUSAL, PARTS, STEPPED, TASKS, TURNED
from .copying import copied
from .errors import People, Stop
from .frameworks import constants, default_dtype, from_numpy, globals_of, is_module, modules_in, named, of_type, torch_of
from .masks import Form
from .parameters import Assignment, get, put
from .slicing import Slices, rebuilt
from .slots import Sizes, Slot, Tensors, Words, block_shape, canonical, in_probe
from .trace.branches import Branches


class Skipped(Exception):
    """The code does not take what a probe needs: the reason."""


class Way(NamedTuple):
    """How a function is given its parameters."""

    turned: bool = False  # matrices [out, in]
    nested: bool = False  # the dict of all of them holds a dict for each projection: params["query"]["w"]
    heads: int = 0  # matrices [E, H, d], [H, E, d], [H, d, E]; W_o [H, d, E]
    pair: tuple[str, str] | None = None  # a dict for each projection, with these keys


@dataclasses.dataclass
class Subject:
    name: str
    thing: Any  # the class or module, or the function
    kind: str  # "class" | "function" | "module"
    task: str
    framework: str
    people: People
    sizes: Sizes
    line: int = 0
    prototype: Any = None  # the object that is copied for each probe; None for functions
    method: str = ""  # which of its methods is called
    bindings: dict[str, Binding] = dataclasses.field(default_factory=dict)  # {contract function: binding}; "" for objects
    assignments: list[Assignment] = dataclasses.field(default_factory=list)
    has: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    conventions: list[str] = dataclasses.field(default_factory=list)  # ids that the first calls showed
    dtype: str = "float64"
    precision: str | None = None  # what answers are rounded to: the code itself rounds
    mask_form: Form | None = None
    slices: Slices | None = None  # how code without a batch is called
    read: set[str] = dataclasses.field(default_factory=set)  # contract names of parameters that come in one dict and were read
    ways: list[Way] = dataclasses.field(default_factory=lambda: [Way()])  # to give a function its parameters; one after the first call
    small: list[Subject] = dataclasses.field(default_factory=list)  # the same at other sizes
    helpers: dict[str, Any] = dataclasses.field(default_factory=dict)  # other functions of the file that a task needs

    def __post_init__(self) -> None:
        self.branches = Branches(self.people)

    def tell(self, **words: str) -> None:
        """For the engine, beside what it was told before: `unheeded`, what was seen, `unheeded_as`, the mistake that it is, and others."""
        if words:
            self.has["metadata"] = {**self.has.get("metadata", {}), **words}

    @property
    def calling(self) -> str:
        """What is done when it fails; a function's matrices are to be its arguments."""
        read = globals_of(self.thing) if self.kind == "function" else []
        also = f" (it reads {', '.join(read)} of its file: what is judged has them as arguments, or as attributes of a class)" if read else ""
        return f"calling {self.name}{also}"

    def binding_for(self) -> Binding:
        """Of the object, or of the task's own function."""
        if self.prototype is not None:
            return self.bindings[""]
        wanted = TASKS[self.task].own
        if wanted not in self.bindings:
            raise Skipped(f"there is no function {wanted}")
        return self.bindings[wanted]

    def fresh(self, tensors: Tensors, assignment: int, train: bool = False) -> Any:
        """A copy of the object with the probe's parameters; None of a function."""
        if self.prototype is None:
            return None
        remade = self.helpers.get("remade") if "q" in tensors and not self.assignments else None
        try:
            target = remade(tensors["q"].shape[-1]) if remade else copied(self.prototype, self.people.file)
        except Exception as error:
            raise self.people.stop(error, f"copying {self.name}") from None
        if is_module(target):
            target = of_type(target, self.dtype)
        vector, blocks = self.vector_of(tensors), canonical(self.sizes)
        for slot in self.slots(assignment):
            put(target, slot.path, vector[slot.indices(blocks)], self.dtype)
        set_training(target, train)
        return target

    def slots(self, assignment: int) -> list[Slot]:
        return self.assignments[assignment].slots if self.assignments else []

    def vector_of(self, tensors: Tensors) -> np.ndarray:
        """Every canonical block's numbers; those that the task does not have are zeros, W_o the identity."""
        blocks = canonical(self.sizes)
        vector = np.zeros(sum(block.size for block in blocks.values()))
        width = self.sizes.heads * self.sizes.head_dim
        vector[blocks["W_o"].reshape(width, -1)] = np.eye(width, self.sizes.embed)
        for name, indices in in_probe(tensors, self.sizes).items():
            vector[indices] = tensors[name]
        return vector

    def leaves(self, tensors: Tensors, gradient: bool = False) -> dict[str, Any]:
        """The probe's tensors in the person's framework, but for the mask and dout; with a gradient where one is asked for."""
        found = {}
        for name, value in tensors.items():
            if name == "mask" or (name == "dout" and self.task not in ("backward", *PARTS)):
                continue
            if name in TASKS[self.task].whole:
                value = value.astype(np.int64)
            tensor = from_numpy(value, self.framework, self.dtype)
            if gradient and self.framework == "torch" and tensor.is_floating_point():
                tensor.requires_grad_(True)
            found[name] = tensor
        return found

    def parameter(self, role: str, leaves: dict[str, Any]) -> Any:
        """A parameter in the way that the code reads it."""
        way, value = self.ways[0], self._parameter(role, leaves)
        matrix = role[:2] == "W_" and value.ndim == 2
        if way.heads and role[2:] in ("q", "k", "v", "o"):
            value = value.reshape(block_shape(role[2], not matrix, self.sizes))
            value = value.swapaxes(0, 1) if way.heads > 1 and matrix and role != "W_o" else value
        turned = way.heads == 3 and role != "W_o" if way.heads else way.turned
        return value.swapaxes(-1, -2) if turned and matrix else value

    def _parameter(self, role: str, leaves: dict[str, Any]) -> Any:
        """W_q ... b_qkv [in, out], joined or split where the contract has them otherwise; KeyError where it has not."""
        if role in leaves:
            return leaves[role]
        merged = leaves.get(role[:2] + "qkv")
        parts = []
        for letter in role[2:]:
            if role[:2] + letter in leaves:
                parts.append(leaves[role[:2] + letter])
            elif merged is not None and letter in "qkv":
                width = merged.shape[-1] // 3
                parts.append(merged[..., "qkv".index(letter) * width : ("qkv".index(letter) + 1) * width])
            elif role[:2] == "b_":
                parts.append(from_numpy(np.zeros(int(np.prod(block_shape(letter, True, self.sizes)))), self.framework, self.dtype))
            else:
                raise KeyError(role)
        if len(parts) == 1:
            return parts[0]
        if self.framework == "torch":
            return torch_of().cat(parts, -1)
        return from_numpy(np.concatenate(parts, -1), self.framework, self.dtype)

    def _in_dict(self, name: str, leaves: dict[str, Any]) -> Any:
        """A parameter by its name; KeyError for what is none."""
        if names.speaks_of("other", name) in ("mlp", "attention"):  # a dict of a part: params["attn"]["wq"]
            return names.ByName(lambda inner: self._in_dict(inner, leaves))
        role = (self.task == "block" and names.meaning("block", name)) or names.argument(name) or ""
        if role[:2] not in ("W_", "b_"):
            role = "W_" + "".join(names.letters(name) or ())
        if role == "W_":
            if names.setting(name) in (numbers := self.sizes.known()):
                return numbers[names.setting(name)]
            raise KeyError(name)
        if self.ways[0].nested:
            return names.ByName(lambda kind: self._read(("b_" if names.is_bias(kind) else "W_") + role[2:], leaves))
        return self._read(role, leaves)

    def _read(self, role: str, leaves: dict[str, Any]) -> Any:
        value = self.parameter(role, leaves)
        self.read.add(role)
        return value

    def values(self, binding: Binding, tensors: Tensors, metadata: Words, leaves: dict[str, Any]) -> dict[str, Any]:
        """{role: value} of one call. Raises Skipped where the code lacks an argument that the probe needs."""
        if self.task in PARTS:
            return self._of_part(binding, metadata, leaves)
        values: dict[str, Any] = {name: value for name, value in leaves.items() if name[:2] not in ("W_", "b_")}
        for name, role in binding.roles.items():
            if role is not None and role[:2] in ("W_", "b_"):
                try:
                    values[role] = self.parameter(role, leaves)
                except KeyError:
                    raise Stop(f"the argument {name} of {binding.name} was taken for {role}, which the task {self.task} has not: "
                               f"it has {', '.join(binding.contract or leaves)}") from None  # fmt: skip
                if (pair := self.ways[0].pair) and role[:2] == "W_":
                    values[role] = {pair[0]: values[role], pair[1]: self.parameter("b_" + role[2:], leaves)}
        if binding.takes("params"):
            values["params"] = names.ByName(lambda name: self._in_dict(name, leaves))
        splits = min(2, lengths(tensors)[1]) if {"q", "x"} & set(tensors) else 1
        values |= {"num_heads": self.sizes.heads, "num_kv_heads": self.sizes.kv_heads, "splits": splits}
        for role, key, kind in (
            ("block_size", "block", int), ("window", "window", int), ("p", "dropout", float), ("base", "base", float), ("lr", "lr", float),
        ):
            if key in metadata:
                values[role] = kind(metadata[key])
        start = int(metadata.get("start", 0))
        values.update(self._turns(tensors, start), start=0)
        if self.task in STEPPED:
            values["positions"] = from_numpy(start + np.arange(tensors["x"].shape[-2]), self.framework)
        if self.task == "rope" and not binding.takes("positions"):
            values["start"] = int(tensors["positions"][0])
            steps = np.arange(len(tensors["positions"])) + (values["start"] if binding.takes("start") else 0)
            if not np.array_equal(steps, tensors["positions"]):
                raise Skipped("it takes no positions")
        causal = metadata.get("causal") == "1"
        values |= {"training": metadata.get("call") == "training", "causal": causal, "with_weights": metadata.get("call") != "twice"}
        width = tensors["q"].shape[-1] if "q" in tensors else self.sizes.head_dim
        values["head_dim"] = width
        values["scale"], groups = float(metadata.get("scale", width**-0.5)), 1 + ("module" in metadata)
        values["module"] = SimpleNamespace(
            training=values["training"], num_key_value_groups=groups, is_causal=causal, layer_idx=0, scaling=values["scale"]
        )
        never = binding.contract.get("causal") or (self.helpers.get("never_causal") and self.task not in CAUSAL)
        if causal and never and not binding.takes("causal") and not self.has.get("causal"):
            raise Skipped("it takes no argument causal")
        if self.task == "rope" and values.get("base", 1e4) != 1e4 and not binding.takes("base"):
            raise Skipped("it takes no argument base")
        self._mask(binding, tensors, values, start)
        if self.task == "backward" and "q" in tensors:
            rows, keys = tensors["q"].shape[-2], tensors["k"].shape[-2]
            forward = attended(tensors, bias=np.where(np.tri(rows, keys, keys - rows, dtype=bool), 0, -np.inf) if values["causal"] else 0)
            values.update({name: from_numpy(forward[name], self.framework, self.dtype) for name in ("weights", "out", "lse")})
        return values

    def _of_part(self, binding: Binding, metadata: Words, leaves: dict[str, Any]) -> dict[str, Any]:
        for asked in metadata.get("asks", "").split():
            if not binding.takes(asked) and asked in binding.contract:
                raise Skipped(f"it takes no argument {asked}")
        axes = TASKS[self.task].tensors
        numbers = {name: literal_eval(metadata[name]) for name in binding.contract if name in metadata}
        for name in [name for name, number in numbers.items() if number is None]:  # off: left out, where that is off
            if any(one.default for one in binding.parameters if binding.roles[one.name] == name):
                raise Skipped(f"it always has a number {name}")
            del numbers[name]
        if binding.takes("sequences"):
            rows = np.arange(len(leaves["scores"]))[:, None]
            numbers["sequences"] = from_numpy(rows, self.framework) if "cat" in named(self.thing) else rows.tolist()
        numbers |= {"r": leaves["A"].shape[-1]} if "r" in binding.contract else {}
        turned = {name: leaves[name].T for name in leaves if binding.turned and len(axes[name]) == 2 and axes[name][0] != "B"}
        values = {"axis": -1, "causal": True, **leaves, **turned, **numbers}
        return {**values, "params": names.ByName(lambda name: values[next(iter(names.among("given", name, leaves)), name)])}

    def _turns(self, tensors: Tensors, start: int) -> dict[str, Any]:
        """Rotations of every position, complex numbers for pairs, or cosines and sines: of the task, or such as turn nothing."""
        length, width = (tensors.get("x", tensors.get("q")).shape[-2], self.sizes.head_dim) if {"x", "q"} & set(tensors) else (0, 0)
        table, halved = self.helpers.get("turns", (False, False))
        positions = np.arange(64) if table else start + np.arange(length)
        angles = np.outer(positions, 1e4 ** (-np.arange(0, width // 2 * 2, 2) / max(width, 1)))
        angles = angles if self.task in TURNED else 0 * angles
        columns = angles if halved else np.concatenate([angles, angles, angles[:, : width % 2]], -1)
        turns = np.exp(1j * angles).astype("complex64" if self.dtype == "float32" else "complex128")
        found = {"turns": turns, "cos": np.cos(columns), "sin": np.sin(columns)}
        return {name: from_numpy(value, self.framework, self.dtype) for name, value in found.items()}

    def _mask(self, binding: Binding, tensors: Tensors, values: dict[str, Any], start: int) -> None:
        block = self.task == "block" and binding.takes("mask") and self.mask_form is not None
        if form := self.helpers.get("step_mask"):
            past = np.tri(tensors["x"].shape[-2], start + tensors["x"].shape[-2], start, dtype=bool)
            past = np.where(past, 0.0, -np.inf) if form == "added" else past[None, None] if form == "bool4" else past
            values["mask"] = from_numpy(past, self.framework, self.dtype)
            return
        if block or (binding.requires("mask") and self.mask_form is not None and "mask" not in tensors):
            (batch, rows), columns = lengths(tensors)  # a block is causal, by its mask where it takes one; others hide nothing
            mask = np.broadcast_to(np.tri(rows, dtype=bool) if block else np.ones((1, columns), bool), (batch, 1, rows, columns))
        elif "mask" in tensors:
            mask = tensors["mask"].astype(bool)
            mask = mask[:, None] if mask.ndim == 3 else mask  # [B, 1, Tq, Tk]
        else:
            return
        if not binding.takes("mask"):
            if binding.takes("causal") and bool((mask == np.tri(mask.shape[2], mask.shape[3], mask.shape[3] - mask.shape[2], dtype=bool)).all()):
                values["causal"] = True
                return
            raise Skipped("it takes no mask")
        form = self.mask_form or Form("[B, 1, L, L]", "bool")
        values["mask"] = form.of(mask, tensors["q"].shape[1] if "q" in tensors else self.sizes.heads, self.framework, self.dtype)
        if values["mask"] is None and not block:
            raise Skipped(f"its mask has the shape {form.shape}: this one cannot be said in it")

    def expected(self, tensors: Tensors) -> tuple[int, ...]:
        """The shape that the output should have."""
        if "q" in tensors:
            return tuple(tensors["q"].shape)
        shape = tuple(tensors["x"].shape)
        if self.task == "rope" or "W_o" in tensors or len(shape) != 3:
            return shape
        return (*shape[:2], self.sizes.heads * self.sizes.head_dim)

    def call(self, binding: Binding, target: Any, values: dict[str, Any], tensors: Tensors) -> Result:
        """One call. Errors of the person's code come as they are; nothing returned is a Stop "unfilled"."""
        bound, slices = binding if target is None else binding.on(target, self.method), binding.slices or self.slices
        widths = self.helpers.get("widths", ()) if "q" in tensors else ()
        with default_dtype(self.framework, self.dtype), constants(widths, values.get("head_dim")):
            raw = bound(values) if slices is None else slices.call(bound, values)
            behind = "weights-first" in self.conventions
            result = Result(rebuilt([raw], lambda parts: parts[0]), ()) if self.task in PARTS else Result(raw, self.expected(tensors), behind)
        if result.raw is None:
            raise Stop(f"not filled in yet: {binding.name} returns nothing", "unfilled")
        if result.out is None:
            raise Stop(f"{binding.name} must return an array: it returned {type(result.raw).__name__}")
        return result

    def gradients(self, target: Any, leaves: dict[str, Any], tensors: Tensors, assignment: int) -> tuple[list[Any], Any]:
        """(tensors to differentiate by, a function of their gradients that gives {contract name: array})."""
        inputs = [name for name in leaves if name[:2] not in ("W_", "b_") and leaves[name].is_floating_point()]
        if target is None:
            wanted = [name for name in leaves if leaves[name].is_floating_point() and name not in self.has.get("absent", ())]
            return [leaves[name] for name in wanted], lambda grads: dict(zip(wanted, grads))
        slots, blocks = self.slots(assignment), canonical(self.sizes)
        owned = [get(target, slot.path) for slot in slots]

        def collect(grads: list[np.ndarray]) -> Tensors:
            into = np.zeros_like(self.vector_of(tensors))
            for slot, grad in zip(slots, grads[len(inputs) :]):
                np.add.at(into, slot.indices(blocks), grad)
            own = {name: into[indices] for name, indices in in_probe(tensors, self.sizes).items()}
            return {**dict(zip(inputs, grads)), **{name: own[name] for name in own if name not in self.has.get("absent", ())}}

        return [leaves[name] for name in inputs] + owned, collect


def attended(tensors: Tensors, scale: float | None = None, bias: Any = 0) -> Tensors:
    """The formula of q, k, v, by 1/sqrt(D) without a scale: weights, output, and of each row the largest score, the sum of exp(score -
    that), and the logarithm of the row's sum."""
    products = tensors["q"] @ np.swapaxes(tensors["k"], -1, -2)
    scores = (products / np.sqrt(tensors["q"].shape[-1]) if scale is None else products * scale) + bias
    top = scores.max(-1, keepdims=True)
    sums = np.exp(scores - top).sum(-1, keepdims=True)
    weights = np.exp(scores - top) / sums
    return {"weights": weights, "out": weights @ tensors["v"], "top": top[..., 0], "sum": sums[..., 0], "lse": (top + np.log(sums))[..., 0]}


def set_training(target: Any, train: bool) -> None:
    """train() or eval(); an object that is no nn.Module may have the methods, or an attribute `training`, and hold modules."""
    for module in modules_in(target):
        module.train(train)
    if is_module(target):
        return
    method = getattr(target, "train" if train else "eval", None)
    if hasattr(target, "training"):
        target.training = train
    elif callable(method):
        method()


def lengths(tensors: Tensors) -> tuple[tuple[int, int], int]:
    """((batch, queries), keys)."""
    if "q" in tensors:
        return (tensors["q"].shape[0], tensors["q"].shape[-2]), tensors["k"].shape[-2]
    x = tensors["x"]
    return (x.shape[0], x.shape[1]), tensors.get("memory", x).shape[1]


SQUARE = "it takes as many queries as keys only"


def has_more_keys(tensors: Tensors) -> bool:
    """Whether k has another length than q."""
    return "k" in tensors and "q" in tensors and tensors["k"].shape[-2] != tensors["q"].shape[-2]


def square(tensors: Tensors) -> Tensors:
    """As many keys as queries."""
    if not has_more_keys(tensors):
        return tensors
    rows = tensors["q"].shape[-2]
    cut = {"k": np.s_[..., :rows, :], "v": np.s_[..., :rows, :], "mask": np.s_[..., :rows]}
    return {name: value[cut.get(name, ...)] for name, value in tensors.items()}


def causal_mask(tensors: Tensors) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: the same triangle for every sequence."""
    (batch, q_len), kv_len = lengths(tensors)
    return np.broadcast_to(np.tri(q_len, kv_len, kv_len - q_len, dtype=bool), (batch, 1, q_len, kv_len)).copy()


def padding_mask(tensors: Tensors, *hidden: int) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: so many of the last keys of each sequence are hidden."""
    (batch, q_len), kv_len = lengths(tensors)
    shown = kv_len - np.array(hidden)[:, None, None, None]
    return np.broadcast_to(np.arange(kv_len) < shown, (batch, 1, q_len, kv_len)).copy()
