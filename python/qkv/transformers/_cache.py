"""transformers' DynamicCache without a copy of all keys and values at every token. Not: sliding layers, which hold few, and static
caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = ["growing_cache"]


def growing_cache(config: Any) -> DynamicCache:
    """A DynamicCache for a model of this config, whose layers write new tokens behind those they hold, in memory that grows by half
    when it is full: ``model.generate(ids, past_key_values=growing_cache(model.config))``.

    transformers' own makes a new tensor of all tokens at each. c and r of latent attention become columns of one tensor, which the
    absorbed form reads in place. Layers of another kind than DynamicLayer (sliding, linear, indexed) stay as they are. In grad
    mode a layer does what transformers' does: generate() runs without.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class GrowingLayer(DynamicLayer):
    """keys, values [B, H, T, D|Dv]: the first T rows of memory for more."""

    memory: tuple[Tensor, Tensor] | None = None
    lost = 0  # how often in turn what was held lay elsewhere: beams are reordered at every token, and grow as transformers' do

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():  # a node of autograd may have saved what was returned before
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.memory, self.lost = None, 0
        held = self.get_seq_length()
        for x, old in ((key_states, self.keys), (value_states, self.values)):
            if held and (x.dtype != old.dtype or x.shape[:2] != old.shape[:2] or x.shape[3:] != old.shape[3:]):
                return super().update(key_states, value_states, *args, **kwargs)  # which promotes types and refuses shapes
        total = held + key_states.shape[2]
        new = (key_states, value_states)
        if self.has_room(total):
            self.lost = 0
        else:
            old = (self.keys, self.values)
            self.lost += self.memory is not None and self.memory[0].data_ptr() != self.keys.data_ptr()
            if self.lost > 1:
                return super().update(key_states, value_states, *args, **kwargs)
            self.memory = _new_memory(*new, max(total, held + held // 2, 64))
            if held:
                for to, x in zip(self.memory, old):
                    to[:, :, :held] = x
        assert self.memory is not None
        for to, x in zip(self.memory, new):
            to[:, :, held:total] = x
        self.keys, self.values = (to[:, :, :total] for to in self.memory)
        return self.keys, self.values

    def crop(self, *args: Any, **kwargs: Any) -> None:
        super().crop(*args, **kwargs)
        self.memory = None  # what was returned before keeps its rows

    def __copy__(self) -> GrowingLayer:
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, memory=None)  # two caches write no common rows
        return fork

    def has_room(self, total: int) -> bool:
        """Whether what is held lies in memory that has room for `total` tokens: of a reordered batch it does not."""
        return self.memory is not None and all(
            to.shape[:2] == old.shape[:2]
            and to.shape[2] >= total
            and to.data_ptr() == old.data_ptr()
            and (not to.is_inference() or torch.is_inference_mode_enabled())
            for to, old in zip(self.memory, (self.keys, self.values))
        )


def _new_memory(keys: Tensor, values: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Memory for `rows` tokens; one head whose keys and values differ in width (c and r) lies side by side."""
    batch, heads, _, width = keys.shape
    value_width = values.shape[3]
    if heads == 1 and width != value_width:
        return keys.new_empty(batch, 1, rows, width + value_width).split((width, value_width), 3)  # type: ignore[return-value]
    return keys.new_empty(batch, heads, rows, width), values.new_empty(batch, heads, rows, value_width)
