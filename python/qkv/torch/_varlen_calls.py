"""Packed sequences on PyTorch tensors, on the kernels of qkv.attention_varlen: memory in, memory out, and their derivative graph
(_graph.py). Not: checks of types and shapes (varlen.py).

q, out [total_q, H, D|Dv], k, v [total_k, Hkv, D|Dv] (pages: [pages, page_size, Hkv, D|Dv]), lse [H, total_q] of _calls.sum_dtype.
Each function is passed PACKED tensors and then Rules. Tokens behind the last sequence: out 0, lse -inf, gradients 0.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from . import _calls
from ._calls import ArgumentError, inner_contiguous
from ._graph import FORWARD_OVER_REVERSE, Step, operator

#: The tensors of a call: q, k, v, cu_seq_q, cu_seq_k, seqused_k, block_table, seed.
PACKED = 8


class Rules(NamedTuple):
    """What follows the tensors. left, right, bottom_right: the window within each sequence, and where its diagonal lies."""

    max_q: int
    max_k: int
    left: int = -1
    right: int = -1
    bottom_right: bool = True
    scale: float | None = None
    dropout_p: float = 0.0


def _offsets(cu: Tensor, name: str, total: int) -> list[int]:
    """The numbers of cu_seq_q or cu_seq_k."""
    numbers = cu.tolist()
    if not numbers or numbers[0] != 0 or any(a > b for a, b in zip(numbers, numbers[1:])) or numbers[-1] > total:
        shown = str(numbers if len(numbers) <= 8 else [*numbers[:4], "...", *numbers[-3:]]).replace("'", "")
        raise ArgumentError(
            f"[varlen_attn] {name} must start with 0, not decrease and end at no more than {total} tokens: got {shown}"
        )
    return numbers


def _longest(offsets: list[int], most: int, name: str) -> None:
    length = max((b - a for a, b in zip(offsets, offsets[1:])), default=0)
    if length > most:
        raise ArgumentError(f"[varlen_attn] {name} must be the longest sequence's length or more: got {most} for {length}")


def _check_pages(k: Tensor, block_table: Tensor, used: list[int], max_k: int) -> None:
    pages, page = k.shape[:2]
    for b, count in enumerate(used):
        if count < 0:
            raise ArgumentError(f"[varlen_attn] seqused_k must be at least 0: got {count} in place {b}")
        _longest([0, count], max_k, "max_k")
        named = block_table[b, : -(-count // page)]
        if not 0 <= count <= page * block_table.shape[1] or (count and not 0 <= named.min() <= named.max() < pages):
            raise ArgumentError(
                f"[varlen_attn] block_table must name {-(-count // page)} of {pages} pages for seqused_k[{b}] = {count}: got "
                f"{named.tolist()}"
            )


class _Call:
    """One call on memory: its tensors, offsets and options."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, seqused: Tensor | None,
                 _: Tensor | None, seed: Tensor | None, *rules: Any) -> None:  # fmt: skip
        self.rules = Rules(*rules)
        self.seed = 0 if seed is None else int(seed) & (2**64 - 1)
        self.q_offsets = _offsets(cu_q, "cu_seq_q", q.shape[0])
        self.used: list[int] | None = None if seqused is None else seqused.tolist()
        self.k_offsets = _offsets(cu_k, "cu_seq_k", k.shape[0])  # type: ignore[arg-type]
        _longest(self.q_offsets, self.rules.max_q, "max_q")
        _longest(self.k_offsets, self.rules.max_k, "max_k")
        self._check_used()
        self.total_q, self.total_k = q.shape[0], k.shape[0]
        last_q, last_k = self.q_offsets[-1], self.k_offsets[-1]
        self.q, self.k, self.v = (inner_contiguous(x) for x in (q[:last_q], k[:last_k], v[:last_k]))

    def _check_used(self) -> None:
        lengths = [b - a for a, b in zip(self.k_offsets, self.k_offsets[1:])]
        if self.used is not None and any(not 0 <= n <= length for n, length in zip(self.used, lengths)):
            raise ArgumentError(f"[varlen_attn] seqused_k must be from 0 to the sequences' lengths {lengths}: got {self.used}")

    def options(self) -> Any:
        """Of the whole batch."""
        r = self.rules
        if self.used is None and not r.dropout_p:
            return _plain_options(r.left, r.right, r.bottom_right, r.scale)
        mask = _window(r.left, r.right, r.bottom_right)
        if self.used is not None:
            mask = _core.key_lengths(self.used)
            if (r.left, r.right) != (-1, -1):
                # The diagonal ends at the last key in use.
                q_lens = (b - a for a, b in zip(self.q_offsets, self.q_offsets[1:]))
                offsets = [n - m if r.bottom_right else 0 for n, m in zip(self.used, q_lens)]
                mask = mask & _core.window_offsets(r.left, r.right, offsets)
        return _core.Options(mask=mask, scale=r.scale, dropout=r.dropout_p, seed=self.seed)

    def sequences(self) -> Iterator[tuple[slice, slice, Any]]:
        """The rows of q, those of k that are in use, and the options of each sequence alone. Sequences without queries or keys
        are left out."""
        r = self.rules
        options = _plain_options(r.left, r.right, r.bottom_right, r.scale)
        for b in range(len(self.q_offsets) - 1):
            first, last = self.k_offsets[b], self.k_offsets[b + 1]
            last = last if self.used is None else first + self.used[b]
            if r.dropout_p:
                mask = _window(r.left, r.right, r.bottom_right)
                options = _core.Options(mask=mask, scale=r.scale, dropout=r.dropout_p, seed=self.seed, first_sequence=b)
            if self.q_offsets[b] < self.q_offsets[b + 1] and first < last:
                yield slice(self.q_offsets[b], self.q_offsets[b + 1]), slice(first, last), options


@functools.cache
def _window(left: int, right: int, bottom_right: bool) -> Any:
    align = "bottom_right" if bottom_right else "top_left"
    if (left, right) == (-1, -1):
        return None
    return _core.causal(align) if (left, right) == (-1, 0) else _core.window(left, right, align)


@functools.lru_cache(maxsize=256)
def _plain_options(left: int, right: int, bottom_right: bool, scale: float | None) -> Any:
    mask = _window(left, right, bottom_right)
    return None if mask is None and scale is None else _core.Options(mask=mask, scale=scale)


def new_lse(q: Tensor) -> Tensor:
    """Memory for lse."""
    return q.new_empty((q.shape[1], q.shape[0]), dtype=_calls.sum_dtype(q))


def new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for out, lse."""
    return q.new_empty((*q.shape[:2], v.shape[-1])), new_lse(q)


def _compute(call: _Call, out: Tensor, lse: Tensor) -> None:
    n = call.q_offsets[-1]
    if n < call.total_q:
        out[n:].zero_()
        lse[:, n:].fill_(-torch.inf)
    _core.varlen_forward(call.options(), call.q_offsets, call.k_offsets, call.q, call.k, call.v, out[:n], lse[:, :n].T)


def _compute_paged(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, _: Any, seqused: Tensor, table: Tensor, __: Any,
    *rules: Any,
) -> None:  # fmt: skip
    """On pages, read where they lie: one call for neighbours with the same number of queries."""
    r = Rules(*rules)
    q_offsets, used = _offsets(cu_q, "cu_seq_q", q.shape[0]), seqused.tolist()
    _longest(q_offsets, r.max_q, "max_q")
    _check_pages(k, table, used, r.max_k)
    out[q_offsets[-1] :].zero_()
    lse[:, q_offsets[-1] :].fill_(-torch.inf)
    options, table = _plain_options(r.left, r.right, True, r.scale), table.long().contiguous().numpy()
    pages = [x.transpose(1, 2) for x in (k, v)]  # [pages, Hkv, page_size, width]
    begin = 0
    for length, run in itertools.groupby(b - a for a, b in zip(q_offsets, q_offsets[1:])):
        first, begin = begin, begin + len(list(run))
        if length == 0:
            continue
        rows = slice(q_offsets[first], q_offsets[begin])
        queries, results = (x[rows].unflatten(0, (-1, length)).transpose(1, 2) for x in (q, out))  # [B, H, length, width]
        numbers = lse[:, rows].unflatten(1, (-1, length)).transpose(0, 1)
        _core.paged_forward(options, used[first:begin], queries, *pages, table[first:begin], results, numbers)


def _compute_any(out: Tensor, lse: Tensor, *arguments: Any) -> None:
    if arguments[6] is None:
        _compute(_Call(*arguments), out, lse)
    else:
        _compute_paged(out, lse, *arguments)


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """out, lse."""
    out, lse = new_results(arguments[0], arguments[2])
    _compute_any(out, lse, *arguments)
    return out, lse


def forward_into(out: Tensor, *arguments: Any) -> Tensor:
    """lse; writes out, whose last axis has stride 1."""
    lse = new_lse(arguments[0])
    _compute_any(out, lse, *arguments)
    return lse


def backward(dout: Tensor, dlse: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    """dq, dk, dv. arguments: PACKED tensors, out, lse, Rules."""
    tensors, (out, lse), rules = arguments[:PACKED], arguments[PACKED : PACKED + 2], arguments[PACKED + 2 :]
    call = _Call(*tensors, *rules)
    n, m = call.q_offsets[-1], call.k_offsets[-1]
    dq, dk, dv = made = tuple(x.new_empty(x.shape) for x in tensors[:3])
    for tail in (dq[n:], dk[m:], dv[m:]):
        tail.zero_()
    out, dout, dlse = inner_contiguous(out)[:n], inner_contiguous(dout)[:n], None if dlse is None else dlse[:, :n].T
    inputs = (call.q, call.k, call.v, out, lse[:, :n].T, dout, dlse)
    _core.varlen_backward(
        call.options(), call.q_offsets, call.k_offsets, *inputs, dq[:n], dk[:m], dv[:m], None, None, None
    )  # fmt: skip
    return made


def _of(x: Tensor, rows: slice) -> Tensor:
    """Tokens of one sequence, [1, heads, T, width]; of lse, [1, H, T]. A view."""
    return x[None, :, rows] if x.dim() == 2 else x[rows].transpose(0, 1)[None]


def _each(rows: slice, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if x is None else _of(x, rows) for x in tensors)


def double_backward(
    ddq: Tensor | None, ddk: Tensor | None, ddv: Tensor | None, dout: Tensor, dlse: Tensor | None, *arguments: Any
) -> tuple[Tensor | None, ...]:
    """gq, gk, gv, gdout, gdlse (None without dlse), one sequence after another."""
    tensors, (out, lse), rules = arguments[:PACKED], arguments[PACKED : PACKED + 2], arguments[PACKED + 2 :]
    call = _Call(*tensors, *rules)
    gq, gk, gv, gdout = made = tuple(x.new_zeros(x.shape) for x in (*tensors[:3], dout))
    gdlse = None if dlse is None else torch.zeros_like(lse)
    for i, j, options in call.sequences():
        u, g, glse, q, o, m = _each(i, ddq, dout, dlse, call.q, out, lse)
        w, z, k, v = _each(j, ddk, ddv, call.k, call.v)
        found = _calls.double_backward((u, w, z, None), g, glse, q, k, v, o, m, options, None)  # type: ignore[arg-type]
        for x, rows, gradient in zip((gq, gk, gv, gdout), (i, j, j, i), found):
            _of(x, rows).copy_(gradient)
        if gdlse is not None:
            _of(gdlse, i).copy_(found[5])  # type: ignore[arg-type]
    return (*made, gdlse)


def jvp(tq: Tensor | None, tk: Tensor | None, tv: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Tangents of out and lse along those of q, k, v, one sequence after another; None is zero."""
    tensors, lse, rules = arguments[:PACKED], arguments[PACKED], arguments[PACKED + 1 :]
    call = _Call(*tensors, *rules)
    tout, tlse = (x.zero_() for x in new_results(*tensors[:3:2]))
    for i, j, options in call.sequences():
        t, q, m = _each(i, tq, call.q, lse)
        u, w, k, v = _each(j, tk, tv, call.k, call.v)
        of_out, of_lse = _calls.jvp(q, k, v, m, (t, u, w, None), options)  # type: ignore[arg-type]
        _of(tout, i).copy_(of_out)
        _of(tlse, i).copy_(of_lse)
    return tout, tlse


# The graph: packed -> packed_backward -> packed_double_backward; packed_jvp. PACKED tensors and Rules -> (out, lse).

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seq_q, Tensor? cu_seq_k, Tensor? seqused_k, Tensor? block_table, Tensor? seed"
)
_RULES = "SymInt max_q, SymInt max_k, int left, int right, bool bottom_right, float? scale, float dropout_p"


def _refuse_pages(saved: Any) -> None:
    if saved[6] is not None:
        raise NotImplementedError(
            "[varlen_attn] block_table is for inference, as in PyTorch: gradients are computed of packed keys [total_k, Hkv, D] only"
        )


def _packed_gradients(saved: Any, rest: Any, needs: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor, ...]:
    _refuse_pages(saved)
    return packed_backward(torch.zeros_like(saved[PACKED]) if dout is None else dout, dlse, *saved, *rest)


def _packed_seconds(saved: Any, rest: Any, needs: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    gq, gk, gv, gdout, gdlse = packed_double_backward(*cotangents, *saved, *rest)
    return gdout, gdlse, gq, gk, gv


def _packed_tangents(saved: Any, rest: Any, tangents: Any) -> tuple[Tensor, ...]:
    _refuse_pages(saved)
    return packed_jvp(*tangents[:3], *saved[:PACKED], saved[-1], *rest)


def _packed_double_fake(ddq, ddk, ddv, dout, dlse, q, k, v, *rest):  # type: ignore[no-untyped-def]
    return tuple(None if x is None else x.new_empty(x.shape) for x in (q, k, v, dout, dlse))


def _as_heads(count: int, x: Tensor | None, dim: int | None) -> Tensor | None:
    """x without its batch axis `dim`: it goes in front of the heads, which are axis 1 of tokens and axis 0 of lse. Head h of
    example n is head n * H + h, so groups of heads stay together."""
    if x is None:
        return None
    heads = 0 if x.dim() - (dim is not None) == 2 else 1
    x = x.unsqueeze(heads).expand(*x.shape[:heads], count, *x.shape[heads:]) if dim is None else x.movedim(dim, heads)
    return x.flatten(heads, heads + 1)


def _more_heads(before: int, after: int, results: tuple[int, ...]) -> Callable[..., Any]:
    """A rule of torch.func.vmap: the batch becomes more heads. before, after: how many arguments have heads, in front of the five that
    have none and behind them; results: the axis of heads of each result."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        if any(d is not None for d in in_dims[before : before + 5]) or arguments[before + 3] is not None:
            raise NotImplementedError(
                "[varlen_attn] vmap is over query, key and value: offsets, lengths or pages that differ go into one packed call"
            )
        if arguments[-1]:
            raise NotImplementedError(
                "[varlen_attn] vmap over attention with dropout is not computed: pack the examples in one call instead"
            )
        heads, count = {*range(before), *range(before + 5, before + 5 + after)}, info.batch_size
        made = _packed_of[before].operator(*(_as_heads(count, x, d) if n in heads else x for n, (x, d) in enumerate(zip(arguments, in_dims))))
        split = (x.unflatten(axis, (count, -1)) if x.dim() > 1 else x.new_empty(count, 0) for x, axis in zip(made, results))
        return tuple(split), results

    return rule


packed = Step(
    forward, PACKED, _packed_gradients, _packed_tangents, save_results=True, vmap=_more_heads(3, 0, (1, 0)),
    schema=f"varlen_attention({_TENSORS}, {_RULES}) -> (Tensor, Tensor)", fake=lambda q, k, v, *_: new_results(q, v),
)  # fmt: skip
packed_out = operator(
    f"varlen_attention_out(Tensor(a!) out, {_TENSORS}, {_RULES}) -> Tensor", forward_into,
    lambda out, q, *_: new_lse(q),
)  # fmt: skip
packed_backward = Step(
    backward, PACKED + 4, _packed_seconds, FORWARD_OVER_REVERSE, vmap=_more_heads(5, 2, (1, 1, 1)),
    schema=f"varlen_attention_backward(Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, {_RULES}) "
    "-> (Tensor, Tensor, Tensor)",
    fake=lambda dout, dlse, q, k, v, *_: tuple(x.new_empty(x.shape) for x in (q, k, v)),
)  # fmt: skip
packed_double_backward = Step(
    double_backward, PACKED + 7, fake=_packed_double_fake, vmap=_more_heads(8, 2, (1, 1, 1, 1, 0)),
    schema=f"varlen_attention_double_backward(Tensor? ddq, Tensor? ddk, Tensor? ddv, Tensor dout, Tensor? dlse, {_TENSORS}, "
    f"Tensor out, Tensor lse, {_RULES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
packed_jvp = Step(
    jvp, PACKED + 4, FORWARD_OVER_REVERSE, FORWARD_OVER_REVERSE, vmap=_more_heads(6, 1, (1, 0)),
    schema=f"varlen_attention_jvp(Tensor? tq, Tensor? tk, Tensor? tv, {_TENSORS}, Tensor lse, {_RULES}) -> (Tensor, Tensor)",
    fake=lambda tq, tk, tv, q, k, v, *_: new_results(q, v),
)  # fmt: skip
_packed_of = {3: packed, 5: packed_backward, 8: packed_double_backward, 6: packed_jvp}
