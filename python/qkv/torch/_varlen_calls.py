"""Packed sequences on PyTorch tensors, on the kernels of qkv.attention_varlen: memory in, memory out, and their derivative graph
(_graph.py).

q, out [total_q, H, D|Dv], k, v [total_k, Hkv, D|Dv] (pages: [pages, page_size, Hkv, D|Dv]), lse [H, total_q] of _calls.sum_dtype.
Each function is passed PACKED tensors and then Rules. Tokens behind the last sequence: out 0, lse -inf, gradients 0.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from . import _calls
from ._calls import ArgumentError, inner_contiguous, offsets_of
from ._graph import Step

#: The tensors of a call: q, k, v, sinks [H], cu_seq_q, cu_seq_k, seqused_k, block_table, slopes [H] or [N, H], seed int64 [1].
PACKED = 10


class Rules(NamedTuple):
    """Arguments after the tensors. left, right: the window within each sequence, whose last query stands at its last key."""

    max_q: int
    max_k: int
    left: int = -1
    right: int = -1
    scale: float | None = None
    softcap: float = 0.0
    dropout: float = 0.0


def _lengths(offsets: list[int]) -> list[int]:
    return [b - a for a, b in zip(offsets, offsets[1:])]


def _longest(offsets: list[int], most: int, name: str) -> None:
    length = max(_lengths(offsets), default=0)
    if length > most:
        raise ArgumentError(f"[varlen_attn] {name} must be the longest sequence's length or more: got {most} for {length}")


class _Call:
    """One call on memory: its tensors and offsets, and runs of sequences."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, cu_q: Tensor, cu_k: Tensor, seqused: Tensor | None, _: None,
        slopes: Tensor | None, seed: Tensor | None, *rules: Any,
    ) -> None:  # fmt: skip
        r = Rules(*rules)
        self.q_offsets = offsets_of("varlen_attn", "cu_seq_q", cu_q, q.shape[0])
        self.k_offsets = offsets_of("varlen_attn", "cu_seq_k", cu_k, k.shape[0])
        _longest(self.q_offsets, r.max_q, "max_q")
        _longest(self.k_offsets, r.max_k, "max_k")
        self.q, self.k, self.v = (inner_contiguous(x) for x in (q[: self.q_offsets[-1]], k[: self.k_offsets[-1]], v[: self.k_offsets[-1]]))
        self.extras = (sinks, slopes, seed)
        self.rules, self.used = r, None if seqused is None else seqused.tolist()
        if self.used is not None:
            lengths = _lengths(self.k_offsets)
            if any(not 0 <= n <= length for n, length in zip(self.used, lengths)):
                raise ArgumentError(f"[varlen_attn] seqused_k must be from 0 to the sequences' lengths {lengths}: got {self.used}")

    def runs(self) -> Iterator[tuple[slice, slice, list[int], list[int], Any]]:
        """(rows of queries, rows of keys, offsets of queries, of keys, options) of sequences that one call of the kernels computes: all
        of them, or one where each has slopes of its own."""
        count = len(self.q_offsets) - 1
        step = 1 if _per_sequence(self.extras[1]) else max(count, 1)
        for first in range(0, max(count, 1), step):
            q, k = (offsets[first : first + step + 1] for offsets in (self.q_offsets, self.k_offsets))
            used = None if self.used is None else self.used[first : first + step]
            options = _options(self.rules, *self.extras, first, used, _lengths(q))
            yield slice(q[0], q[-1]), slice(k[0], k[-1]), [n - q[0] for n in q], [n - k[0] for n in k], options


def _per_sequence(slopes: Tensor | None) -> bool:
    return slopes is not None and slopes.dim() == 2


@functools.lru_cache(maxsize=256)
def _mask(left: int, right: int) -> Any:
    if (left, right) == (-1, -1):
        return None
    return _core.causal("bottom_right") if (left, right) == (-1, 0) else _core.window(left, right, "bottom_right")


@functools.lru_cache(maxsize=256)
def _plain(left: int, right: int, scale: float | None, softcap: float) -> Any:
    mask = _mask(left, right)
    return None if mask is None and scale is None and not softcap else _core.Options(mask=mask, scale=scale, softcap=softcap)


def _options(
    r: Rules, sinks: Tensor | None, slopes: Tensor | None, seed: Tensor | None, first: int = 0, used: list[int] | None = None,
    q_lengths: list[int] | None = None,
) -> Any:  # fmt: skip
    """_core.Options of sequences from number `first` on. used: how many keys of each are in use; the diagonal ends at the last."""
    if sinks is slopes is used is None and not r.dropout:
        return _plain(r.left, r.right, r.scale, r.softcap)
    mask = _mask(r.left, r.right)
    if used is not None:
        assert q_lengths is not None
        if slopes is not None and any(n != m for n, m in zip(used, q_lengths)):
            raise NotImplementedError("[varlen_attn] alibi_slopes beside seqused_k need as many queries as keys in use")
        window = None if mask is None else _core.window(r.left, r.right, "square", [n - m for n, m in zip(used, q_lengths)])
        mask = _core.key_lengths(used) if window is None else _core.key_lengths(used) & window
    bias = None
    if slopes is not None:
        bias = _core.alibi(slopes[first].tolist() if _per_sequence(slopes) else slopes.tolist(), "bottom_right")
    draw = {"dropout": r.dropout, "seed": int(seed) & (2**64 - 1), "first_sequence": first} if r.dropout and seed is not None else {}
    return _core.Options(mask=mask, scale=r.scale, softcap=r.softcap, sinks=sinks, position_bias=bias, **draw)


def new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for out, lse."""
    return q.new_empty((*q.shape[:2], v.shape[-1])), q.new_empty((q.shape[1], q.shape[0]), dtype=_calls.sum_dtype(q))


def _compute(call: _Call, out: Tensor, lse: Tensor) -> None:
    n = call.q_offsets[-1]
    if n < out.shape[0]:
        out[n:].zero_()
        lse[:, n:].fill_(-torch.inf)
    for rows, keys, *offsets, options in call.runs():
        _core.varlen_forward(options, *offsets, call.q[rows], call.k[keys], call.v[keys], out[rows], lse[:, rows].T)


def _compute_paged(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, cu_q: Tensor, _: Any, seqused: Tensor,
    table: Tensor, slopes: Tensor | None, seed: Tensor | None, *rules: Any,
) -> None:  # fmt: skip
    """On pages, read where they lie: one call for neighbours with the same number of queries."""
    r = Rules(*rules)
    q_offsets, used = offsets_of("varlen_attn", "cu_seq_q", cu_q, q.shape[0]), seqused.tolist()
    _longest(q_offsets, r.max_q, "max_q")
    _longest([0, max(used, default=0)], r.max_k, "max_k")
    out[q_offsets[-1] :].zero_()
    lse[:, q_offsets[-1] :].fill_(-torch.inf)
    rows_of_table = table.long().contiguous().numpy()
    pages = [x.transpose(1, 2) for x in (k, v)]  # [pages, Hkv, page_size, width]
    lengths, each, begin = _lengths(q_offsets), _per_sequence(slopes), 0
    for (length, _), run in itertools.groupby(range(len(lengths)), lambda n: (lengths[n], n if each else 0)):
        first, begin = begin, begin + len(list(run))
        if length == 0:
            continue
        rows = slice(q_offsets[first], q_offsets[begin])
        queries, results = (x[rows].unflatten(0, (-1, length)).transpose(1, 2) for x in (q, out))  # [B, H, length, width]
        numbers = lse[:, rows].unflatten(1, (-1, length)).transpose(0, 1)
        options = _options(r, sinks, slopes, seed, first)
        _core.paged_forward(options, used[first:begin], queries, *pages, rows_of_table[first:begin], results, numbers)


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """out, lse."""
    out, lse = new_results(arguments[0], arguments[2])
    if arguments[7] is None:
        _compute(_Call(*arguments), out, lse)
    else:
        _compute_paged(out, lse, *arguments)
    return out, lse


def backward(dout: Tensor, dlse: Tensor | None, *arguments: Any) -> tuple[Tensor | None, ...]:
    """dq, dk, dv, dsinks. arguments: PACKED tensors, out, lse, Rules."""
    tensors, (out, lse), rules = arguments[:PACKED], arguments[PACKED : PACKED + 2], arguments[PACKED + 2 :]
    call = _Call(*tensors, *rules)
    n, m = call.q_offsets[-1], call.k_offsets[-1]
    dq, dk, dv = made = tuple(x.new_empty(x.shape) for x in tensors[:3])
    for tail in (dq[n:], dk[m:], dv[m:]):
        tail.zero_()
    out, dout = inner_contiguous(out), inner_contiguous(dout)
    dsinks = None if tensors[3] is None else torch.zeros_like(tensors[3])
    for rows, keys, *offsets, options in call.runs():
        part = None if dsinks is None else torch.empty_like(dsinks)
        inputs = (call.q[rows], call.k[keys], call.v[keys], out[rows], lse[:, rows].T, dout[rows])
        results = (None if dlse is None else dlse[:, rows].T, dq[rows], dk[keys], dv[keys])
        _core.varlen_backward(options, *offsets, *inputs, *results, None, part, None)
        if dsinks is not None:
            dsinks += part
    return (*made, dsinks)


# The graph: packed -> packed_backward. PACKED tensors and Rules -> (out, lse).

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor cu_seq_q, Tensor? cu_seq_k, Tensor? seqused_k, Tensor? block_table, "
    "Tensor? slopes, Tensor? seed"
)
_RULES = "SymInt max_q, SymInt max_k, int left, int right, float? scale, float softcap, float dropout"
_ONCE = (
    "[varlen_attn] packed sequences are differentiated once, in reverse mode: got forward mode, or a gradient of a gradient; those "
    "are computed of one sequence, by qkv.torch.scaled_dot_product_attention"
)


def _packed_gradients(saved: Any, rest: Any, needs: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    if saved[7] is not None:
        raise NotImplementedError(
            "[varlen_attn] block_table is for inference, as in PyTorch: gradients are computed of packed keys [total_k, Hkv, D] only"
        )
    return packed_backward(torch.zeros_like(saved[PACKED]) if dout is None else dout, dlse, *saved, *rest)


packed = Step(
    forward, PACKED, _packed_gradients, _ONCE, save_results=True, fake=lambda q, k, v, *_: new_results(q, v),
    schema=f"varlen_attention({_TENSORS}, {_RULES}) -> (Tensor, Tensor)",
)  # fmt: skip
packed_backward = Step(
    backward, PACKED + 4, _ONCE, _ONCE,
    fake=lambda dout, dlse, q, k, v, sinks, *_: tuple(None if x is None else x.new_empty(x.shape) for x in (q, k, v, sinks)),
    schema=f"varlen_attention_backward(Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, {_RULES}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
