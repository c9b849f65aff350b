"""Modules that treat every row by itself: Linear, LayerNorm, MLP; and Embedding, which makes rows of ids.

x is [..., E], with any number of leading axes, float32, of NumPy, PyTorch (CPU) or JAX; results are of the same library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _nn
from .._arrays import dtype_name, empty
from ._module import Module, Saved, like, operand, require_f32, require_f32_or_bf16, rows

__all__ = ["MLP", "Embedding", "LayerNorm", "Linear", "cross_entropy"]


class _Rows(Module):
    """y[m] = f(x[m]); saved holds x."""

    def _widths(self) -> tuple[int, int]:
        raise NotImplementedError

    def _check(self, array: Any, name: str, width: int, function: str) -> None:
        full = f"{type(self).__name__}.{function}"
        self._require(array, name, full)
        if len(array.shape) < 1 or array.shape[-1] != width:
            raise ValueError(f"[{full}] {name} must be [..., {width}]: got {list(array.shape)}")

    _require = staticmethod(require_f32)

    def _run_forward(self, x: Any, y: Any, saved: Saved | None) -> None:
        self._core.forward(operand(x, "x"), operand(y, "y"))

    def _run_backward(self, x: Any, dy: Any, dx: Any, saved: Saved) -> None:
        self._core.backward(operand(x, "x"), operand(dy, "dy"), None if dx is None else operand(dx, "dx"))

    def forward(self, x: Any, *, saved: Saved | None = None) -> Any:
        """y [..., out] of x [..., in]. ``saved`` keeps x (not a copy) for backward."""
        width_in, width_out = self._widths()
        self._check(x, "x", width_in, "forward")
        flat = rows(x)
        if saved is not None:
            saved._fill(self, flat)
        y = empty(x, (flat.shape[0], width_out), dtype_name(x))
        self._run_forward(flat, y, saved)
        return like(x, y, (*x.shape[:-1], width_out))

    def backward(self, dy: Any, saved: Saved, *, need_dx: bool = True) -> Any:
        """Returns dx [..., in] (None unless need_dx) of dy [..., out]; adds to the gradients of the parameters."""
        (x,) = saved._of(self)
        self._check(dy, "dy", self._widths()[1], "backward")
        flat = rows(dy)
        if flat.shape[0] != x.shape[0]:
            raise ValueError(f"[{type(self).__name__}.backward] dy must have the {x.shape[0]} rows of x: got {flat.shape[0]}")
        if dtype_name(dy) != dtype_name(x):
            raise TypeError(f"[{type(self).__name__}.backward] dy must be {dtype_name(x)}, as x was: got {dtype_name(dy)}")
        dx = empty(dy, (flat.shape[0], x.shape[1]), dtype_name(x)) if need_dx or not isinstance(self, Linear) else None
        self._run_backward(x, flat, dx, saved)
        return like(dy, dx, (*dy.shape[:-1], x.shape[1])) if need_dx else None


class Linear(_Rows):
    """y = x W^T + b. Parameters weight [out_features, in_features], bias [out_features], both uniform +-1/sqrt(in_features).

    x is float32 or bfloat16, and y as x; W is rounded as it is read, and gradients of W and b are float32. The result is
    bit-identical for any number of threads.
    """

    _require = staticmethod(require_f32_or_bf16)

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, seed: int = 0) -> None:
        self._core = _nn.Linear(in_features, out_features, bias, seed)

    def _widths(self) -> tuple[int, int]:
        return self._core.in_features, self._core.out_features

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"in_features": self._core.in_features, "out_features": self._core.out_features, "bias": self._core.has_bias}

    def __repr__(self) -> str:
        return f"Linear({self._core.in_features}, {self._core.out_features}, bias={self._core.has_bias})"


class LayerNorm(_Rows):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis. Ba 2016 (arXiv:1607.06450)."""

    def __init__(self, embed_dim: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        self._core = _nn.LayerNorm(embed_dim, eps, bias)
        self.embed_dim, self.eps = embed_dim, eps

    def _widths(self) -> tuple[int, int]:
        return self.embed_dim, self.embed_dim

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"embed_dim": self.embed_dim, "eps": self.eps, "bias": "bias" in state}

    def __repr__(self) -> str:
        return f"LayerNorm({self.embed_dim}, eps={self.eps:g})"


class MLP(_Rows):
    """y = W2 gelu(W1 x + b1) + b2, gelu by erf. Parameters c_fc.weight [F, E], c_fc.bias, c_proj.weight [E, F], c_proj.bias.

    hidden_dim: F, 0 = 4 E. Hendrycks 2016 (arXiv:1606.08415).
    """

    def __init__(self, embed_dim: int, hidden_dim: int = 0, *, bias: bool = True, seed: int = 0) -> None:
        self._core = _nn.MLP(embed_dim, hidden_dim, bias, seed)
        self.embed_dim = embed_dim

    def _widths(self) -> tuple[int, int]:
        return self.embed_dim, self.embed_dim

    def _run_forward(self, x: Any, y: Any, saved: Saved | None) -> None:
        work = _nn.MlpSaved() if saved is None or saved._core is None else saved._core
        if saved is not None:
            saved._core = work
        self._core.forward(operand(x, "x"), operand(y, "y"), work)

    def _run_backward(self, x: Any, dy: Any, dx: Any, saved: Saved) -> None:
        self._core.backward(operand(x, "x"), operand(dy, "dy"), operand(dx, "dx"), saved._core)

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"embed_dim": self.embed_dim, "hidden_dim": len(state["c_fc.weight"]), "bias": "c_fc.bias" in state}

    def __repr__(self) -> str:
        return f"MLP({self.embed_dim}, parameters={self.parameter_count})"


class Embedding(Module):
    """y[...] = weight[ids[...]]. Parameter weight [num_embeddings, embed_dim], N(0, 1)."""

    def __init__(self, num_embeddings: int, embed_dim: int, *, seed: int = 0) -> None:
        self._core = _nn.Embedding(num_embeddings, embed_dim, seed)
        self.num_embeddings, self.embed_dim = num_embeddings, embed_dim

    def forward(self, ids: Any, *, saved: Saved | None = None) -> Any:
        """y [..., E] of whole numbers ids [...]. Raises OptionError (a ValueError) for an id outside [0, num_embeddings)."""
        flat = whole_numbers(ids, "ids", "Embedding.forward")
        if saved is not None:
            saved._fill(self, flat)
        y = empty(ids, (flat.shape[0], self.embed_dim), "float32")
        self._core.forward(flat, operand(y, "y"))
        return like(ids, y, (*np.shape(ids), self.embed_dim))

    def backward(self, dy: Any, saved: Saved) -> None:
        """weight's gradient[ids[m]] += dy[m], m ascending whatever the number of threads."""
        (ids,) = saved._of(self)
        require_f32(dy, "dy", "Embedding.backward")
        self._core.backward(ids, operand(rows(dy), "dy"))

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"num_embeddings": self.num_embeddings, "embed_dim": self.embed_dim}

    def __repr__(self) -> str:
        return f"Embedding({self.num_embeddings}, {self.embed_dim})"


def whole_numbers(ids: Any, name: str, function: str) -> np.ndarray:
    """Any array of whole numbers as int64 [M]."""
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise TypeError(f"[{function}] {name} must be whole numbers: got {array.dtype.name}")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(-1)


def cross_entropy(logits: Any, targets: Any) -> tuple[float, Any]:
    """(loss, dlogits): the mean over rows of log(sum exp(logits)) - logits[target]; rows with target -1 do not count.

    logits [..., V] float32, targets [...] whole numbers; dlogits of logits' shape: (softmax - onehot) / number of targets.
    """
    require_f32(logits, "logits", "cross_entropy")
    numbers = whole_numbers(targets, "targets", "cross_entropy")
    flat = rows(logits)
    dlogits = empty(logits, tuple(flat.shape), "float32")
    loss = _nn.cross_entropy(operand(flat, "logits"), numbers, operand(dlogits, "dlogits"))
    return loss, like(logits, dlogits, tuple(logits.shape))
