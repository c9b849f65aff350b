"""Attention in PyTorch's eager autograd: first derivatives, gradients of gradients, forward mode. Not: torch.compile and
torch.func, which use the operators of _operators.py.

An autograd.Function around the kernels costs about half as much as a registered operator with a formula, so eager calls use
it. `rules` (a _calls.Rules) holds all that is not a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

from . import _calls
from ._calls import Rules


class Attend(Function):
    """(q, k, v, bias, keep, table, rules) -> out."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, table: Tensor | None, rules: Rules
    ) -> Tensor:
        out, lse = _calls.forward_with_lse(q, k, v, rules.options(bias, keep, table))
        ctx.save_for_backward(q, k, v, bias, keep, table, out, lse)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(q, k, v, bias, keep, table, out, lse)
        ctx.rules = rules
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None) -> tuple[Any, ...]:
        return (*_gradients(ctx, dout, None, *ctx.saved_tensors), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _tangents(ctx, tangents)[0]


class AttendWithLse(Function):
    """(q, k, v, bias, keep, table, rules) -> (out, lse), both differentiable."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, table: Tensor | None, rules: Rules
    ) -> tuple[Tensor, Tensor]:
        out, lse = _calls.forward_with_lse(q, k, v, rules.options(bias, keep, table))
        _save(ctx, rules, q, k, v, bias, keep, table, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        return (*_gradients(ctx, dout, dlse, *ctx.saved_tensors), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        return _tangents(ctx, tangents)


# Function.apply without its check for functorch, which callers have made (sdpa.direct): this saves 2.5 us.
apply_attend = super(Function, Attend).apply  # type: ignore[misc]


def _save(ctx: Any, rules: Rules, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)
    ctx.rules = rules
    ctx.set_materialize_grads(False)


def _tangents(ctx: Any, tangents: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    q, k, v, bias, keep, table, _, lse = ctx.saved_tensors
    if tangents[5] is not None:
        raise NotImplementedError("[qkv.torch] forward mode does not differentiate a table of a position bias: use backward")
    return _calls.jvp(q, k, v, lse, tangents[:4], ctx.rules.options(bias, keep, table))


def _gradients(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
    keep: Tensor | None, table: Tensor | None, out: Tensor, lse: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv, dbias, None for keep, dtable, as `ctx` needs them; differentiable where the graph is being recorded."""
    if dout is None:
        if dlse is None:
            return (None,) * 6
        dout = torch.zeros_like(out)
    need = ctx.needs_input_grad
    wanted = (need[0], need[1], need[2], need[3], need[5])
    if torch.is_grad_enabled():
        dq, dk, dv, dbias, dtable = AttendBackward.apply(
            dout, dlse, q, k, v, bias, keep, table, out.detach(), lse.detach(), ctx.rules, wanted
        )
    else:
        dq, dk, dv, dbias, dtable = _first_order(dout, dlse, q, k, v, bias, keep, table, out, lse, ctx.rules, wanted)
    return dq, dk, dv, dbias, None, dtable


def _first_order(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None,
    table: Tensor | None, out: Tensor, lse: Tensor, rules: Rules, wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    options = rules.options(bias, keep, table)
    return _calls.backward(
        dout, dlse, q, k, v, out, lse, options, wanted[:3], bias if wanted[3] else None,
        None if not wanted[4] or table is None else tuple(table.shape),
    )  # fmt: skip


class AttendBackward(Function):
    """The gradients as a function of dout, q, k, v and bias; its backward is attention's double backward."""

    @staticmethod
    def forward(
        ctx: Any, dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None,
        table: Tensor | None, out: Tensor, lse: Tensor, rules: Rules, wanted: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        _save(ctx, rules, dout, dlse, q, k, v, bias, keep, table, out, lse)
        return _first_order(dout, dlse, q, k, v, bias, keep, table, out, lse, rules, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        dout, dlse, q, k, v, bias, keep, table, out, lse = ctx.saved_tensors
        if table is not None:
            raise NotImplementedError("[qkv.torch] gradients of gradients through a table of a position bias are not computed")
        if all(c is None for c in cotangents):
            return (None,) * 12
        gq, gk, gv, gdout, gbias, gdlse = _calls.double_backward(
            cotangents[:4], dout, dlse, q, k, v, out, lse, ctx.rules.options(bias, keep, table), bias
        )
        return gdout, gdlse, gq, gk, gv, gbias, None, None, None, None, None, None


class AttendWithWeights(Function):
    """(q, k, v, bias, keep, rules) -> (out, weights after dropout, of lse's type), both differentiable.

    A gradient that arrives at the weights is that of attention with the identity as values: weights = attention(q, k, 1).
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, rules: Rules
    ) -> tuple[Tensor, Tensor]:
        out, lse, weights = _calls.forward_with_weights(q, k, v, rules.options(bias, keep))
        _save(ctx, rules, q, k, v, bias, keep, out, weights, lse)
        return out, weights

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dweights: Tensor | None) -> tuple[Any, ...]:
        q, k, v, bias, keep, out, weights, lse = ctx.saved_tensors
        view = _Needs(ctx.rules, (*ctx.needs_input_grad[:5], False))
        total = list(_gradients(view, dout, None, q, k, v, bias, keep, None, out, lse))
        if dweights is not None:
            dweights, weights = dweights.to(q.dtype), weights.to(q.dtype)
            one = torch.eye(k.shape[2], dtype=k.dtype).expand(k.shape[0], k.shape[1], -1, -1)
            view = _Needs(ctx.rules, (*ctx.needs_input_grad[:2], False, *ctx.needs_input_grad[3:5], False))
            more = _gradients(view, dweights, None, q, k, one, bias, keep, None, weights, lse)
            total = [b if a is None else a if b is None else a + b for a, b in zip(total, more)]
        return (*total[:5], None)


class _Needs:
    """What _gradients reads of a ctx."""

    def __init__(self, rules: Rules, needs_input_grad: tuple[bool, ...]) -> None:
        self.rules, self.needs_input_grad = rules, needs_input_grad
