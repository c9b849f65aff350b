"""xformers.ops.fmha.attn_bias: which keys a query may attend, by a class, its window and where sequences begin and end.

A window is (left, right), -1 unbounded, of a diagonal that ends at the last query and key (bottom right) or begins at the first ones
(top left). Every class is a row of _ROWS; what they do is written once. All lies on the CPU: `device` and `to` change nothing.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partialmethod
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(eq=False)
class _SeqLenInfo:
    """Where packed sequences begin and the last ends; padded and gappy ones have lengths beside (in pages of gappy ones: ends)."""

    seqstart: Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]
    seqlen: Any = None
    seqlen_py: Any = None
    padding: Any = None

    @classmethod
    def _made(cls, starts: Sequence[int], lengths: Sequence[int], used: Any = None, padding: Any = None) -> Any:
        tensors = [None if x is None else torch.tensor(x, dtype=torch.int32) for x in (starts, used)]
        return cls(tensors[0], max(lengths, default=-1), min(lengths, default=-1), list(starts), tensors[1], used, padding)

    @classmethod
    def from_seqlens(cls, seqlens: Iterable[int], *, device: Any = None) -> Any:
        """Sequences of these lengths, one behind the other."""
        lengths = list(seqlens)
        return cls._made([0, *itertools.accumulate(lengths)], lengths)

    @classmethod
    def from_seqlens_padded(cls, seqlens: Sequence[int], padding: int, *, device: Any = None) -> Any:
        """Sequences of these lengths in rows of `padding`."""
        if max(seqlens, default=0) > padding:
            raise AssertionError(f"[xformers of qkv.standins] sequences must fit rows of {padding}: got {list(seqlens)}")
        return cls._made([n * padding for n in range(len(seqlens) + 1)], seqlens, list(seqlens), padding)

    @classmethod
    def from_seqlens_gappy(cls, seqstarts: Sequence[int], seqlens: Sequence[int], paged: bool, *, device: Any = None) -> Any:
        """Sequences that begin anywhere, in pages within their row of the table; otherwise the last number is where all end."""
        if not seqlens or len(seqstarts) - len(seqlens) != (not paged):
            raise ValueError(f"[xformers of qkv.standins] kv_seqstarts and kv_seqlen do not fit: got {list(seqstarts)}, {list(seqlens)}")
        used = [begin + n if paged else n for begin, n in zip(seqstarts, seqlens)]
        return cls._made([*seqstarts, -1] if paged else seqstarts, seqlens, used)

    def to(self, device: Any) -> Any:
        """Itself."""
        return self

    def intervals(self) -> Iterator[tuple[int, int]]:
        """(begin, end) of each sequence."""
        ends = self.seqstart_py[1:] if self.seqlen_py is None else map(sum, zip(self.seqstart_py, self.seqlen_py))
        yield from zip(self.seqstart_py, ends)

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None = None) -> list[Tensor]:
        """x [1, total, ...] -> a tensor [batch size, length, ...] for every batch of sequences of one length."""
        starts = self.seqstart_py
        if x.shape[0] != 1 or x.shape[1] != starts[-1]:
            raise ValueError(f"[xformers of qkv.standins] a pack [1, {starts[-1]}, ...] is split: got {list(x.shape)}")
        sizes = batch_sizes or [1] * (len(starts) - 1)
        ends = [starts[n] for n in itertools.accumulate(sizes)]
        return [x[0, a:b].reshape(n, -1, *x.shape[2:]) for a, b, n in zip([0, *ends], ends, sizes)]


class AttentionBias:
    """What is added to scores: 0 where a query may attend, -inf elsewhere."""

    _fields: tuple[str, ...] = ()  #: What the constructor is given, "?": or not.
    _causal, _corner, _bias, _window_size, window_left, window_right = False, "bottom_right", None, None, -1, -1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        names = [x.strip("_?") for x in self._fields]
        given = dict(zip(names, arguments)) | {x.strip("_"): y for x, y in options.items()}
        if len(given) != len(arguments) + len(options) or not given.keys() <= set(names):
            raise TypeError(f"{type(self).__name__}() takes {', '.join(names) or 'no arguments'}: got {len(arguments)} and {', '.join(options)}")
        for field in self._fields:
            if field.strip("_?") not in given and "?" not in field:
                raise TypeError(f"{type(self).__name__}() needs {', '.join(self._fields)}")
            setattr(self, field.rstrip("?"), given.get(field.strip("_?")))
        wanted = "window_left" in self._fields or self._window_size is not None
        if wanted and min(self.window) < 0:
            raise ValueError(f"[xformers of qkv.standins] {type(self).__name__}: a window must be positive: got {self.window}")
        if isinstance(self, BlockDiagonalMask) and self._causal and self._corner == "bottom_right":
            numbers = [info.seqstart.diff() for info in (self.q_seqinfo, self.k_seqinfo)]
            if bool((numbers[0] > numbers[1]).any()):
                raise ValueError(f"[xformers of qkv.standins] num_keys >= num_queries is needed: got {numbers[1]} keys for {numbers[0]}")

    @property
    def window(self) -> tuple[int, int]:
        """(left, right)."""
        if self._window_size is not None:
            return self._window_size - 1, 0
        return self.window_left, 0 if self._causal else self.window_right

    def to(self, device: Any) -> Any:
        """Itself."""
        return self

    def keys(self) -> list[Tensor] | None:
        """Where each sequence's keys lie; None where there is one sequence."""
        info, table = getattr(self, "k_seqinfo", None), getattr(self, "block_tables", None)
        if info is None or table is None:
            return None if info is None else [torch.arange(*ends) for ends in info.intervals()]
        begins = [0] * len(table) if info.padding else info.seqstart_py
        logical = [torch.arange(begin, end) for begin, end in zip(begins, info.seqlen_py)]
        return [row.long()[at // self.page_size] * self.page_size + at % self.page_size for row, at in zip(table, logical)]

    def materialize(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensor:
        """The bias as a tensor [..., queries, keys]; of paged keys [..., queries, page_size times pages in use]."""
        queries, columns = shape[-2:]
        rows, places = [(0, queries)], self.keys()
        if places is not None:
            rows, paged = self.rows(queries, columns), hasattr(self, "block_tables")
            columns = (int(self.block_tables.max()) + 1) * self.page_size if paged else columns
        out = torch.full((queries, columns), -torch.inf, dtype=dtype)
        left, right = self.window
        for (begin, end), at in zip(rows, [torch.arange(columns)] if places is None else places):
            shift = len(at) - (end - begin) if self._corner == "bottom_right" else 0
            apart = torch.arange(len(at)) - torch.arange(end - begin)[:, None] - shift
            inside = ((apart <= right) | (right < 0)) & ((apart >= -left) | (left < 0))
            out[begin:end, at] = torch.where(inside, 0.0, -torch.inf).to(dtype)
        out = out.expand(*shape[:-2], *out.shape)
        return out if self._bias is None else out + self._bias

    def _as(self, name: str, *more: Any, **options: Any) -> Any:
        return CLASSES[name](*(getattr(self, x.rstrip("?")) for x in self._fields), *more, **options)


class _Packs(AttentionBias):
    @classmethod
    def from_seqlens(cls, *arguments: Any, device: Any = None, causal_diagonal: Any = None, **options: Any) -> Any:
        """From q_seqlen, the lengths of queries, and those of keys: kv_seqlen, or kv_padding, kv_seqlen, or kv_seqstarts, kv_seqlen;
        then block_tables, page_size, and the window."""
        gappy, own = "Gappy" in cls.__name__, [x for x in cls._fields[2:] if x != "_batch_sizes?"]
        head = ["kv_seqstarts"] if gappy else ["kv_padding"] if "Padded" in cls.__name__ and "block_tables" not in own else []
        order = ["q_seqlen", *head, "kv_seqlen", *(x.strip("_?") for x in own)]
        a = dict(zip(order, arguments)) | options
        if len(a) != len(arguments) + len(options):
            raise TypeError(f"{cls.__name__}.from_seqlens() takes {', '.join(order)}, each once: got {len(arguments)} and {', '.join(options)}")
        queries, lengths, table = _SeqLenInfo.from_seqlens(a.pop("q_seqlen")), a.pop("kv_seqlen", None), a.get("block_tables")
        if gappy:
            keys = _SeqLenInfo.from_seqlens_gappy(a.pop("kv_seqstarts"), lengths, table is not None)
        elif table is not None or head:
            keys = _SeqLenInfo.from_seqlens_padded(lengths, a.pop("kv_padding") if head else table.shape[1] * a["page_size"])
        else:
            keys = queries if lengths is None or list(lengths) == queries.seqstart.diff().tolist() else _SeqLenInfo.from_seqlens(lengths)
        return cls(queries, keys, **a)

    from_seqlens_local = from_seqlens_local_gappy = from_seqlens

    def rows(self, queries: int, keys: int) -> list[tuple[int, int]]:
        """(begin, end) of each sequence's queries, of so many tokens in all."""
        ends = self.q_seqinfo.seqstart_py[-1], self.k_seqinfo.seqstart_py[-1]
        if queries != ends[0] or (keys != ends[1] and not hasattr(self, "block_tables")):
            raise ValueError(f"[xformers of qkv.standins] {type(self).__name__} is of {ends} queries and keys: got {queries}, {keys}")
        return list(self.q_seqinfo.intervals())

    def make_paged(self, block_tables: Tensor, page_size: int, *rest: Any, notional_padding: Any = None, paged_type: Any = None) -> Any:
        """The same keys in pages; of gappy ones row n of the table begins at n notional_padding."""
        notional_padding, paged_type = notional_padding or (rest[0] if rest else None), paged_type or rest[-1]
        info, window = self.k_seqinfo, () if self._window_size is None else (self._window_size,)
        if info.padding:
            info = dataclasses.replace(info, padding=block_tables.shape[1] * page_size)
        else:
            if notional_padding % page_size:
                got = f"{notional_padding}, {page_size}"
                raise ValueError(f"[xformers of qkv.standins] Notional padding should be divisible by the page size: got {got}")
            starts = [begin - n * notional_padding for n, begin in enumerate(info.seqstart_py[:-1])]
            info = _SeqLenInfo.from_seqlens_gappy(starts, info.seqlen_py, True)
        return paged_type(self.q_seqinfo, info, block_tables, page_size, *window)


class BlockDiagonalMask(_Packs):
    """Packed sequences, each alone."""

    _fields = ("q_seqinfo", "k_seqinfo", "_batch_sizes?")

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[Any, Tensor]:
        """From tensors [B, T, ...]: the bias, and the tensors as one pack [1, total, ...]."""
        return cls.from_tensor_lists_qkv(tensors, tensors)[:2]

    @classmethod
    def from_tensor_lists_qkv(cls, tensors_q: Sequence[Tensor], tensors_k: Sequence[Tensor], tensors_v: Any = None) -> Any:
        """The same of queries, keys and values: the bias and their packs."""
        lists = (tensors_q, tensors_k, tensors_v)
        made = cls.from_seqlens(*([x.shape[1] for x in some for _ in range(x.shape[0])] for some in lists[:2]))
        made._batch_sizes = [x.shape[0] for x in tensors_q]
        return made, *(None if some is None else torch.cat([x.flatten(0, 1) for x in some])[None] for some in lists)

    def split_queries(self, tensor: Tensor) -> list[Tensor]:
        """A pack of queries -> tensors as from_tensor_list was given them."""
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: Tensor) -> list[Tensor]:
        """The same of keys."""
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    split = split_queries

    make_causal = partialmethod(AttentionBias._as, "BlockDiagonalCausalMask")
    make_causal_from_bottomright = partialmethod(AttentionBias._as, "BlockDiagonalCausalFromBottomRightMask")
    make_local_attention = partialmethod(AttentionBias._as, "BlockDiagonalCausalLocalAttentionMask")
    make_local_attention_from_bottomright = partialmethod(AttentionBias._as, "BlockDiagonalCausalLocalAttentionFromBottomRightMask")


#: Class; bases; fields that it adds; whether it is causal, and top left.
_ROWS = """
LowerTriangularMask; AttentionBias; device?; causal top_left
LowerTriangularMaskWithTensorBias; LowerTriangularMask; !_bias; causal top_left
LowerTriangularFromBottomRightMask; AttentionBias; ; causal
LowerTriangularFromBottomRightLocalAttentionMask; LowerTriangularFromBottomRightMask; _window_size; causal
LocalAttentionFromBottomRightMask; AttentionBias; window_left window_right;
BlockDiagonalCausalMask; BlockDiagonalMask; ; causal top_left
BlockDiagonalCausalFromBottomRightMask; BlockDiagonalMask; ; causal
BlockDiagonalCausalLocalAttentionMask; BlockDiagonalCausalMask; _window_size; causal top_left
BlockDiagonalCausalLocalAttentionFromBottomRightMask; BlockDiagonalCausalFromBottomRightMask; _window_size; causal
BlockDiagonalPaddedKeysMask; _Packs; q_seqinfo k_seqinfo;
BlockDiagonalCausalWithOffsetPaddedKeysMask; BlockDiagonalPaddedKeysMask; ; causal
BlockDiagonalLocalAttentionPaddedKeysMask; BlockDiagonalPaddedKeysMask; window_left window_right;
BlockDiagonalCausalLocalAttentionPaddedKeysMask; BlockDiagonalPaddedKeysMask; _window_size; causal
PagedBlockDiagonalPaddedKeysMask; _Packs; q_seqinfo k_seqinfo block_tables page_size;
PagedBlockDiagonalCausalWithOffsetPaddedKeysMask; PagedBlockDiagonalPaddedKeysMask; ; causal
PagedBlockDiagonalCausalLocalPaddedKeysMask; PagedBlockDiagonalPaddedKeysMask; _window_size; causal
BlockDiagonalGappyKeysMask; _Packs; q_seqinfo k_seqinfo;
BlockDiagonalCausalWithOffsetGappyKeysMask; BlockDiagonalGappyKeysMask; ; causal
BlockDiagonalLocalAttentionFromBottomRightGappyKeysMask; BlockDiagonalGappyKeysMask; window_left window_right;
PagedBlockDiagonalGappyKeysMask; _Packs; q_seqinfo k_seqinfo block_tables page_size;
PagedBlockDiagonalCausalWithOffsetGappyKeysMask; PagedBlockDiagonalGappyKeysMask; ; causal
"""
#: What the module attn_bias holds.
CLASSES: dict[str, Any] = {
    **{x.__name__: x for x in (AttentionBias, _Packs, BlockDiagonalMask, _SeqLenInfo)},
    **dict.fromkeys(("_PaddedSeqLenInfo", "_GappySeqInfo"), _SeqLenInfo),
}
for _row in _ROWS.strip().splitlines():
    _name, _base, _more, _rules = (x.strip() for x in _row.split(";"))
    CLASSES[_name] = type(_name, (CLASSES[_base],), {
        "__doc__": f"{_name} of xformers.ops.fmha.attn_bias.", "__module__": __name__, "_causal": "causal" in _rules,
        "_corner": "top_left" if "top_left" in _rules else "bottom_right",
        "_fields": (_more[1:],) if _more[:1] == "!" else CLASSES[_base]._fields + tuple(_more.split()),
    })  # fmt: skip
CLASSES["LowerTriangularMask"].add_bias = lambda self, bias: CLASSES["LowerTriangularMaskWithTensorBias"](bias)
for _name, _made in (
    ("BlockDiagonalPaddedKeysMask", "BlockDiagonalLocalAttentionPaddedKeysMask"),
    ("LowerTriangularFromBottomRightMask", "LowerTriangularFromBottomRightLocalAttentionMask"),
):
    CLASSES[_name].make_local_attention = partialmethod(AttentionBias._as, _made)
globals().update(CLASSES)  # where pickle looks
VARLEN_BIASES = (_Packs,)
