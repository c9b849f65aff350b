"""Rotary positions. Su 2021 (RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from ._arrays import dtype_name, empty, finish, integers, operands, require_float, whole_numbers

__all__ = ["Rotary"]

_WAYS = "Rotary.backward in a torch.autograd.Function gives gradients"


class Rotary:
    """Pairs of numbers turned by an angle that grows with the position; q.k then depends on the distance of the two alone.

    Args:
        head_dim: D; rotary_dim: how many of the first columns turn, R (0: all D); base: usually 10000.
        interleaved: pairs (2i, 2i+1) as in GPT-J and Meta's weights; otherwise (i, i + R/2) as in Hugging Face's Llama.
        scaling: "none", "linear", "ntk", "yarn", "llama3", with factor, original_context and their own numbers (qkv/rotary.h).
    """

    _tables: list[np.ndarray] | None = None

    def __init__(self, head_dim: int, **options: Any) -> None:
        self._arguments = (head_dim, options)
        self._make()

    @classmethod
    def from_tables(cls, cosines: Any, sines: Any, *, head_dim: int = 0, interleaved: bool = False) -> Rotary:
        """From tables [positions, R / 2], which need not be those of angles; head_dim 0: R. A position that they do not have is
        an OptionError."""
        tables = [np.array(table, dtype=np.float64, order="C") for table in (cosines, sines)]
        if tables[0].ndim != 2:
            raise ValueError(f"[Rotary.from_tables] cosines and sines must be [positions, R / 2]: got {list(tables[0].shape)}")
        made = cls.__new__(cls)
        made._arguments = (head_dim or 2 * tables[0].shape[1], {"interleaved": bool(interleaved)})
        made._tables = tables
        made._make()
        return made

    def __repr__(self) -> str:
        if self._tables is not None:
            shape = list(self._tables[0].shape)
            return f"Rotary.from_tables({shape}, {shape}, head_dim={self._arguments[0]}, {self._arguments[1]})"
        return f"Rotary({', '.join([str(self._arguments[0]), *(f'{n}={v!r}' for n, v in self._arguments[1].items())])})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name not in ("_core", "_options")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make()

    def _make(self) -> None:
        head_dim, options = self._arguments
        if self._tables is None:
            self._options = _core.RotaryOptions(**options)
            self._core = _core.Rotary(head_dim, self._options)
        else:
            self._core = _core.Rotary.from_tables(head_dim, *self._tables, options["interleaved"])

    @property
    def frequencies(self) -> np.ndarray:
        """Radians per position, [R / 2]; of from_tables empty."""
        return np.array(self._core.frequencies())

    def forward(self, x: Any, *, offset: int = 0, offsets: Sequence[int] = (), ids: Any = None) -> Any:
        """x [B, H, T, D] turned. Token t of sequence b has position offset + t, offsets[b] + t, or ids[b, t] ([B|1, T]):
        one of the three, otherwise an OptionError."""
        return self._turn(self._core.forward, x, offset, offsets, ids)

    __call__ = forward

    def backward(self, dy: Any, *, offset: int = 0, offsets: Sequence[int] = (), ids: Any = None) -> Any:
        """dx of dy: turns back. Arguments as in the forward turn."""
        return self._turn(self._core.backward, dy, offset, offsets, ids)

    @staticmethod
    def _turn(function: Any, x: Any, offset: int, offsets: Sequence[int], ids: Any) -> Any:
        if bool(offset) + bool(len(offsets)) + (ids is not None) > 1:
            raise _core.OptionError("[Rotary] offset, offsets and ids exclude each other: got more than one")
        require_float(x, "x", "Rotary")
        y = empty(x, tuple(x.shape), dtype_name(x))
        numbers = None if ids is None else np.ascontiguousarray(whole_numbers(ids, "[Rotary] ids", np.int64))
        function(offset, integers(offsets, "[Rotary] offsets"), *operands(ways=_WAYS, x=x, y=y, ids=numbers))
        return finish(x, y)
