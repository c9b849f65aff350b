"""Linear attention with decay and delta rule on PyTorch tensors: memory in, memory out. Not: autograd (_linear_functions.py), checks
of shapes (linear.py).

Tensors have flash-linear-attention's layout: q, k [B, T, Hk, K], v [B, T, Hv, V] of one type, log_decay and beta [B, T, Hv] or
None, state [N, Hv, K, V] or None. offsets: None (N = B), or where each of N sequences begins and the last ends (B = 1). Sums, and
states, are float32 (float64 for float64). `unit`: rows of q and k are divided by sqrt(|x|^2 + 1e-6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from ._calls import inner_contiguous, memory, sum_dtype
from .sdpa import ArgumentError


class Rules(NamedTuple):
    """What a call is passed besides tensors."""

    scale: float
    unit: bool

    def options(self, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None) -> Any:
        """_core.LinearOptions of tensors that kernels read."""
        return _core.linear_options(
            "unit" if self.unit else "identity", None, True, False, self.scale, memory(log_decay), memory(beta), memory(state),
            None, "chunked", True,
        )  # fmt: skip


def wide(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """x in the type of sums, its last axis of stride 1; x itself where it is so already."""
    if x is None or (x.dtype is dtype and x.is_contiguous()):
        return x
    return inner_contiguous(x.to(dtype))


def places(offsets: Tensor | None, length: int) -> list[int] | None:
    """The numbers of cu_seqlens. Raises ArgumentError unless they begin with 0, do not decrease, and end with length."""
    if offsets is None:
        return None
    numbers = offsets.tolist() if offsets.dim() == 1 else []
    if len(numbers) < 2 or numbers[0] != 0 or numbers[-1] != length or any(a > b for a, b in zip(numbers, numbers[1:])):
        raise ArgumentError(
            f"[qkv.torch] cu_seqlens must begin with 0, not decrease, and end with T = {length}: got "
            f"{numbers or list(offsets.shape)}"
        )
    return numbers


def _sequences(offsets: list[int]) -> Iterator[tuple[slice, slice]]:
    """Tokens of each sequence, and its state."""
    for n, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        yield slice(begin, end), slice(n, n + 1)


def _part(tensors: Sequence[Tensor | None], tokens: slice) -> list[Tensor | None]:
    return [x if x is None else x[:, tokens] for x in tensors]


def forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None,
    offsets: list[int] | None, rules: Rules, want_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out [B, T, Hv, V] of v's type, and the state after the last token [N, Hv, K, V] or None."""
    dtype = sum_dtype(q)
    rows = [wide(q, dtype), wide(k, dtype), wide(v, dtype)]
    tokens = [x if x is None or x.dtype is dtype else x.to(dtype) for x in (log_decay, beta)]
    state = wide(state, dtype)
    out = torch.empty(v.shape, dtype=dtype)
    sequences = v.shape[0] if offsets is None else len(offsets) - 1
    final = torch.empty((sequences, v.shape[2], k.shape[3], v.shape[3]), dtype=dtype) if want_state else None
    if offsets is None:
        options = rules.options(*tokens, state)
        _core.linear_forward(*map(memory, rows), memory(out), None, memory(final), None, options)
    for where, which in _sequences(offsets or []):
        options = rules.options(*_part(tokens, where), None if state is None else state[which])
        end = None if final is None else memory(final[which])
        _core.linear_forward(*map(memory, _part((*rows, out), where)), None, end, None, options)
    return out if out.dtype is v.dtype else out.to(v.dtype), final


def backward(
    dout: Tensor | None, dfinal: Tensor | None, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None,
    state: Tensor | None, offsets: list[int] | None, rules: Rules, need: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv, dlog_decay, dbeta, dstate, each where it is needed, of its tensor's type."""
    dtype = sum_dtype(q)
    inputs = (q, k, v, log_decay, beta, state)
    rows = [wide(x, dtype) for x in (q, k, v)]
    tokens = [x if x is None else x.to(dtype) for x in (log_decay, beta)]
    rows.append(torch.zeros(v.shape, dtype=dtype) if dout is None else wide(dout, dtype))
    state, dfinal = wide(state, dtype), wide(dfinal, dtype)
    made = [torch.empty(x.shape, dtype=dtype) if x is not None and wanted else None for x, wanted in zip(inputs, need)]

    def run(rows: Sequence[Any], tokens: Sequence[Any], written: Sequence[Any], states: Sequence[Any]) -> None:
        before, dbefore, dafter = states
        _core.linear_backward(
            *map(memory, rows[:3]), None, None, memory(rows[3]), *map(memory, written), memory(dbefore), None, memory(dafter),
            None, rules.options(*tokens, before),
        )  # fmt: skip

    states = (state, made[5], dfinal)
    if offsets is None:
        run(rows, tokens, made[:5], states)
    for where, which in _sequences(offsets or []):
        parts = (_part(x, where) for x in (rows, tokens, made[:5]))
        run(*parts, [x if x is None else x[which] for x in states])
    return tuple(g if g is None or g.dtype is x.dtype else g.to(x.dtype) for g, x in zip(made, inputs))
