"""Linear layers of a model on qkv's product instead of PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..torch._calls import inner_contiguous
from ..torch._products import linear
from ..torch.sdpa import direct

_FLOATS = (torch.float32, torch.bfloat16)


class Linear(nn.Linear):
    """nn.Linear with the same parameters. Other types than float32 and bfloat16, autocast, other devices and what PyTorch traces instead
    of running stay PyTorch's."""

    invariant = True

    def forward(self, x: Tensor) -> Tensor:
        """y [..., out_features] of x [..., in_features]."""
        fits = x.is_cpu and x.dtype in _FLOATS and x.dtype is self.weight.dtype and not torch.is_autocast_enabled("cpu")
        if not fits or not direct(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        bias = self.bias if self.bias is None or self.bias.dtype is torch.float32 else self.bias.float()
        return linear(inner_contiguous(x), self.weight, bias, self.invariant)


class FastLinear(Linear):
    """The same where a row's bits may depend on how many rows there are."""

    invariant = False


def _swap(model: nn.Module, bits: str) -> list[nn.Module]:
    """PyTorch's layers, which become qkv's; parameters, hooks and names stay."""
    if bits not in ("invariant", "fast"):
        raise ValueError(f'[qkv.transformers] bits must be "invariant" or "fast": got {bits!r}')
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    for layer in layers:
        layer.__class__ = Linear if bits == "invariant" else FastLinear
    return layers


def optimize(model: nn.Module, *, bits: str = "invariant") -> nn.Module:
    """Lets every nn.Linear inside `model` compute with qkv's product, from now on; returns `model`.

        qkv.transformers.optimize(qkv.transformers.unpad(model))

    float32 and bfloat16, forward and backward; nothing is quantised, and parameters stay where they are. bits: "invariant": a row of the
    output has the same bits for any number of rows beside it, so that with :func:`unpad` a text's embedding is the same alone and in any
    batch; one row alone (a decoder's step) takes about three times as long as with "fast", which promises it not. A second call does no
    harm; :func:`restore` undoes it.
    """
    _swap(model, bits)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes :func:`optimize`; returns `model`."""
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.__class__ = nn.Linear
    return model


@contextlib.contextmanager
def optimized(model: nn.Module, *, bits: str = "invariant") -> Iterator[nn.Module]:
    """:func:`optimize` within the block; layers that were so before stay so."""
    layers = _swap(model, bits)
    try:
        yield model
    finally:
        for layer in layers:
            layer.__class__ = nn.Linear
