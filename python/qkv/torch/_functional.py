"""Attention under torch.func (grad, vjp, jvp, vmap and their nestings): autograd.Functions in the form functorch wants, around the
operators. Not: eager autograd (_functions.py; packed sequences: the operators themselves).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from . import _operators, _varlen_operators
from ._functions import FORWARD_OVER_REVERSE, Tangents, _functorch
from ._varlen_calls import PACKED, Rules


class FunctionalAttend(Function):
    """The arguments of qkv::attention -> (out, lse); in forward mode too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _operators.attention(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, dropout_p, causal, scale, empty_row = inputs
        ctx.rules = dropout_p, causal, scale, empty_row
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        need = tensors[3] is not None and ctx.needs_input_grad[3]
        dq, dk, dv, dbias = FunctionalBackward.apply(dout, dlse, *tensors, *ctx.rules, need)
        return dq, dk, dv, dbias if need else None, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        *tensors, _, lse = ctx.saved_tensors
        return FunctionalTangents.apply(*tangents[:4], *tensors, lse, *ctx.rules)


class FunctionalBackward(Function):
    """The arguments of qkv::attention_backward -> (dq, dk, dv, dbias)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _operators.attention_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, dropout_p, causal, scale, empty_row, _ = inputs
        ctx.rules = dropout_p, causal, scale, empty_row
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        dout, dlse, *tensors = ctx.saved_tensors
        made = _operators.attention_double_backward(*cotangents, dout, dlse, *tensors, *ctx.rules)
        gq, gk, gv, gdout, gbias, gdlse = made
        return gdout, None if dlse is None else gdlse, gq, gk, gv, None if tensors[3] is None else gbias, *(None,) * 9

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)


class FunctionalTangents(Tangents):
    """The arguments of qkv::attention_jvp -> (tout, tlse)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _operators.attention_jvp(*args)


class PackedAttend(Function):
    """The arguments of qkv::varlen_attention -> (out, lse); in forward mode too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _varlen_operators.attention(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _varlen_operators.refuse_pages(inputs[6])
        ctx.rules = inputs[PACKED:]
        ctx.save_for_backward(*inputs[:PACKED], *output)
        ctx.save_for_forward(*inputs[:PACKED], *output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
        gradients = PackedBackward.apply(dout, dlse, *ctx.saved_tensors, *ctx.rules)
        return *gradients, *(None,) * (PACKED - 3 + len(Rules._fields))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        *tensors, _, lse = ctx.saved_tensors
        return PackedTangents.apply(*tangents[:3], *tensors, lse, *ctx.rules)


class PackedBackward(Function):
    """The arguments of qkv::varlen_attention_backward -> (dq, dk, dv)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _varlen_operators.attention_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rules = inputs[PACKED + 4 :]
        ctx.save_for_backward(*inputs[: PACKED + 4])
        ctx.save_for_forward(*inputs[: PACKED + 4])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        gq, gk, gv, gdout, gdlse = _varlen_operators.attention_double_backward(*cotangents, *ctx.saved_tensors, *ctx.rules)
        return gdout, gdlse, gq, gk, gv, *(None,) * (PACKED - 1 + len(Rules._fields))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)


class PackedTangents(Tangents):
    """The arguments of qkv::varlen_attention_jvp -> (tout, tlse)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _varlen_operators.attention_jvp(*args)


def attend_packed(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The arguments of qkv::varlen_attention -> out, lse, by what differentiates or batches at the moment."""
    functional = not torch.compiler.is_compiling() and (_functorch() is not None or forward_ad._current_level >= 0)
    return (PackedAttend.apply if functional else _varlen_operators.attention)(*arguments)
