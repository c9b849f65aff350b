"""Attention under torch.func (grad, vjp, vmap and their nestings): autograd.Functions in the form functorch wants, around the
operators. Not: eager autograd (_functions.py; packed sequences: the operators themselves), torch.func.jvp of attention (PyTorch
raises an error; torch.autograd.forward_ad works).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from . import _operators, _varlen_operators
from ._varlen_calls import PACKED, Rules

FORWARD_OVER_REVERSE = (
    "[qkv.torch] forward mode is not differentiated again, nor backward in forward mode: for second derivatives take backward "
    "twice, torch.func.jacrev(torch.func.grad(f)) or create_graph=True"
)


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

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        gq, gk, gv, gdout, gdlse = _varlen_operators.attention_double_backward(*cotangents, *ctx.saved_tensors, *ctx.rules)
        return gdout, gdlse, gq, gk, gv, *(None,) * (PACKED - 1 + len(Rules._fields))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)


class PackedTangents(Function):
    """The arguments of qkv::varlen_attention_jvp -> (tout, tlse)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _varlen_operators.attention_jvp(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FORWARD_OVER_REVERSE)
