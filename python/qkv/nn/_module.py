"""Shared by all modules: named parameters, their gradients, files; and Saved, values kept for backward."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import _arrays
from .._arrays import _is_torch, dtype_name
from .._tensors import code_of, entries_of, tensors_of
from ..io import load_safetensors, save_safetensors

__all__ = ["Module", "Saved"]

_WAYS = (
    "qkv.torch.MultiheadAttention, and torch.nn's layers under qkv.torch.enable(), are differentiable by PyTorch; a layer of qkv.nn "
    "has a backward of its own"
)


def operands(**arrays: Any) -> list[Any]:
    """Each array as _nn reads it, None of None."""
    return [None if x is None else _arrays.operand(x, name, _WAYS) for name, x in arrays.items()]


class Saved:
    """Values for backward: empty at first, filled by forward, read by the same module's backward.

        saved = qkv.nn.Saved()
        y = layer(x, saved=saved)
        dx = layer.backward(dy, saved)

    One that is used again keeps its memory; make one per layer and running computation. Inputs of forward (x, masks)
    must not be changed before backward.
    """

    __slots__ = ("_arrays", "_core", "_module")

    def __init__(self) -> None:
        self._module: Any = None
        self._core: Any = None
        self._arrays: tuple[Any, ...] = ()

    def _memory(self, module: Module, make: Callable[[], Any]) -> Any:
        """Memory for a forward of this module, which empties what was saved until it has ended: _fill."""
        core = self._core if self._module is module else None
        self._module, self._core, self._arrays = None, None, ()
        return make() if core is None else core

    def _fill(self, module: Module, core: Any, *arrays: Any) -> None:
        self._module, self._core, self._arrays = module, core, arrays

    def _of(self, module: Module) -> tuple[Any, ...]:
        if self._module is not module:
            raise ValueError(
                f"[{type(module).__name__}.backward] saved must be what this module's forward filled: forward(x, saved=saved)"
            )
        return self._arrays


class Module:
    """Holds named parameters, float32, and their gradients. Backward adds to gradients; :meth:`zero_grad` sets them to 0.

    Several threads may run forward at once; backward, load_state_dict and an optimizer's step must run alone.
    """

    _core: Any

    def state_dict(self, prefix: str = "", *, framework: str = "numpy", dtype: str = "float32") -> dict[str, Any]:
        """Copies of all parameters by name ("q_proj.weight"): by the names that were loaded, otherwise the module's own.

        framework: "numpy" or "torch". dtype: "float32", or "bfloat16" or "float16", rounded once. PyTorch's layouts: weight
        [out_features, in_features].
        """
        return tensors_of(self._core.state_dict(prefix, code_of(dtype)), framework)

    def gradients(self, prefix: str = "", *, framework: str = "numpy", dtype: str = "float32") -> dict[str, Any]:
        """Copies of the gradients of all parameters, as :meth:`state_dict` copies the parameters."""
        return tensors_of(self._core.gradients(prefix, code_of(dtype)), framework)

    def load_state_dict(self, state: Mapping[str, Any], prefix: str = "") -> None:
        """Loads every parameter from a dict of NumPy, PyTorch or JAX arrays; names that do not start with ``prefix`` are
        ignored.

        Raises OptionError (a ValueError) for an unknown, missing or twice given parameter, ShapeError for a wrong shape; the
        module then stays as it was.
        """
        self._core.load_state_dict(entries_of(state), prefix)

    @property
    def grads(self) -> dict[str, np.ndarray]:
        """``gradients()``: float32 NumPy arrays, by the names of :meth:`state_dict`."""
        return self.gradients()

    def zero_grad(self) -> None:
        """Every gradient becomes 0."""
        self._core.zero_gradients()

    @property
    def parameter_count(self) -> int:
        """How many numbers all parameters hold together."""
        return self._core.parameter_count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the parameters to a safetensors file."""
        save_safetensors(path, self.state_dict())

    def load(self, path: str | os.PathLike[str], prefix: str = "") -> None:
        """Loads the parameters from a safetensors file; raises as :meth:`load_state_dict`."""
        self.load_state_dict(load_safetensors(path), prefix)

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The arguments that make a module of this one's sizes, whatever its parameters."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        """Pickled, copied and sent to another process with its parameters; without gradients."""
        state = self.state_dict()
        return _made_again, (type(self), self._arguments(state), state)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.forward(*args, **options)

    def forward(self, *args: Any, **options: Any) -> Any:
        """y of x; each module says in which shapes. ``module(x)`` is ``module.forward(x)``."""
        raise NotImplementedError


def _made_again(cls: type[Module], arguments: dict[str, Any], state: Mapping[str, np.ndarray]) -> Module:
    """The function that pickle calls to make the module."""
    module = cls(**arguments)
    module.load_state_dict(state)
    return module


def require_floats(x: Any, name: str, function: str) -> str:
    """Raises TypeError unless x is an array of float32 or bfloat16, ValueError where its gradient would be lost. The name of its type."""
    if not hasattr(x, "shape"):
        raise TypeError(f"[{function}] {name} must be an array: got {type(x).__name__}")
    _arrays.require_untraced(x, name, _WAYS)
    found = dtype_name(x)
    if found not in ("float32", "bfloat16"):
        cast = f"{name}.float()" if _is_torch(x) else f"{name}.astype('float32')"
        raise TypeError(f"[{function}] {name} must be float32 or bfloat16: got {found}; {cast} makes it so")
    return found
