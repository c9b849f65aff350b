"""transformers' mask functions as qkv masks: causal, sliding, chunked, packed and padded ones cost no S x S memory. Not: masks
that a model or user writes as a function of its own; those are evaluated once per forward, into one byte per pair.

transformers describes a mask by functions (batch, head, query, key) -> bool that it composes itself
(transformers/masking_utils.py); the known ones are recognised by their names and what they close over. An unknown part makes
the whole mask a dense one, never wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import masking_utils

from .._core import UnsupportedError
from ..masks import Mask

GRAPHS = (
    '[qkv.transformers] attn_implementation="qkv" is not traced (torch.export, torch.compile(fullgraph=True), torch.func): load the '
    'model with attn_implementation="sdpa" and call it under qkv.torch.enable(), whose attention is an operator of the graph'
)


def outside_of_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which torch.compile calls as it is; NotImplementedError where that cannot be."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting() or torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotImplementedError(GRAPHS)
        return function(*args, **kwargs)

    disabled = torch.compiler.disable(called, reason=GRAPHS)  # 20 us a call

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return disabled(*args, **kwargs) if torch.compiler.is_compiling() else called(*args, **kwargs)

    return chosen


@dataclass(frozen=True)
class ModelMask:
    """The mask function's result for every layer's attention instead of a tensor [B, 1, Tq, Tk]."""

    mask: Mask
    batch: int
    q_len: int
    kv_len: int
    dense: bool  #: holds B x Tq x Tk bytes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor that it stands for."""
        return (self.batch, 1, self.q_len, self.kv_len)

    @property
    def ndim(self) -> int:
        """The number of axes of the tensor that it stands for; generate() asks for it."""
        return 4

    def contiguous(self) -> ModelMask:
        """Itself; generate() calls this."""
        return self

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """A model that computes with its mask as with a tensor."""
        raise UnsupportedError(
            "[qkv.transformers] this model computes attention by itself and does not ask transformers' AttentionInterface: "
            'attn_implementation="qkv" cannot replace it; load it with attn_implementation="eager"'
        )

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Itself as a mask of bools, which MPT's layers get; no tensor of another type."""
        return self if dtype is torch.bool else self._refuse()

    __add__ = __radd__ = __mul__ = __rmul__ = __invert__ = _refuse

    def covers(self, q_len: int, kv_len: int) -> bool:
        """Whether it is the mask of exactly these numbers of queries and keys. UnsupportedError where it says nothing of some of them."""
        if q_len != self.q_len or kv_len > self.kv_len:
            raise UnsupportedError(
                f"[qkv.transformers] this model's layer attends {kv_len} keys with {q_len} queries, its mask has {self.kv_len} keys and "
                f'{self.q_len} queries: attn_implementation="qkv" does not know which it may attend; load it with attn_implementation="eager"'
            )
        return kv_len == self.kv_len

    @property
    def dtype(self) -> Any:
        """Of no numbers: Doge asks before it computes a mask of its own."""
        raise UnsupportedError(
            '[qkv.transformers] this model computes a mask of its own from a tensor: attn_implementation="qkv" gives it none; load it with '
            'attn_implementation="eager"'
        )

    def __getitem__(self, key: Any) -> Any:
        """The dense mask without its axis of heads, which the indexers of sparse attention ask for; with all axes a mask again, so that
        nobody adds ones and zeros to scores. Nothing else."""
        if not isinstance(key, tuple) or not all(isinstance(part, (int, slice, type(...))) for part in key):
            return self._refuse()
        if len(key) > 1 and isinstance(key[1], int):
            return self.to_dense()[key]
        cut = self.to_dense()[key]
        if cut.ndim != 4 or cut.shape[1] != 1:
            return self._refuse()
        return ModelMask(Mask.keep(cut.numpy()), cut.shape[0], cut.shape[2], cut.shape[3], True)

    def to_dense(self) -> torch.Tensor:
        """The tensor that it stands for: bool [B, 1, Tq, Tk], True = may attend."""
        return torch.from_numpy(self.mask.to_dense(self.q_len, self.kv_len, batch=self.batch).copy())


@dataclass(frozen=True)
class _Call:
    """Sizes of a call, and where its first query and first key stand."""

    batch: int
    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int

    def aligned(self, make: Callable[..., Mask]) -> Mask:
        """make(align) or make(offsets=...) so that query i stands at key i + q_offset - kv_offset."""
        offset = self.q_offset - self.kv_offset
        if offset == self.kv_len - self.q_len:
            return make("square" if offset == 0 else "bottom_right")
        return make("top_left") if offset == 0 else make(offsets=[offset] * self.batch)

    def ids(self, ids: torch.Tensor) -> Mask:
        """Queries and keys of one number, from numbers of all positions [B, length]."""
        all_ids = ids.expand(self.batch, -1).cpu().numpy().astype(np.int64)
        queries = all_ids[:, self.q_offset : self.q_offset + self.q_len]
        return Mask.document_ids(queries, all_ids[:, self.kv_offset : self.kv_offset + self.kv_len])


def _closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def _translated(function: Callable[..., Any], call: _Call, distances_only: bool = False) -> Mask | None:
    """The same as a Mask; None where `function` is none of transformers' own. distances_only: refuse what counts from position
    0."""
    if getattr(function, "__module__", None) != masking_utils.__name__ or not hasattr(function, "__code__"):
        return None
    held = _closed_over(function)
    match function.__qualname__.split(".")[0]:
        case "causal_mask_function":
            return call.aligned(Mask.causal)
        case "bidirectional_mask_function":
            return Mask()
        case "and_masks" | "or_masks" as joined:
            parts = [_translated(part, call, distances_only) for part in held["mask_functions"]]
            if any(part is None for part in parts):
                return None
            return functools.reduce(Mask.__and__ if joined == "and_masks" else Mask.__or__, parts)  # type: ignore[arg-type]
        case "sliding_window_overlay":
            return call.aligned(functools.partial(Mask.window, held["sliding_window"] - 1, -1))
        case "sliding_window_bidirectional_overlay":
            return call.aligned(functools.partial(Mask.window, held["sliding_window"], held["sliding_window"]))
        case "chunked_overlay" if not distances_only and call.kv_offset == 0 and not bool(held["left_padding"].any()):
            if call.q_offset == call.kv_len - call.q_len:
                return Mask.chunked(held["chunk_size"], "bottom_right")
            return Mask.chunked(held["chunk_size"], "top_left") if call.q_offset == 0 else None
        case "blockwise_overlay":
            return call.ids(held["block_sequence_ids"])
        case "packed_sequence_mask_function":
            return call.ids(held["packed_sequence_mask"])
        case "remap_positions_for_packed_sequence":
            # Stands beside the mask of packed sequences, and within one of those positions differ as indices do.
            return _translated(held["mask_function"], call, distances_only=True)
        case _:
            return None


def _padding(attention_mask: torch.Tensor | None, call: _Call) -> Mask | None:
    """The mask of a 2-D attention mask [B, positions], True = a token; None where it hides nothing."""
    if attention_mask is None:
        return None
    kept = attention_mask[:, call.kv_offset : call.kv_offset + call.kv_len].to(torch.bool).cpu().numpy()
    if kept.shape[1] < call.kv_len:  # keys that a static cache has room for but does not hold
        kept = np.pad(kept, ((0, 0), (0, call.kv_len - kept.shape[1])))
    if kept.all():
        return None
    counts = kept.sum(1)
    keys = np.arange(call.kv_len)
    if (kept == (keys < counts[:, None])).all():
        # Lengths would mean that the diagonal ends at them; here queries stand where the cache says.
        return Mask.key_lengths(counts) if call.q_len == call.kv_len else Mask.prefix(counts)
    if (kept == (keys >= call.kv_len - counts[:, None])).all():
        return Mask.key_starts(call.kv_len - counts)
    return Mask.keep(kept, "bk")


@outside_of_graphs
def model_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | ModelMask | None = None,
    **options: Any,
) -> ModelMask:
    """transformers' AttentionMaskInterface: what transformers.masking_utils.sdpa_mask is for "sdpa".

    attention_mask [B, positions], True = a token that may be attended; a ModelMask, which generate() makes before it calls the
    model, stays. options: use_vmap, as there.
    """
    if isinstance(attention_mask, ModelMask):
        return attention_mask
    call = _Call(batch_size, q_length, kv_length, int(q_offset), int(kv_offset))
    mask = _translated(mask_function, call)
    if mask is None:
        written = masking_utils.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=call.q_offset, kv_offset=call.kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False, use_vmap=options.get("use_vmap", False), device="cpu",
        )  # fmt: skip
        return ModelMask(Mask.keep(written.numpy()), batch_size, q_length, kv_length, True)
    padding = _padding(attention_mask, call)
    return ModelMask(mask if padding is None else mask & padding, batch_size, q_length, kv_length, False)
