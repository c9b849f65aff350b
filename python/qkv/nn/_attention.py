"""Layers of attention, the ladder from an average to grouped heads: x [B, T, E] -> y [B, T, output_dim], forward and backward.

    projected = x W_in^T + b_in;  attended = attention(q, k, v);  y = dropout(attended W_out^T + b_out)

All are self-attention (queries and keys are the same tokens) and share one implementation; they differ in names, defaults and
sizes. x is float32 or bfloat16, and y as x. On bfloat16, what lies between projections and attention is bfloat16 too; sums are
float32 and rounded once. Parameters and their gradients are float32; parameters are rounded as they are read, so those of a
bfloat16 file are read exactly. Parameters start as torch.nn.Linear's, uniform +-1/sqrt(fan_in), from ``seed``. Dropout acts in
training mode only.
Not supported: cross-attention, other element types (``qkv.attention`` has both).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core as core
from .. import _nn
from .._arrays import _is_torch, empty, finish, integers, whole_numbers
from .._options import build_mask
from .._tensors import entries_of
from ..kv_cache import KVCache
from ..rotary import Rotary
from ._module import Module, Saved, operands, require_floats

__all__ = ["Layer"]


class Layer(Module):
    """A form of attention; see the module. ``layer(x, ...)`` is ``layer.forward(x, ...)``."""

    name: str  #: its name in ``qkv layer``

    def __init__(self, **config: Any) -> None:
        self._config = _kept(config)
        self._core = _nn.make_layer(self.name, **_layer_config(self._config))
        self._check_rotary()

    @classmethod
    def _around(cls, made: Any, config: Mapping[str, Any]) -> Layer:
        layer = cls.__new__(cls)
        layer._config, layer._core = _kept(config), made
        layer._check_rotary()
        return layer

    def _check_rotary(self) -> None:
        rotary = self._config.get("rotary")
        if isinstance(rotary, Rotary) and rotary._arguments[0] != self.head_dim:
            raise core.OptionError(f"[{type(self).__name__}] rotary must be of the layer's head_dim {self.head_dim}: got {rotary!r}")

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], **config: Any) -> Layer:
        """A new layer with these parameters: sizes that are not given are those of the arrays. No file holds num_heads: OptionError
        where several fit."""
        given = _kept(config)
        return cls._around(_nn.load_layer(cls.name, entries_of(state), **_layer_config(given)), given)

    def __reduce__(self) -> Any:
        return _made_again, (type(self), self._config, self.state_dict(), self.training)

    def train(self, on: bool = True) -> Layer:
        """Training mode turns dropout on. A new layer is in evaluation mode."""
        self._core.train(on)
        return self

    def eval(self) -> Layer:
        """No dropout."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """Whether dropout acts: :meth:`train`."""
        return self._core.training

    @property
    def embed_dim(self) -> int:
        """E; 0: any."""
        return self._core.embed_dim

    @property
    def output_dim(self) -> int:
        """Width of y; 0: as the input's."""
        return self._core.output_dim

    @property
    def num_heads(self) -> int:
        """H, query heads."""
        return self._core.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values, each read by num_heads / num_kv_heads query heads."""
        return self._core.sizes["num_kv_heads"]

    @property
    def head_dim(self) -> int:
        """D, the width of a head."""
        return self._core.sizes["head_dim"]

    def forward(
        self,
        x: Any,
        *,
        mask: Any = None,
        keep: Any = None,
        drop: Any = None,
        mask_axes: str | None = None,
        key_lengths: Sequence[int] | None = None,
        window: tuple[int, int] | None = None,
        causal: bool | None = None,
        empty_row: str | None = None,
        weights: str | None = None,
        seed: int | None = None,
        first_sequence: int = 0,
        offset: int = 0,
        offsets: Sequence[int] = (),
        position_ids: Any = None,
        saved: Saved | None = None,
    ) -> Any:
        """y [B, T, output_dim] of x [B, T, E] (or [T, E] -> [T, output_dim]), float32 or bfloat16, NumPy, PyTorch (CPU) or
        JAX.

        Args:
            mask: a :class:`qkv.Mask`. A key is attended only where every mask that is given, and the causal one, allows it.
            keep, drop: arrays, non-zero = may attend (keep) or may not (drop): [B, T] (keys), or four axes
                [B|1, H|1, T|1, T|1]; layers without heads also take [B, T, T], and H = 1. Other shapes, and squares [T, T], need
                ``mask_axes``.
            mask_axes: the axes of keep or drop: "bk", "qk", "bqk" or "hqk".
            key_lengths: [B], the keys of sequence b from key_lengths[b] on are padding.  window: (left, right), how many other
                tokens on each side may be attended; -1 = unbounded.
            causal, empty_row ("zero", "mean", "nan"): None: as in the constructor.
            weights: "all": also return the weights [B, H, T, T] before dropout, "applied": after it.
            seed: for this call's dropouts; needed in training mode when a dropout is not 0.
            first_sequence: the number that sequence 0 has in the dropout pattern.
            offset, offsets, position_ids: positions of a layer with rotary ones, one of the three: token t has offset + t,
                offsets[b] + t, or position_ids[b, t] ([B|1, T]).
            saved: a :class:`Saved`, filled for backward.

        Returns:
            y, or (y, weights).
        """
        function = f"{type(self).__name__}.forward"
        dtype = require_floats(x, "x", function)
        if len(x.shape) not in (2, 3):
            raise ValueError(f"[{function}] x must be [B, T, E] or [T, E]: got {list(x.shape)}")
        if weights not in (None, "all", "applied"):
            raise ValueError(f'[{function}] weights must be None, "all" or "applied": got {weights!r}')
        if seed is None and self.training and self._drops():
            raise ValueError(f"[{function}] dropout in training mode needs a seed, another one for each step: got none")
        if (offset or len(offsets) or position_ids is not None) and "rotary" not in self._config:
            raise ValueError(f"[{function}] offset, offsets and position_ids turn rotary positions: this layer has none")
        if bool(offset) + bool(len(offsets)) + (position_ids is not None) > 1:
            raise ValueError(f"[{function}] offset, offsets and position_ids exclude each other: got more than one")
        whole, axes = None, mask_axes if keep is None and drop is None else None  # of nothing: refused there
        if any(one is not None for one in (mask, key_lengths, window, axes)):
            whole = build_mask(4, mask=mask, key_lengths=key_lengths, window=window, mask_axes=axes)
        for name, array in (("keep", keep), ("drop", drop)):
            if array is not None:
                one = build_mask(4, **{name: array}, mask_axes=self._axes(name, array, x.shape, mask_axes))
                whole = one if whole is None else whole & one
        ids = None
        if position_ids is not None:
            numbers = whole_numbers(position_ids, f"[{type(self).__name__}] position_ids", np.int64)
            ids = np.ascontiguousarray(np.atleast_2d(numbers))
        given: dict[str, Any] = {} if causal is None else {"causal": causal}
        if empty_row or seed or first_sequence or offset or len(offsets):
            given |= {"empty_row": empty_row, "seed": seed, "first_sequence": first_sequence, "offset": offset}
            given["offsets"] = integers(offsets, f"[{function}] offsets")
        y = empty(x, (*x.shape[:-1], self.output_dim or x.shape[-1]), dtype)
        core, of_mask = None if saved is None else saved._memory(self, _nn.Saved), None if whole is None else whole._core
        found = self._core.forward(*operands(x=x, y=y), weights or "", core, of_mask, ids, **given)
        if saved is not None:
            saved._fill(self, core, tuple(x.shape[:-1]), dtype, whole, keep, drop, ids)
        if weights is None:
            return finish(x, y)
        if found is None:
            raise ValueError(f"[{function}] this layer has no weights that depend on x: see its parameters")
        found = found if len(x.shape) == 3 else found[0]
        return finish(x, y), sys.modules["torch"].from_numpy(found) if _is_torch(x) else finish(x, found)

    def backward(self, dy: Any, saved: Saved, *, need_dx: bool = True) -> Any:
        """Returns dx (None unless need_dx) of dy, in the shapes of x and y; adds to the gradients of the parameters."""
        rows, dtype, *_ = saved._of(self)
        function = f"{type(self).__name__}.backward"
        found = require_floats(dy, "dy", function)
        if found != dtype:
            raise TypeError(f"[{function}] dy must be {dtype}, as x was: got {found}")
        if tuple(dy.shape[:-1]) != rows:
            wanted = ", ".join(map(str, (*rows, self.output_dim or "E")))
            raise ValueError(f"[{function}] dy must be shaped as y was, [{wanted}]: got {list(dy.shape)}")
        width = self.embed_dim or dy.shape[-1]
        dx = empty(dy, (*dy.shape[:-1], width), dtype) if need_dx else None
        self._core.backward(*operands(dy=dy), saved._core, *operands(dx=dx))
        return finish(dy, dx)

    def cache(self, *, sequences: int = 1, **options: Any) -> KVCache:
        """An empty :class:`qkv.KVCache` of this layer's sizes, for :meth:`step`: capacity=, or layout= and the like."""
        return KVCache(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, sequences=sequences, **options)

    def step(self, x: Any, cache: KVCache, *, mask: Any = None) -> Any:
        """The next n tokens of every sequence of a cache: x [B, n, E], float32 or bfloat16, -> y [B, n, output_dim] of the same
        type; prefill is a step with large n.

        Their keys and values are appended; each token attends to all up to itself. No dropout is applied, no backward kept. A token
        whose keys a mask hides gets NaN where empty_row is "nan", otherwise zeros, also where forward takes the mean; a mask that does not
        fit is refused when tokens are appended already.
        """
        dtype = require_floats(x, "x", f"{type(self).__name__}.step")
        y, hides = empty(x, (*x.shape[:-1], self.output_dim), dtype), build_mask(4, mask=mask)
        self._core.step(*operands(x=x, y=y), cache, None if hides is None else hides._core)
        return finish(x, y)

    def _drops(self) -> bool:
        try:
            sizes = self._core.sizes
        except ValueError:  # no projections, no dropout
            return False
        return sizes["dropout"] > 0 or sizes["residual_dropout"] > 0

    def _axes(self, name: str, array: Any, x_shape: Sequence[int], mask_axes: str | None) -> str | None:
        """The names of a mask's axes, None for all four. Raises ShapeError where they are ambiguous."""
        shape, heads = list(np.shape(array)), self._core.masks_have_heads
        square = len(shape) == 2 and shape[0] == shape[1] > 1
        if mask_axes is not None or (len(shape) == 4 and (heads or shape[1] == 1)):
            return mask_axes
        if (len(shape) == 2 and not square) or (len(shape) == 3 and not heads):
            return ("bk", "bqk")[len(shape) - 2]
        own = "[B|1, H|1, Tq|1, Tk|1]" if heads else "[B, Tq, Tk], [B, 1, Tq, Tk]"
        wanted = f"be [B, Tk] or {own}, or have its axes named by mask_axes"
        if square:
            wanted = 'name its axes, since [B, Tk] and [Tq, Tk] both fit: mask_axes="bk" or "qk"'
        raise core.ShapeError(f"[{type(self).__name__}.forward] {name} must {wanted}: got {shape} for x {list(x_shape)}")

    def __repr__(self) -> str:
        heads = f", num_heads={self.num_heads}" if self._core.masks_have_heads else ""
        return f"{type(self).__name__}(embed_dim={self.embed_dim}{heads}, parameters={self.parameter_count})"


def _made_again(cls: type[Layer], config: dict[str, Any], state: Mapping[str, np.ndarray], training: bool) -> Layer:
    """The function that pickle calls to make the layer."""
    return cls.from_state_dict(state, **config).train(training)


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, with dicts that the caller may change afterwards as they are."""
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items() if value is not None}


def _layer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _rotary_options(value) if key == "rotary" else value for key, value in config.items()}


def _rotary_options(rotary: Any) -> Any:
    if rotary is True:
        return core.RotaryOptions()
    if isinstance(rotary, Rotary):
        if rotary._tables is not None:
            raise core.UnsupportedError("[nn] a layer's rotary positions are angles: Rotary.from_tables is not supported in layers")
        return rotary._options
    if isinstance(rotary, Mapping):
        return core.RotaryOptions(**rotary)
    raise TypeError(f"rotary must be True, a dict of qkv.Rotary's options or a qkv.Rotary: got {type(rotary).__name__}")
