"""Masks, which say which query may attend which key: an immutable value in a small algebra, ``&`` (both keep) and ``|`` (any keeps).

Leaves are the class methods of :class:`Mask`. Select, never add: NaN behind a mask is invisible. B sequences, H query heads, Tq
queries, Tk keys; ``align`` says where the diagonal lies when Tq != Tk: ``"square"`` (legal only when Tq == Tk), ``"top_left"``
(query 0 sees key 0) or ``"bottom_right"`` (the last query sees the last key).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _core, _html
from ._arrays import boolean, integers, whole_numbers
from ._core import BlockMap
from ._recipes import recorded, reduced

__all__ = ["BlockMap", "Mask"]


def _core_of(mask: Any, sign: str) -> Any:
    if not isinstance(mask, Mask):
        raise TypeError(
            f"[Mask] {sign} takes masks: got {type(mask).__name__}; Mask.keep(array) or Mask.drop(array) makes one of an array"
        )
    return mask._core


class Mask:
    """A mask; see the module's description. ``Mask()`` keeps everything."""

    __slots__ = ("_core", "_recipe")
    __array_ufunc__ = None  # NumPy leaves array & mask to the mask

    def __init__(self, core: Any = None) -> None:
        if core is not None and not isinstance(core, _core.Mask):
            raise TypeError(f"[Mask] Mask() takes nothing: got {type(core).__name__}; Mask.keep(array) or Mask.drop(array) makes one of an array")
        self._core = _core.everything() if core is None else core
        self._recipe: tuple[Any, ...] | None = ("_everything", (), {}) if core is None else None

    __reduce__ = reduced

    @classmethod
    def _everything(cls) -> Mask:
        return cls()

    # Leaves come in the order of docs/concepts/masks.md.

    @classmethod
    def causal(cls, align: str = "square", *, offsets: Sequence[int] | None = None) -> Mask:
        """keep(b, i, j) = j <= i + offset; offset 0, Tk - Tq (bottom right), or ``offsets[b]``."""
        return cls(_core.causal(align, None if offsets is None else integers(offsets, "[Mask.causal] offsets")))

    @classmethod
    def window(cls, left: int, right: int, align: str = "square", *, offsets: Sequence[int] | None = None) -> Mask:
        """keep(i, j) = c - left <= j <= c + right, c = i + offset. left and right count *other* tokens; -1 is unbounded."""
        return cls(_core.window(left, right, align, None if offsets is None else integers(offsets, "[Mask.window] offsets")))

    @classmethod
    def sliding(cls, n: int, align: str = "square") -> Mask:
        """n keys, the query's own last: ``window(n - 1, 0)``."""
        return cls(_core.sliding(n, align))

    @classmethod
    def dilated(cls, step: int, align: str = "square") -> Mask:
        """keep(i, j) = (j - i - offset) % step == 0."""
        return cls(_core.dilated(step, align))

    @classmethod
    def chunked(cls, size: int, align: str = "square", *, starts: Sequence[int] | None = None) -> Mask:
        """keep(i, j): i + offset and j lie in the same chunk of ``size`` keys, counted from key 0 or ``starts[b]``."""
        return cls(_core.chunked(size, align, None if starts is None else integers(starts, "[Mask.chunked] starts")))

    @classmethod
    def key_lengths(cls, lengths: Sequence[int]) -> Mask:
        """keep(b, j) = j < lengths[b]: padding at the right. lengths [B].

        With more than one query, "bottom_right" beside it is an OptionError: ``causal(offsets=...)`` says where each sequence ends.
        """
        return cls(_core.key_lengths(integers(lengths, "[Mask.key_lengths] lengths")))

    @classmethod
    def key_starts(cls, starts: Sequence[int]) -> Mask:
        """keep(b, j) = j >= starts[b]: padding at the left. starts [B]."""
        return cls(_core.key_starts(integers(starts, "[Mask.key_starts] starts")))

    @classmethod
    def query_lengths(cls, lengths: Sequence[int]) -> Mask:
        """keep(b, i) = i < lengths[b]; the rows of the other queries are empty. lengths [B]."""
        return cls(_core.query_lengths(integers(lengths, "[Mask.query_lengths] lengths")))

    @classmethod
    def prefix(cls, lengths: Sequence[int]) -> Mask:
        """keep(b, j) = j < lengths[b]: ``causal() | prefix(lengths)`` is the prefix language model. lengths [B]."""
        return cls(_core.prefix(integers(lengths, "[Mask.prefix] lengths")))

    @classmethod
    def first(cls, n: int) -> Mask:
        """keep(j) = j < n: with a window, ``window(...) | first(n)``, these are StreamingLLM's sinks."""
        return cls(_core.first(n))

    @classmethod
    def global_rows(cls, rows: Sequence[int]) -> Mask:
        """keep(i) = i is in ``rows``."""
        return cls(_core.global_rows(integers(rows, "[Mask.global_rows] rows")))

    @classmethod
    def global_columns(cls, columns: Sequence[int]) -> Mask:
        """keep(j) = j is in ``columns``."""
        return cls(_core.global_columns(integers(columns, "[Mask.global_columns] columns")))

    @classmethod
    def documents(cls, offsets: Sequence[int], k_offsets: Sequence[int] | None = None, *, inside: Mask | None = None) -> Mask:
        """Documents packed into one row of tokens: [offsets[d], offsets[d+1]) attends itself; ``inside`` holds in each."""
        first = integers(offsets, "[Mask.documents] offsets")
        second = first if k_offsets is None else integers(k_offsets, "[Mask.documents] k_offsets")
        return cls(_core.documents(first, second, cls()._core if inside is None else _core_of(inside, "inside=")))

    @classmethod
    def document_ids(cls, q_ids: Any, k_ids: Any = None) -> Mask:
        """keep(b, i, j) = q_ids[b, i] == k_ids[b, j], both >= 0. [T], the same for each sequence, or [B, T]."""
        q = np.ascontiguousarray(whole_numbers(q_ids, "[Mask.document_ids] q_ids", np.int64))
        k = q if k_ids is None else np.ascontiguousarray(whole_numbers(k_ids, "[Mask.document_ids] k_ids", np.int64))
        if q.ndim != k.ndim:
            raise _core.ShapeError(f"[Mask.document_ids] q_ids and k_ids must both be [T] or [B, T]: got {list(q.shape)} and {list(k.shape)}")
        if q.ndim == 1:
            return cls(_core.document_ids(q.tolist(), k.tolist()))
        return cls(_core.document_ids_batch(q, k))

    @classmethod
    def blocks(cls, block_map: BlockMap) -> Mask:
        """keep(b, h, i, j): the block of (i, j) is listed."""
        if not isinstance(block_map, BlockMap):
            raise TypeError(f"[Mask.blocks] block_map must be a qkv.BlockMap: got {type(block_map).__name__}")
        return cls(_core.blocks(block_map))

    @classmethod
    def keys(cls, index: Any) -> Mask:
        """keep(b, h, i, j): index[b, h, i, :] lists j. index [B|1, H|Hkv|1, Tq, k], whole numbers in any order, each once in a row,
        -1 for none; copied. Few keys cost what is listed (docs/concepts/masks.md says when). ``qkv.top_keys`` makes such lists.

        OptionError: a key twice in a row, below -1, or, at the call, not below Tk.
        """
        return cls(_core.keys(whole_numbers(index, "[Mask.keys] index")))

    @classmethod
    def keep(cls, array: Any, axes: str | None = None) -> Mask:
        """Non-zero = may attend. [B|1, H|1, Tq|1, Tk|1], or fewer axes that are named: "bk", "qk", "bqk", "hqk"."""
        return cls(_core.keep(boolean(array, "keep"), axes, False))

    @classmethod
    def drop(cls, array: Any, axes: str | None = None) -> Mask:
        """Non-zero = may not attend (PyTorch's key_padding_mask). Axes as in :meth:`keep`."""
        return cls(_core.drop(boolean(array, "drop"), axes, False))

    @classmethod
    def of(cls, keep: Callable[..., Any], q_len: int, kv_len: int, *, batch: int = 1, num_heads: int = 1) -> Mask:
        """keep(b, h, i, j) is called once, with NumPy arrays of indices that broadcast to [batch, num_heads, q_len, kv_len]."""
        b, h, i, j = np.ogrid[:batch, :num_heads, :q_len, :kv_len]
        if (kept := keep(b, h, i, j)) is None:
            raise TypeError("[Mask.of] keep must return which pairs may attend: got None")
        return cls.keep(np.broadcast_to(np.asarray(boolean(kept, "[Mask.of] keep")), (batch, num_heads, q_len, kv_len)))

    def __and__(self, other: Mask) -> Mask:
        return self._joined(Mask(self._core & _core_of(other, "&")), "_both", other)

    def __or__(self, other: Mask) -> Mask:
        return self._joined(Mask(self._core | _core_of(other, "|")), "_any", other)

    def _joined(self, made: Mask, name: str, other: Mask) -> Mask:
        made._recipe = None if self._recipe is None or other._recipe is None else (name, (self, other), {})
        return made

    @classmethod
    def _both(cls, a: Mask, b: Mask) -> Mask:
        return a & b

    @classmethod
    def _any(cls, a: Mask, b: Mask) -> Mask:
        return a | b

    __rand__, __ror__ = __and__, __or__

    def to_dense(self, q_len: int, kv_len: int, *, batch: int = 1, num_heads: int = 1) -> np.ndarray:
        """The mask written out: bool [batch, num_heads, q_len, kv_len]."""
        written = self._core.to_bytes(batch, num_heads, q_len, kv_len)
        return np.frombuffer(written, dtype=bool).reshape(batch, num_heads, q_len, kv_len)

    def draw(self, q_len: int, kv_len: int, *, batch: int = 1, num_heads: int = 1) -> str:
        """Rows of 0s and 1s, one block per sequence and head."""
        planes = []
        dense = self.to_dense(q_len, kv_len, batch=batch, num_heads=num_heads)
        for b in range(batch):
            for h in range(num_heads):
                rows = "\n".join(" ".join("1" if kept else "0" for kept in row) for row in dense[b, h])
                planes.append(rows if batch * num_heads == 1 else f"sequence {b}, head {h}\n{rows}")
        return "\n\n".join(planes)

    def _drawing(self) -> np.ndarray | None:
        """bool [6, 6]; None: it is of other sizes."""
        try:
            return self.to_dense(6, 6)[0, 0]
        except ValueError:
            return None

    def __repr__(self) -> str:
        text = self._core.describe()
        return text if self._drawing() is None else f"{text}\n{self.draw(6, 6)}"

    def _repr_html_(self) -> str:
        dense = self._drawing()
        return f"<code>{_html.text(self._core.describe())}</code>" + ("" if dense is None else f"<div>{_html.grid(dense)}</div>")


# Each leaf remembers how it was made.
for _name, _made in list(vars(Mask).items()):
    if isinstance(_made, classmethod) and not _name.startswith("_") and _name != "of":
        setattr(Mask, _name, classmethod(recorded(_made.__func__)))
