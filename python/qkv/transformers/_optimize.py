"""Linear layers and GELU of a model on qkv's kernels instead of PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from ..torch._calls import inner_contiguous
from ..torch._products import gelu, linear
from ..torch.sdpa import direct

_FLOATS = (torch.float32, torch.bfloat16)


class Own:
    """A layer of PyTorch's that computes with qkv's kernels. Other types than its own, autocast, other devices and what PyTorch traces
    instead of running stay PyTorch's."""

    original: type[nn.Module]


class Linear(Own, nn.Linear):
    """nn.Linear with the same parameters, in float32 and bfloat16."""

    original = nn.Linear
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


class OwnGelu(Own):
    """Exact GELU in float32; its tanh form stays PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        """y = x Phi(x), any shape."""
        exact = getattr(self, "approximate", "none") == "none"
        fits = exact and x.is_cpu and x.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
        return gelu(x) if fits and direct(x) else super().forward(x)  # type: ignore[misc, no-any-return]


class Gelu(OwnGelu, nn.GELU):
    """nn.GELU."""

    original = nn.GELU


class ModelGelu(OwnGelu, GELUActivation):
    """transformers' "gelu"."""

    original = GELUActivation


_INVARIANT: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: Linear, nn.GELU: Gelu, GELUActivation: ModelGelu}


def _swap(model: nn.Module, bits: str) -> list[nn.Module]:
    """PyTorch's layers, which become qkv's; parameters, hooks and names stay."""
    if bits not in ("invariant", "fast"):
        raise ValueError(f'[qkv.transformers] bits must be "invariant" or "fast": got {bits!r}')
    own = _INVARIANT if bits == "invariant" else {**_INVARIANT, nn.Linear: FastLinear}
    layers = [layer for layer in model.modules() if type(layer) in own]
    for layer in layers:
        layer.__class__ = own[type(layer)]
    return layers


def _swap_back(layers: Iterable[nn.Module]) -> None:
    for layer in layers:
        if isinstance(layer, Own):
            layer.__class__ = layer.original


def optimize(model: nn.Module, *, bits: str = "invariant") -> nn.Module:
    """Lets every nn.Linear and exact GELU inside `model` compute with qkv's kernels, from now on; returns `model`.

        qkv.transformers.optimize(qkv.transformers.unpad(model))

    float32 and bfloat16 (GELU float32 alone), forward and backward; nothing is quantised, and parameters stay where they are. GELU is
    nearer to the exact one than PyTorch's, whose error function is off by 1.5e-7. bits: "invariant": a row of the output has the same
    bits for any number of rows beside it, so that with :func:`unpad` a text's embedding is the same alone and in any batch; one row
    alone (a decoder's step) takes about three times as long as with "fast", which promises it not. A second call does no harm;
    :func:`restore` undoes it.
    """
    _swap(model, bits)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes :func:`optimize`; returns `model`."""
    _swap_back(model.modules())
    return model


@contextlib.contextmanager
def optimized(model: nn.Module, *, bits: str = "invariant") -> Iterator[nn.Module]:
    """:func:`optimize` within the block; layers that were so before stay so."""
    layers = _swap(model, bits)
    try:
        yield model
    finally:
        _swap_back(layers)
