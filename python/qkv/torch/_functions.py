"""Attention in PyTorch's eager autograd: first derivatives, gradients of gradients, forward mode; AttendWithLse also under
torch.func. Not: torch.compile, and torch.func of what the operators of _operators.py express, which is faster there.

An autograd.Function around the kernels costs about half as much as a registered operator with a formula, so eager calls use
it. `rules` (a _calls.Rules) holds all that is not a tensor.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

from . import _calls
from ._calls import Rules

FORWARD_OVER_REVERSE = (
    "[qkv.torch] forward mode is not differentiated again, nor backward in forward mode: for second derivatives take backward "
    "twice, torch.func.jacrev(torch.func.grad(f)) or create_graph=True"
)
_functorch = torch._C._functorch.peek_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor


def _one_by_one(function: Any) -> Any:
    """A vmap rule: the function once per example, since `rules` may hold masks of whole batches."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        each = [
            function(
                *(_calls.inner_contiguous(x.select(d, n)) if isinstance(d, int) else x for x, d in zip(arguments, in_dims))
            )
            for n in range(info.batch_size)
        ]
        whole = tuple(None if results[0] is None else torch.stack(results) for results in zip(*each))
        return whole, tuple(None if x is None else 0 for x in whole)

    return rule


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
    """(q, k, v, bias, keep, table, rules) -> (out, lse), both differentiable; rules without dropout."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, table: Tensor | None, rules: Rules
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (_calls.inner_contiguous(x) for x in (q, k, v))
        return _calls.forward_with_lse(q, k, v, rules.options(bias, keep, table))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, rules = inputs
        _save(ctx, rules, *tensors, *output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        return _one_by_one(AttendWithLse.apply)(info, in_dims, *arguments)

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
    if forward_ad._current_level >= 0 or _functorch() is not None:
        ctx.save_for_forward(*tensors)
    ctx.rules = rules
    ctx.set_materialize_grads(False)


def _tangents(ctx: Any, tangents: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    q, k, v, bias, keep, table, _, lse = ctx.saved_tensors
    if tangents[5] is not None:
        raise NotImplementedError("[qkv.torch] forward mode does not differentiate a table of a position bias: use backward")
    arguments = (*tangents[:4], q, k, v, bias, keep, table, lse, ctx.rules)
    return AttendTangents.apply(*arguments) if _functorch() is not None else AttendTangents.forward(*arguments)


class Tangents(Function):
    """Results of forward mode, which are not differentiated again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)


class AttendTangents(Tangents):
    """(tq, tk, tv, tbias, q, k, v, bias, keep, table, lse, rules) -> (tout, tlse)."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        *tangents, q, k, v, bias, keep, table, lse, rules = arguments
        return _calls.jvp(q, k, v, lse, tuple(tangents), rules.options(bias, keep, table))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        return _one_by_one(AttendTangents.apply)(info, in_dims, *arguments)


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
    recorded = torch.is_grad_enabled() or _functorch() is not None
    function = AttendBackward.apply if recorded else _first_order
    results = out.detach(), lse.detach()
    arguments = (dout, dlse, q, k, v, bias, keep, table, *results, ctx.rules, wanted)
    if _is_batched(dout) or (dlse is not None and _is_batched(dlse)):
        dq, dk, dv, dbias, dtable = _unbatched(function, arguments)
    else:
        dq, dk, dv, dbias, dtable = function(*arguments)
    return dq, dk, dv, dbias, None, dtable


def _unbatched(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """function for autograd's batched gradients (is_grads_batched, jacobian(vectorize=True)): once per example. They come as
    PyTorch's older batched tensors, which only operators of its dispatcher may read."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    plain = [
        torch._remove_batch_dim(x, level, 0, 0) if isinstance(x, Tensor) and _is_batched(x) else x for x in arguments
    ]  # fmt: skip
    in_dims = [None if x is y else 0 for x, y in zip(arguments, plain)]
    count = next(x.shape[0] for x, d in zip(plain, in_dims) if d == 0)
    info = SimpleNamespace(batch_size=count)
    results, _ = _one_by_one(function)(info, tuple(in_dims), *plain)
    return tuple(None if x is None else torch._add_batch_dim(x, 0, level) for x in results)


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
    def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
        return _first_order(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, rules, _ = inputs
        _save(ctx, rules, *tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        return _one_by_one(AttendBackward.apply)(info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        dout, dlse, q, k, v, bias, keep, table, out, lse = ctx.saved_tensors
        if table is not None:
            raise NotImplementedError("[qkv.torch] gradients of gradients through a table of a position bias are not computed")
        if all(c is None for c in cotangents):
            return (None,) * 12
        arguments = (*cotangents[:4], dout, dlse, q, k, v, bias, keep, out, lse, ctx.rules)
        function = _second_order if _functorch() is None else AttendSecond.apply
        batched = any(c is not None and _is_batched(c) for c in cotangents[:4])
        gq, gk, gv, gdout, gbias, gdlse = _unbatched(function, arguments) if batched else function(*arguments)
        return gdout, gdlse, gq, gk, gv, gbias, None, None, None, None, None, None


def _second_order(*arguments: Any) -> tuple[Tensor | None, ...]:
    *cotangents, dout, dlse, q, k, v, bias, keep, out, lse, rules = arguments
    options = rules.options(bias, keep)
    return _calls.double_backward(tuple(cotangents), dout, dlse, q, k, v, out, lse, options, bias)


class AttendSecond(Function):
    """_second_order under torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
        return _second_order(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        return _one_by_one(AttendSecond.apply)(info, in_dims, *arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("[qkv.torch] third derivatives are not computed")


class AttendWithWeights(Function):
    """(q, k, v, bias, keep, rules) -> (out, weights after dropout, of lse's type), both differentiable.

    A gradient that arrives at the weights is that of attention with the identity as values: weights = attention(q, k, 1).
    """

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("[qkv.torch] forward mode is not computed where weights are wanted too: need_weights=False")

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
