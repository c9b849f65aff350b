"""y = x W^T + b on qkv's products, and GELU: memory in, memory out, and their derivative graphs (_graph.py).

x [M, K], weight [N, K], y [M, N] of one type, float32 or bfloat16, bias [N] float32. invariant: a row of y has the same bits for any
number of rows beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _nn
from ._calls import inner_contiguous
from ._graph import Step


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> tuple[Tensor]:
    y = x.new_empty((x.shape[0], weight.shape[0]))
    _nn.linear_forward(invariant, inner_contiguous(x), inner_contiguous(weight), bias, y)
    return (y,)


def _backward(saved: Any, _: Any, needs: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = saved
    dx = torch.empty(x.shape, dtype=x.dtype) if needs[0] else None
    dweight = torch.zeros(weight.shape, dtype=torch.float32) if needs[1] or needs[2] else None
    dbias = torch.zeros_like(bias) if bias is not None and needs[2] else None
    _nn.linear_backward(inner_contiguous(x), inner_contiguous(dy), inner_contiguous(weight), dx, dweight, dbias)
    return dx, dweight.to(weight.dtype) if needs[1] and dweight is not None else None, dbias


_ONCE = "[qkv.transformers] optimize()'s layers are differentiated once, in reverse mode: got forward mode, or a gradient of a gradient"
_product_backward = Step(lambda dy, *saved: _backward(saved[:3], None, saved[3], dy), 4, _ONCE, _ONCE)
_product = Step(_forward, 3, lambda saved, _, needs, dy: _product_backward.eager(dy, *saved, needs), _ONCE)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> Tensor:
    """y [..., N] of x [..., K]; differentiable once."""
    (y,) = _product.eager(x.reshape(-1, x.shape[-1]), weight, bias, invariant)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _gelu_forward(x: Tensor) -> tuple[Tensor]:
    y = torch.empty_like(x)
    _nn.gelu_forward(x, y)
    return (y,)


def _gelu_backward(dy: Tensor, x: Tensor) -> tuple[Tensor]:
    dx = torch.empty_like(x)
    _nn.gelu_backward(x, inner_contiguous(dy), dx)
    return (dx,)


_gelu_gradient = Step(_gelu_backward, 2, _ONCE, _ONCE)
_gelu = Step(_gelu_forward, 1, lambda saved, _, needs, dy: _gelu_gradient.eager(dy, *saved), _ONCE)


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), float32, any shape: within a rounding of itself and 2e-8, where PyTorch's is off by up to 1.2e-6; differentiable once."""
    (y,) = _gelu.eager(x.contiguous().view(-1, max(1, x.shape[-1] if x.dim() else 1)))
    return y.view(x.shape)
