"""The selective scan and the short convolution on PyTorch tensors: memory in, memory out, and their derivative graphs (_graph.py).

Channels lie innermost: u, dt, x [B, T, C]. 16-bit tensors are widened; sums and states are float32 (float64 for float64).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._calls import ArgumentError, sum_dtype
from ._graph import Step, needed, wanted
from ._linear_calls import like, wide

_ONCE = "[qkv.torch] selective_scan and short_convolution are differentiated once, in reverse mode: got forward mode, or a gradient of a gradient"
_CHUNK = _core.selective_scan_chunk  #: tokens from one kept state to the next


def _of_type(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x if x is None or (x.dtype is dtype and not x.is_neg()) else x.resolve_neg().to(dtype)


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous, of x's shape; half of what torch.empty takes."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _scan_inputs(u, dt, A, B, C, D, state):  # type: ignore[no-untyped-def]
    to = sum_dtype(u)
    return (wide(u, to), wide(dt, to), *(_of_type(x, to) for x in (A, B, C, D, state)))


def scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor | None, keep: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """out [B, T, C] of u's type, the state after the last token [B, C, N], and those that backward starts from, [B, chunks, N, C]."""
    inputs = _scan_inputs(u, dt, A, B, C, D, state)
    out, final = _empty(u, inputs[0].dtype), inputs[0].new_empty((u.shape[0], *A.shape))
    kept = final.new_empty((u.shape[0], -(-u.shape[1] // _CHUNK), A.shape[1], A.shape[0])) if keep else None
    _core.selective_scan_forward(*inputs, out, final, kept)
    return out.to(u.dtype), final, kept


def step(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor) -> Tensor:
    """out of the tokens u, and `state` becomes that after them. All tensors have the type of sums."""
    out = torch.empty_like(u)
    _core.selective_scan_forward(u, dt, A, B, C, D, state, out, state, None)
    return out


def _scan_fake(u, dt, A, *_):  # type: ignore[no-untyped-def]
    final = u.new_empty((u.shape[0], *A.shape), dtype=sum_dtype(u))
    return u.new_empty(u.shape), final, final.new_empty((u.shape[0], -(-u.shape[1] // _CHUNK), A.shape[1], A.shape[0]))


def _gradients(inputs: Sequence[Tensor | None], need: Sequence[bool], dtype: torch.dtype) -> list[Tensor | None]:
    return [_empty(x, dtype) if x is not None and n else None for x, n in zip(inputs, need)]


def _cast(made: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    return tuple(None if x is None or like is None else x.to(like.dtype) for x, like in zip(made, inputs))


def _scan_backward_kernel(dout, dfinal, u, dt, A, B, C, D, state, kept, need):  # type: ignore[no-untyped-def]
    given = (u, dt, A, B, C, D, state)
    inputs, to = _scan_inputs(*given), sum_dtype(u)
    dout = torch.zeros(u.shape, dtype=to) if dout is None else wide(dout, to)
    made = _gradients(given, wanted(need, 7), to)
    _core.selective_scan_backward(*inputs, kept, dout, *made, _of_type(dfinal, to))
    return _cast(made, given)


_SCAN = "Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? state"
selective_scan = Step(
    scan, 7, lambda saved, _, needs, dout, dfinal, __: _scan_backward(dout, dfinal, *saved[:7], saved[9], needed(needs[:7])), _ONCE,
    save_results=True, schema=f"selective_scan({_SCAN}) -> (Tensor, Tensor, Tensor)", fake=_scan_fake,
)  # fmt: skip
_scan_backward = Step(
    _scan_backward_kernel, 10, _ONCE, _ONCE, fake=lambda dout, dfinal, *rest: like(7, *rest),
    schema=f"selective_scan_backward(Tensor? dout, Tensor? dfinal, {_SCAN}, Tensor kept, int need) -> ({', '.join(['Tensor'] * 7)})",
)  # fmt: skip


def _convolution_inputs(x, weight, bias, before, sequence):  # type: ignore[no-untyped-def]
    to = sum_dtype(x)
    if sequence is not None and sequence.dtype is not torch.int32:
        numbers = sequence.to(torch.int32)
        if sequence.is_floating_point() or not torch.equal(numbers.to(sequence.dtype), sequence):
            raise ArgumentError(f"[short_convolution] sequence must hold integers of 32 bits: got {sequence.dtype}")
        sequence = numbers
    return wide(x, to), _of_type(weight, to), _of_type(bias, to), wide(before, to), sequence


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, sequence: Tensor | None, silu: bool
) -> Tensor:
    """out [B, T, C] of x's type."""
    inputs = _convolution_inputs(x, weight, bias, before, sequence)
    out = _empty(x, inputs[0].dtype)
    _core.short_convolution_forward(silu, *inputs, out)
    return out.to(x.dtype)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """out, and the last W - 1 rows of what was read, [B, W - 1, C]."""
    missing = weight.shape[1] - 1 - x.shape[1]
    last = x[:, max(x.shape[1] - weight.shape[1] + 1, 0) :]
    if missing > 0:
        earlier = x.new_zeros((x.shape[0], missing, x.shape[2])) if before is None else before[:, -missing:].to(x.dtype)
        last = torch.cat((earlier, last), 1)
    return convolved(x, weight, bias, before, *rest), last.clone() if missing <= 0 else last


def _convolution_backward_kernel(dout, dlast, x, weight, bias, before, sequence, silu, need):  # type: ignore[no-untyped-def]
    given = (x, weight, bias, before)
    inputs, to = _convolution_inputs(*given, sequence), sum_dtype(x)
    dout = torch.zeros(x.shape, dtype=to) if dout is None else wide(dout, to)
    made = _gradients(given, wanted(need, 4), to)
    _core.short_convolution_backward(silu, *inputs, dout, *made)
    if dlast is not None:
        count = min(x.shape[1], dlast.shape[1])
        if made[0] is not None:
            made[0][:, x.shape[1] - count :] += dlast[:, dlast.shape[1] - count :]
        if made[3] is not None:
            made[3][:, count:] += dlast[:, : dlast.shape[1] - count]
    return _cast(made, given)


_CONVOLUTION = "Tensor x, Tensor weight, Tensor? bias, Tensor? before, Tensor? sequence, bool silu"
short_convolution = Step(
    convolution, 5, lambda saved, rest, needs, dout, dlast: _convolution_backward(dout, dlast, *saved, *rest, needed(needs[:4])), _ONCE,
    schema=f"short_convolution({_CONVOLUTION}) -> (Tensor, Tensor)",
    fake=lambda x, weight, *_: (x.new_empty(x.shape), x.new_empty((x.shape[0], weight.shape[1] - 1, x.shape[2]))),
)  # fmt: skip
_convolution_backward = Step(
    _convolution_backward_kernel, 7, _ONCE, _ONCE, fake=lambda dout, dlast, *rest: like(4, *rest),
    schema=f"short_convolution_backward(Tensor? dout, Tensor? dlast, {_CONVOLUTION}, int need) -> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
