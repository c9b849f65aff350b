"""Packed sequences on PyTorch tensors, on the kernels of qkv.attention_varlen: memory in, memory out, and their derivative graph
(_graph.py).

q, out [total_q, H, D|Dv], k, v [total_k, Hkv, D|Dv] (pages: [pages, page_size, Hkv, D|Dv]), lse [H, total_q] of _calls.sum_dtype.
Each function is passed PACKED tensors and then Rules. Tokens behind the last sequence: out 0, lse -inf, gradients 0.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from . import _calls
from ._calls import ArgumentError, inner_contiguous, offsets_of
from ._graph import Step

#: The tensors of a call: q, k, v, cu_seq_q, cu_seq_k, seqused_k, block_table.
PACKED = 7


class Rules(NamedTuple):
    """Arguments after the tensors. left, right: the window within each sequence, whose last query stands at its last key."""

    max_q: int
    max_k: int
    left: int = -1
    right: int = -1
    scale: float | None = None


def _longest(offsets: list[int], most: int, name: str) -> None:
    length = max((b - a for a, b in zip(offsets, offsets[1:])), default=0)
    if length > most:
        raise ArgumentError(f"[varlen_attn] {name} must be the longest sequence's length or more: got {most} for {length}")


class _Call:
    """One call on memory: its tensors, offsets and options."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, seqused: Tensor | None, _: None, *rules: Any) -> None:
        r = Rules(*rules)
        self.q_offsets = offsets_of("varlen_attn", "cu_seq_q", cu_q, q.shape[0])
        self.k_offsets = offsets_of("varlen_attn", "cu_seq_k", cu_k, k.shape[0])
        _longest(self.q_offsets, r.max_q, "max_q")
        _longest(self.k_offsets, r.max_k, "max_k")
        last_q, last_k = self.q_offsets[-1], self.k_offsets[-1]
        self.q, self.k, self.v = (inner_contiguous(x) for x in (q[:last_q], k[:last_k], v[:last_k]))
        self.options = _options(r.left, r.right, r.scale) if seqused is None else self._of_used(seqused.tolist(), r)

    def _of_used(self, used: list[int], r: Rules) -> Any:
        """The diagonal ends at the last key in use."""
        q_lens, k_lens = ([b - a for a, b in zip(x, x[1:])] for x in (self.q_offsets, self.k_offsets))
        if any(not 0 <= n <= length for n, length in zip(used, k_lens)):
            raise ArgumentError(f"[varlen_attn] seqused_k must be from 0 to the sequences' lengths {k_lens}: got {used}")
        mask = _core.key_lengths(used)
        if (r.left, r.right) != (-1, -1):
            mask = mask & _core.window(r.left, r.right, "bottom_right", [n - m for n, m in zip(used, q_lens)])
        return _core.Options(mask=mask, scale=r.scale)


@functools.lru_cache(maxsize=256)
def _options(left: int, right: int, scale: float | None) -> Any:
    if (left, right) == (-1, -1):
        return None if scale is None else _core.Options(scale=scale)
    causal = (left, right) == (-1, 0)
    return _core.Options(mask=_core.causal("bottom_right") if causal else _core.window(left, right, "bottom_right"), scale=scale)


def new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for out, lse."""
    return q.new_empty((*q.shape[:2], v.shape[-1])), q.new_empty((q.shape[1], q.shape[0]), dtype=_calls.sum_dtype(q))


def _compute(call: _Call, out: Tensor, lse: Tensor) -> None:
    n = call.q_offsets[-1]
    if n < out.shape[0]:
        out[n:].zero_()
        lse[:, n:].fill_(-torch.inf)
    _core.varlen_forward(call.options, call.q_offsets, call.k_offsets, call.q, call.k, call.v, out[:n], lse[:, :n].T)


def _compute_paged(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, _: Any, seqused: Tensor, table: Tensor, *rules: Any
) -> None:
    """On pages, read where they lie: one call for neighbours with the same number of queries."""
    r = Rules(*rules)
    q_offsets, used = offsets_of("varlen_attn", "cu_seq_q", cu_q, q.shape[0]), seqused.tolist()
    _longest(q_offsets, r.max_q, "max_q")
    _longest([0, max(used, default=0)], r.max_k, "max_k")
    out[q_offsets[-1] :].zero_()
    lse[:, q_offsets[-1] :].fill_(-torch.inf)
    options, table = _options(r.left, r.right, r.scale), table.long().contiguous().numpy()
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


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """out, lse."""
    out, lse = new_results(arguments[0], arguments[2])
    if arguments[6] is None:
        _compute(_Call(*arguments), out, lse)
    else:
        _compute_paged(out, lse, *arguments)
    return out, lse


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
        call.options, call.q_offsets, call.k_offsets, *inputs, dq[:n], dk[:m], dv[:m], None, None, None
    )  # fmt: skip
    return made


# The graph: packed -> packed_backward. PACKED tensors and Rules -> (out, lse).

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor cu_seq_q, Tensor? cu_seq_k, Tensor? seqused_k, Tensor? block_table"
_RULES = "SymInt max_q, SymInt max_k, int left, int right, float? scale"
_ONCE = (
    "[varlen_attn] packed sequences are differentiated once, in reverse mode: got forward mode, or a gradient of a gradient; those "
    "are computed of one sequence, by qkv.torch.scaled_dot_product_attention"
)


def _packed_gradients(saved: Any, rest: Any, needs: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor, ...]:
    if saved[6] is not None:
        raise NotImplementedError(
            "[varlen_attn] block_table is for inference, as in PyTorch: gradients are computed of packed keys [total_k, Hkv, D] only"
        )
    return packed_backward(torch.zeros_like(saved[PACKED]) if dout is None else dout, dlse, *saved, *rest)


packed = Step(
    forward, PACKED, _packed_gradients, _ONCE, save_results=True, fake=lambda q, k, v, *_: new_results(q, v),
    schema=f"varlen_attention({_TENSORS}, {_RULES}) -> (Tensor, Tensor)",
)  # fmt: skip
packed_backward = Step(
    backward, PACKED + 4, _ONCE, _ONCE, fake=lambda dout, dlse, q, k, v, *_: tuple(x.new_empty(x.shape) for x in (q, k, v)),
    schema=f"varlen_attention_backward(Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, {_RULES}) "
    "-> (Tensor, Tensor, Tensor)",
)  # fmt: skip
