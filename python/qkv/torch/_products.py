"""y = x W^T + b on qkv's products, GELU and SiLU: memory in, memory out, and their derivative graphs (_graph.py).

x [M, K], weight [N, K], y [M, N] of one type, float32 or bfloat16, bias [N] float32. invariant: a row of y has the same bits for any
number of rows beside it.
"""

from typing import Any

import torch
from torch import Tensor

from .. import _nn
from . import _calls
from ._graph import Step


def as_memory(x: Tensor | None) -> Tensor | None:
    """Rows [M, N] as the kernels read them: copied where they overlap, as those of an expanded tensor or a sum's gradient."""
    x = _calls.as_memory(x)
    return x.contiguous() if x is not None and x.dim() == 2 and x.shape[0] > 1 and x.stride(0) < x.shape[1] else x


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> tuple[Tensor]:
    y = x.new_empty((x.shape[0], weight.shape[0]))
    _nn.linear_forward(invariant, as_memory(x), as_memory(weight), as_memory(bias), y)
    return (y,)


def _backward(saved: Any, _: Any, needs: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = saved
    dx = torch.empty(x.shape, dtype=x.dtype) if needs[0] else None
    dweight = torch.zeros(weight.shape, dtype=torch.float32) if needs[1] or needs[2] else None
    dbias = torch.zeros(bias.shape, dtype=bias.dtype) if bias is not None and needs[2] else None
    _nn.linear_backward(as_memory(x), as_memory(dy), as_memory(weight), dx, dweight, dbias)
    return dx, dweight.to(weight.dtype) if needs[1] and dweight is not None else None, dbias


_ONCE = "[qkv.transformers] optimize()'s layers are differentiated once, in reverse mode: got forward mode, or a gradient of a gradient"
_product_backward = Step(lambda dy, *saved: _backward(saved[:3], None, saved[3], dy), 4, _ONCE, _ONCE)
_product = Step(_forward, 3, lambda saved, _, needs, dy: _product_backward.eager(dy, *saved, needs), _ONCE)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> Tensor:
    """y [..., N] of x [..., K]; differentiable once."""
    rows = x.shape[:-1]
    (y,) = _product.eager(x.reshape(rows.numel(), x.shape[-1]), weight, bias, invariant)
    return y.reshape(*rows, weight.shape[0])


def _activation_forward(x: Tensor, silu: bool) -> tuple[Tensor]:
    y = torch.empty(x.shape, dtype=torch.float32)
    _nn.activation_forward(silu, as_memory(x), y)
    return (y,)


def _activation_backward(dy: Tensor, x: Tensor, silu: bool) -> tuple[Tensor]:
    dx = torch.empty(x.shape, dtype=torch.float32)
    _nn.activation_backward(silu, as_memory(x), as_memory(dy), dx)
    return (dx,)


_activation_gradient = Step(_activation_backward, 2, _ONCE, _ONCE)
_activation = Step(_activation_forward, 1, lambda saved, rest, _, dy: _activation_gradient.eager(dy, *saved, *rest), _ONCE)


def activation(x: Tensor, silu: bool) -> Tensor:
    """GELU, x Phi(x), or SiLU, x / (1 + e^-x), float32, any shape, each number by itself; differentiable once.

    GELU is off by up to 6 ulp for |x| < 1 (PyTorch 3), by one for x > 1 (PyTorch 10), by a few far below 0 (where PyTorch gives 0).
    """
    (y,) = _activation.eager(x.reshape(-1, x.shape[-1] if x.dim() and x.numel() else 1), silu)
    return y.view(x.shape)
