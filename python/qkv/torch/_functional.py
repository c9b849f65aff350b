"""Attention under torch.func (grad, vjp, vmap and their nestings): autograd.Functions in the form functorch wants, around the
operators. Not: eager autograd (_functions.py), torch.func.jvp (PyTorch raises an error; torch.autograd.forward_ad works).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from . import _operators


class FunctionalAttend(Function):
    """The arguments of qkv::attention -> (out, lse)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _operators.attention(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v, bias, keep, seed, *ctx.rules = inputs
        ctx.save_for_backward(q, k, v, bias, keep, seed, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        need = tensors[3] is not None and ctx.needs_input_grad[3]
        dq, dk, dv, dbias = FunctionalBackward.apply(dout, None, *tensors, *ctx.rules, need)
        return dq, dk, dv, dbias if need else None, *(None,) * 6


class FunctionalBackward(Function):
    """The arguments of qkv::attention_backward -> (dq, dk, dv, dbias)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _operators.attention_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dout, _, q, k, v, bias, keep, seed, out, lse, *rules, _ = inputs
        ctx.rules = rules
        ctx.save_for_backward(dout, q, k, v, bias, keep, seed, out, lse)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        dout, *rest = tensors
        gq, gk, gv, gdout, gbias, _ = _operators.attention_double_backward(*cotangents, dout, None, *rest, *ctx.rules)
        return gdout, None, gq, gk, gv, None if tensors[4] is None else gbias, *(None,) * 9
