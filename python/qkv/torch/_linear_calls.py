"""Linear attention with decay and delta rule on PyTorch tensors: memory in, memory out, and their derivative
graph (_graph.py).

Tensors have flash-linear-attention's layout: q, k [B, T, Hk, K], v [B, T, Hv, V] of one type, log_decay [B, T, Hv], per channel
[B, T, Hv, K], or None, beta [B, T, Hv] or None, state [N, Hv, K, V] or None. offsets: None (N = B), or where each of N sequences
begins and the last ends (B = 1). Sums, and states, are float32 (float64 for float64). `unit`: rows of q and k are divided by
sqrt(|x|^2 + 1e-6).
"""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from ._calls import inner_contiguous, offsets_of, sum_dtype
from ._graph import Step, needed, wanted

#: The most numbers that 16-bit tensors are widened to at a time, in memory that is kept for the next call.
_WIDENED = 2**24
_NARROW = (torch.bfloat16, torch.float16)
_kept = threading.local()


class Rules(NamedTuple):
    """Arguments besides tensors."""

    scale: float
    unit: bool

    def options(self, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None) -> Any:
        """_core.LinearOptions of tensors that kernels read."""
        return _core.LinearOptions(
            None, log_decay, beta, state, None, feature_map="unit" if self.unit else "identity", causal=True, normalized=False,
            scale=self.scale, tokens_first=True,
        )  # fmt: skip


def wide(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """x in the type of sums, its last axis of stride 1; x itself where it is so already."""
    if x is None or (x.dtype is dtype and x.is_contiguous() and not x.is_neg()):
        return x
    return inner_contiguous(x.resolve_neg().to(dtype))


def _of_tokens(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Decays or beta in the type of sums; channels side by side."""
    if x is None:
        return x
    if x.dim() == 3:
        return x.resolve_neg().to(dtype)
    return wide(x, dtype) if x.dtype is dtype else copied(torch.empty(x.shape, dtype=dtype), x)


def copied(to: Tensor, x: Tensor) -> Tensor:
    """`to`, which becomes x. Between 16 bits and float32 on qkv's threads: PyTorch's, once woken, spin beside them for a while."""
    if x.dim() == 4 and x.stride(3) == 1 == to.stride(3) and (x.dtype in _NARROW) != (to.dtype in _NARROW):
        if torch.float32 in (x.dtype, to.dtype):
            _core.convert(x.resolve_neg(), to)
            return to
    return to.copy_(x)


def _workspace(*shapes: Sequence[int]) -> list[Tensor]:
    """float32 tensors of these shapes. Fresh memory of this size is new to the system in every call, which costs more than the
    conversions: what is not above the limit is kept by each thread."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = getattr(_kept, "flat", None)
    if flat is None or flat.numel() < sum(sizes):
        with torch.inference_mode(False):
            flat = torch.empty(sum(sizes), dtype=torch.float32, device="cpu")
        if flat.numel() <= _WIDENED:
            _kept.flat = flat
    return [part.view(shape) for part, shape in zip(flat[: sum(sizes)].split(sizes), shapes)]


def numbers_of(offsets: Tensor | None, q: Tensor) -> list[int] | None:
    """Where sequences begin and the last ends."""
    return None if offsets is None else offsets_of("qkv.torch", "cu_seqlens", offsets, q.shape[1], whole=True)


def _sequences(offsets: list[int]) -> Iterator[tuple[slice, slice]]:
    """Tokens of each sequence, and its state."""
    for n, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        yield slice(begin, end), slice(n, n + 1)


def _part(tensors: Sequence[Tensor | None], tokens: slice) -> list[Tensor | None]:
    return [x if x is None else x[:, tokens] for x in tensors]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None,
    offsets: list[int] | None, rules: Rules, want_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out [B, T, Hv, V] of the type of sums, and the state after the last token [N, Hv, K, V] or None."""
    dtype = sum_dtype(q)
    if q.dtype is dtype:
        rows, out = [wide(q, dtype), wide(k, dtype), wide(v, dtype)], torch.empty(v.shape, dtype=dtype)
    else:
        *rows, out = _workspace(q.shape, k.shape, v.shape, v.shape)
        rows = [copied(to, x) for to, x in zip(rows, (q, k, v))]
    tokens = [_of_tokens(x, dtype) for x in (log_decay, beta)]
    state = wide(state, dtype)
    sequences = v.shape[0] if offsets is None else len(offsets) - 1
    final = torch.empty((sequences, v.shape[2], k.shape[3], v.shape[3]), dtype=dtype) if want_state else None
    if offsets is None:
        options = rules.options(*tokens, state)
        _core.linear_forward(options, *rows, out, None, final, None)
    for where, which in _sequences(offsets or []):
        options = rules.options(*_part(tokens, where), None if state is None else state[which])
        _core.linear_forward(options, *_part((*rows, out), where), None, None if final is None else final[which], None)
    return out, final


def step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, rules: Rules) -> Tensor:
    """out [B, 1, Hv, V] of one token of each row. All tensors have the type of sums; state [B, Hv, K, V], of any strides, becomes the
    one after the token."""
    out = torch.empty(v.shape, dtype=v.dtype)
    q, k, v = (inner_contiguous(x) for x in (q, k, v))
    _core.linear_forward(rules.options(log_decay, None, state), q, k, v, out, None, state, None)
    return out


def _backward(
    dout: Tensor | None, dfinal: Tensor | None, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None,
    state: Tensor | None, offsets: list[int] | None, rules: Rules, need: tuple[bool, ...],
) -> list[Tensor | None]:  # fmt: skip
    """dq, dk, dv, dlog_decay, dbeta, dstate, each where it is needed, of the type of sums."""
    dtype = sum_dtype(q)
    inputs = (q, k, v, log_decay, beta, state)
    dout = torch.zeros(v.shape, dtype=v.dtype) if dout is None else dout
    made = [torch.empty(x.shape, dtype=dtype) if x is not None and n else None for x, n in zip(inputs[3:], need[3:])]
    if q.dtype is dtype:
        rows = [wide(x, dtype) for x in (q, k, v, dout)]
        made = [torch.empty(x.shape, dtype=dtype) if wanted else None for x, wanted in zip(inputs[:3], need)] + made
    else:
        memories = _workspace(q.shape, k.shape, v.shape, v.shape, q.shape, k.shape, v.shape)
        rows = [copied(to, x) for to, x in zip(memories, (q, k, v, dout))]
        made = [to if wanted else None for to, wanted in zip(memories[4:], need)] + made
    tokens = [_of_tokens(x, dtype) for x in (log_decay, beta)]
    state, dfinal = wide(state, dtype), wide(dfinal, dtype)

    def run(rows: Sequence[Any], tokens: Sequence[Any], written: Sequence[Any], states: Sequence[Any]) -> None:
        before, dbefore, dafter = states
        inputs = (*rows[:3], None, None, rows[3], dafter, None)
        _core.linear_backward(rules.options(*tokens, before), *inputs, *written, dbefore, None)

    states = (state, made[5], dfinal)
    if offsets is None:
        run(rows, tokens, made[:5], states)
    for where, which in _sequences(offsets or []):
        parts = (_part(x, where) for x in (rows, tokens, made[:5]))
        run(*parts, [x if x is None else x[which] for x in states])
    return made


def _head_parts(q: Tensor, v: Tensor) -> list[tuple[slice, slice]]:
    """Heads of q and of v that are computed together: those whose widened copies fit the workspace, or one for each thread."""
    heads, group = q.shape[2], v.shape[2] // q.shape[2]
    step = heads
    if q.dtype not in (torch.float32, torch.float64):
        each = q.shape[0] * q.shape[1] * (4 * q.shape[3] + 3 * group * v.shape[3])
        step = max(_WIDENED // max(each, 1), -(-_core.num_threads() // max(q.shape[0], 1)), 1)
    return [(slice(h, h + step), slice(h * group, (h + step) * group)) for h in range(0, heads, step)]


def _of_heads(x: Tensor | None, axis: int, heads: slice) -> Tensor | None:
    return None if x is None else x[:, :, heads] if axis == 2 else x[:, heads]


def forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None,
    offsets: list[int] | None, rules: Rules, want_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out [B, T, Hv, V] of v's type, and the state after the last token [N, Hv, K, V] or None."""
    if v.dtype is sum_dtype(v):
        return _forward(q, k, v, log_decay, beta, state, offsets, rules, want_state)
    out, finals = torch.empty(v.shape, dtype=v.dtype), []
    for of_q, of_v in _head_parts(q, v):
        parts = (of_q, of_q, of_v, of_v, of_v)
        tensors = [_of_heads(x, 2, heads) for x, heads in zip((q, k, v, log_decay, beta), parts)]
        sums, final = _forward(*tensors, _of_heads(state, 1, of_v), offsets, rules, want_state)
        copied(out[:, :, of_v], sums)
        finals.append(final)
    return out, None if not want_state else finals[0] if len(finals) == 1 else torch.cat(finals, 1)


def backward(
    dout: Tensor | None, dfinal: Tensor | None, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None,
    state: Tensor | None, offsets: list[int] | None, rules: Rules, needs: int,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv, dlog_decay, dbeta, dstate, each where it is needed, of its tensor's type."""
    need = wanted(needs, 6)
    inputs = (q, k, v, log_decay, beta, state)
    if all(x is None or x.dtype is sum_dtype(q) for x in inputs):
        return tuple(_backward(dout, dfinal, *inputs, offsets, rules, need))
    made = [torch.empty(x.shape, dtype=x.dtype) if x is not None and n else None for x, n in zip(inputs, need)]
    heads = _head_parts(q, v)
    for of_q, of_v in heads:
        slices = ((2, of_q), (2, of_q), (2, of_v), (2, of_v), (2, of_v), (1, of_v))
        tensors = [_of_heads(x, *at) for x, at in zip(inputs, slices)]
        parts = _backward(_of_heads(dout, 2, of_v), _of_heads(dfinal, 1, of_v), *tensors, offsets, rules, need)
        for n, (gradient, part, at) in enumerate(zip(made, parts, slices)):
            if gradient is not None and n > 2 and len(heads) == 1 and part.dtype is gradient.dtype:
                made[n] = part  # a tensor of its own, not the workspace
            elif gradient is not None:
                copied(_of_heads(gradient, *at), part)
    return tuple(made)


# The graph: (q, k, v, log_decay, beta, state, offsets, scale, unit) -> (out, final state).


def _scan_kernel(q, k, v, log_decay, beta, state, offsets, *rules):  # type: ignore[no-untyped-def]
    return forward(q, k, v, log_decay, beta, state, numbers_of(offsets, q), Rules(*rules), True)


def _scan_fake(q, k, v, log_decay, beta, state, offsets, *_):  # type: ignore[no-untyped-def]
    sequences = v.shape[0] if offsets is None else offsets.shape[0] - 1
    final = v.new_empty((sequences, v.shape[2], k.shape[3], v.shape[3]), dtype=sum_dtype(q))
    return v.new_empty(v.shape), final


def _scan_backward_kernel(dout, dfinal, q, k, v, log_decay, beta, state, offsets, scale, unit, need):  # type: ignore[no-untyped-def]
    return backward(dout, dfinal, q, k, v, log_decay, beta, state, numbers_of(offsets, q), Rules(scale, unit), need)


def like(count: int, *rest: Any) -> tuple[Tensor | None, ...]:
    """Memory for the gradients of the first tensors, each where the last argument (_graph.needed) says so."""
    return tuple(x.new_empty(x.shape) if x is not None and n else None for x, n in zip(rest[:count], wanted(rest[-1], count)))


_ONCE = (
    "[qkv.torch] linear attention is differentiated once, in reverse mode: got forward mode, or a gradient of a gradient; "
    "transformers' own functions compute those"
)
_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? state, Tensor? offsets, float scale, bool unit"
linear_scan = Step(
    _scan_kernel, 7, lambda saved, rest, needs, *cotangents: _scan_backward(*cotangents, *saved, *rest, needed(needs[:6])), _ONCE,
    schema=f"linear_scan({_TENSORS}) -> (Tensor, Tensor)", fake=_scan_fake,
)  # fmt: skip
_scan_backward = Step(
    _scan_backward_kernel, 9, _ONCE, _ONCE, fake=lambda dout, dfinal, *rest: like(6, *rest),
    schema=f"linear_scan_backward(Tensor? dout, Tensor? dfinal, {_TENSORS}, int need) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
