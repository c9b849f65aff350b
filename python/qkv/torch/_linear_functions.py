"""Linear attention in PyTorch's autograd: a Function for eager calls, the operators qkv::linear_scan and its backward where PyTorch
traces (torch.compile, torch.export), and those in Functions as functorch wants them for torch.func. All are differentiable once.
Tensors: _linear_calls.py.

    qkv::linear_scan(q, k, v, log_decay, beta, state, offsets, scale, unit) -> (out, final state)
    qkv::linear_scan_backward(dout, dfinal, ..., need) -> (dq, dk, dv, dlog_decay, dbeta, dstate)     empty where not needed
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

from . import _linear_calls
from ._calls import sum_dtype
from ._functions import _functorch
from ._linear_calls import Rules
from ._operators import _library, _looping, _tags
from .sdpa import direct


class Scan(Function):
    """(q, k, v, log_decay, beta, state, offsets, rules, want_state) -> (out, final state or None)."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        *tensors, offsets, rules, want_state = arguments
        ctx.save_for_backward(*tensors)
        ctx.offsets, ctx.rules = offsets, rules
        ctx.set_materialize_grads(False)
        return _linear_calls.forward(*tensors, offsets, rules, want_state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dfinal: Tensor | None) -> tuple[Any, ...]:
        need = ctx.needs_input_grad[:6]
        return (*_linear_calls.backward(dout, dfinal, *ctx.saved_tensors, ctx.offsets, ctx.rules, need), None, None, None)


def scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None,
    offsets: Tensor | None, rules: Rules, want_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out and the final state (None unless wanted); chooses between kernels, eager autograd and operators."""
    tensors = (q, k, v, log_decay, beta, state)
    tangents = forward_ad._current_level >= 0
    if tangents or not direct(*tensors):
        functional = not torch.compiler.is_compiling() and (tangents or _functorch() is not None)
        out, final = (FunctionalScan.apply if functional else linear_scan)(*tensors, offsets, *rules)
        return out, final if want_state else None
    places = _linear_calls.places(offsets, q.shape[1])
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return Scan.apply(*tensors, places, rules, want_state)
    return _linear_calls.forward(*tensors, places, rules, want_state)


def _once(*_: Any) -> Any:
    raise NotImplementedError(
        "[qkv.torch] linear attention is differentiated once, in reverse mode: got forward mode, or a gradient of a gradient; "
        "transformers' own functions compute those"
    )


class FunctionalScan(Function):
    """The arguments of qkv::linear_scan -> (out, final state)."""

    generate_vmap_rule = True
    jvp = staticmethod(_once)

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return linear_scan(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.scale, ctx.unit = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dfinal: Tensor) -> tuple[Any, ...]:
        need = ctx.needs_input_grad[:6]
        made = FunctionalScanBackward.apply(dout, dfinal, *ctx.saved_tensors, ctx.scale, ctx.unit, *need)
        return (*(g if wanted else None for g, wanted in zip(made, need)), None, None, None)


class FunctionalScanBackward(Function):
    """The arguments of qkv::linear_scan_backward, `need` one by one -> its results."""

    generate_vmap_rule = True
    jvp = staticmethod(_once)
    backward = staticmethod(_once)

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return linear_scan_backward(*arguments[:-6], list(arguments[-6:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? state, Tensor? offsets, float scale, bool unit"
)
_library.define(f"linear_scan({_TENSORS}) -> (Tensor, Tensor)", tags=_tags)
_library.define(
    f"linear_scan_backward(Tensor? dout, Tensor? dfinal, {_TENSORS}, bool[] need) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
linear_scan = torch.ops.qkv.linear_scan.default
linear_scan_backward = torch.ops.qkv.linear_scan_backward.default


def _scan_cpu(q, k, v, log_decay, beta, state, offsets, scale, unit):
    return _linear_calls.forward(
        q, k, v, log_decay, beta, state, _linear_calls.places(offsets, q.shape[1]), Rules(scale, unit), True
    )


def _scan_fake(q, k, v, log_decay, beta, state, offsets, scale, unit):
    sequences = v.shape[0] if offsets is None else offsets.shape[0] - 1
    final = v.new_empty((sequences, v.shape[2], k.shape[3], v.shape[3]), dtype=sum_dtype(q))
    return v.new_empty(v.shape), final


def _scan_setup(ctx, inputs, output):
    *tensors, ctx.scale, ctx.unit = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _scan_formula(ctx, dout, dfinal):
    need = [bool(wanted) for wanted in ctx.needs_input_grad[:6]]
    if dout is None and dfinal is None:
        return (None,) * 9
    made = linear_scan_backward(dout, dfinal, *ctx.saved_tensors, ctx.scale, ctx.unit, need)
    return (*(g if wanted else None for g, wanted in zip(made, need)), None, None, None)


def _backward_cpu(dout, dfinal, q, k, v, log_decay, beta, state, offsets, scale, unit, need):
    tensors = (q, k, v, log_decay, beta, state)
    places = _linear_calls.places(offsets, q.shape[1])
    made = _linear_calls.backward(dout, dfinal, *tensors, places, Rules(scale, unit), tuple(need))
    return tuple(q.new_empty(0) if g is None else g for g in made)


def _backward_fake(dout, dfinal, q, k, v, log_decay, beta, state, offsets, scale, unit, need):
    tensors = (q, k, v, log_decay, beta, state)
    return tuple(x.new_empty(x.shape) if x is not None and wanted else q.new_empty(0) for x, wanted in zip(tensors, need))


for _operator, _cpu, _fake in ((linear_scan, _scan_cpu, _scan_fake), (linear_scan_backward, _backward_cpu, _backward_fake)):
    _library.impl(_operator, _cpu, "CPU")
    torch.library.register_fake(_operator, _fake, lib=_library)
torch.library.register_autograd(linear_scan, _scan_formula, setup_context=_scan_setup, lib=_library)
for _operator in (linear_scan, linear_scan_backward):
    torch.library.register_vmap(_operator, _looping(_operator), lib=_library)
