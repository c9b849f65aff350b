"""The parameters that an object holds: collected with their shapes, set by value. Not: what they mean (matching.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import names
from .errors import Stop
from .frameworks import is_array, is_module, is_tensor, torch_of


class Entry(NamedTuple):
    """`layout` is "out_in" for nn.Linear and its like, "in_out" for GPT-2's Conv1D, None where only the code knows."""

    path: str
    shape: tuple[int, ...]
    layout: Any  # "out_in" | "in_out" | None
    bias: bool


def _layout(owner: Any, name: str) -> Any:
    kind = type(owner).__name__
    if kind in ("Linear", "NonDynamicallyQuantizableLinear", "MultiheadAttention") or kind.startswith("Conv"):
        return "in_out" if kind == "Conv1D" else "out_in"
    if name.startswith("in_proj") or name.endswith("_proj_weight"):
        return "out_in"
    return None


def collect(thing: Any) -> tuple[list[Entry], list[Entry]]:
    """(what may be projections, the rest: norms, embeddings), in the order in which they were made."""
    if not is_module(thing):
        arrays = _arrays(thing, thing, "", 0)
        return [Entry(path, tuple(value.shape), None, _is_bias(path, value.shape)) for path, value in arrays], []
    torch = torch_of()
    mine, rest = [], []
    for path, value in thing.named_parameters():
        if isinstance(value, torch.nn.parameter.UninitializedParameter):
            raise Stop(f"{path} gets its shape in the first call: judge it with nn.Linear in place of nn.LazyLinear")
        owner = thing.get_submodule(path.rpartition(".")[0])
        name = path.rpartition(".")[2]
        entry = Entry(path, tuple(value.shape), _layout(owner, name), _is_bias(path, value.shape))
        (rest if isinstance(owner, torch.nn.Embedding) or "norm" in type(owner).__name__.lower() else mine).append(entry)
    return mine, rest


def _is_bias(path: str, shape: Any) -> bool:
    return len(shape) <= 1 or (names.is_bias(path) and sum(size != 1 for size in shape) <= 1)


def _arrays(root: Any, thing: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Floating arrays in attributes, lists and dicts of an object that is no nn.Module; three levels deep."""
    if isinstance(thing, dict):
        members = list(thing.items())
    elif isinstance(thing, (list, tuple)):
        members = list(enumerate(thing))
    elif hasattr(thing, "__dict__") and (depth == 0 or type(thing).__module__ == type(root).__module__):
        members = list(vars(thing).items())
    else:
        return
    for name, value in members:
        inner = f"{path}.{name}" if path else str(name)
        if is_array(value):
            floating = value.is_floating_point() if is_tensor(value) else np.issubdtype(value.dtype, np.floating)
            if floating and value.ndim and names.argument(str(name)) != "mask":
                yield inner, value
        elif depth < 3:
            yield from _arrays(root, value, inner, depth + 1)


def _step(thing: Any, name: str) -> Any:
    if isinstance(thing, dict):
        return thing[name] if name in thing else thing[next(key for key in thing if str(key) == name)]
    return thing[int(name)] if isinstance(thing, (list, tuple)) else getattr(thing, name)


def get(thing: Any, path: str) -> Any:
    if is_module(thing):
        return thing.get_parameter(path)
    for name in path.split("."):
        thing = _step(thing, name)
    return thing


def put(thing: Any, path: str, value: np.ndarray, dtype: str) -> None:
    """Sets one parameter by value."""
    torch = torch_of()
    if is_module(thing):
        with torch.no_grad():
            parameter = thing.get_parameter(path)
            parameter.copy_(torch.from_numpy(np.array(value)).to(parameter.dtype))
        return
    *outer, last = path.split(".")
    for name in outer:
        thing = _step(thing, name)
    old = _step(thing, last)
    new: Any = np.array(value, dtype=dtype)
    if is_tensor(old):
        new = torch.from_numpy(new).requires_grad_(old.requires_grad)
    if isinstance(thing, dict):
        thing[last if last in thing else next(key for key in thing if str(key) == last)] = new
    elif isinstance(thing, list):
        thing[int(last)] = new
    elif isinstance(thing, tuple):
        old[...] = new
    else:
        setattr(thing, last, new)
