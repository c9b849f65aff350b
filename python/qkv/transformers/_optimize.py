"""Linear layers, GELU and SiLU of a model on qkv's kernels instead of PyTorch's."""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation, SiLUActivation

from ..torch._calls import inner_contiguous
from ..torch._products import activation, linear
from ..torch.sdpa import direct

_FLOATS = (torch.float32, torch.bfloat16)


def _dense(*tensors: Tensor) -> bool:
    """Whether all lie in the CPU's memory as they are, nothing traces them, and autocast does not ask for other types."""
    return direct(*tensors) and not torch.is_autocast_enabled("cpu") and all(x.is_cpu and x.layout is torch.strided for x in tensors)


class Own:
    """A layer of PyTorch's that computes with qkv's kernels. Other types than its own, autocast, other devices, sparse tensors and what
    PyTorch traces instead of running stay PyTorch's."""


class Linear(Own, nn.Linear):
    """nn.Linear with the same parameters, in float32 and bfloat16."""

    invariant = True

    def forward(self, input: Tensor) -> Tensor:
        """y [..., out_features] of input [..., in_features]."""
        x, weight = input, self.weight
        if not _dense(x, weight) or not weight.numel() or x.dtype not in _FLOATS or x.dtype is not weight.dtype:
            return F.linear(x, weight, self.bias)
        bias = self.bias if self.bias is None or self.bias.dtype is torch.float32 else self.bias.float()
        return linear(inner_contiguous(x), weight, bias, self.invariant)


class FastLinear(Linear):
    """The same where a row's bits may depend on how many rows there are."""

    invariant = False


class OwnActivation(Own):
    """An activation in float32, each number by itself: PyTorch's vectors and the rest behind them differ in their bits."""

    silu = False

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        exact = getattr(self, "approximate", "none") == "none" and not getattr(self, "inplace", False)
        if not exact or not _dense(input) or input.dtype is not torch.float32:
            return super().forward(input)  # type: ignore[misc, no-any-return]
        return activation(input, self.silu)


class Gelu(OwnActivation, nn.GELU):
    """nn.GELU; its tanh form stays PyTorch's."""


class ModelGelu(OwnActivation, GELUActivation):
    """transformers' "gelu"."""


class Silu(OwnActivation, nn.SiLU):
    """nn.SiLU; in place it stays PyTorch's."""

    silu = True


class ModelSilu(OwnActivation, SiLUActivation):
    """transformers' "silu"."""

    silu = True


_PYTORCHS: dict[type[nn.Module], type[nn.Module]] = {
    Linear: nn.Linear, FastLinear: nn.Linear, Gelu: nn.GELU, ModelGelu: GELUActivation, Silu: nn.SiLU, ModelSilu: SiLUActivation,
}  # fmt: skip


def _swap(model: nn.Module, bits: str) -> list[tuple[nn.Module, type[nn.Module]]]:
    """PyTorch's layers become qkv's, or those of other bits; parameters, hooks and names stay. The layers, and what they were."""
    if bits not in ("invariant", "fast"):
        raise ValueError(f'[qkv.transformers] bits must be "invariant" or "fast": got {bits!r}')
    own = {original: cls for cls, original in _PYTORCHS.items() if cls not in (Linear, FastLinear)}
    own[nn.Linear] = own[Linear] = own[FastLinear] = Linear if bits == "invariant" else FastLinear
    layers = [(layer, type(layer)) for layer in model.modules() if type(layer) in own]
    for layer, cls in layers:
        layer.__class__ = own[cls]
    return layers


def optimize(model: nn.Module, *, bits: str = "invariant") -> nn.Module:
    """Lets every nn.Linear, exact GELU and SiLU inside `model` compute with qkv's kernels, from now on; returns `model`.

        qkv.transformers.optimize(qkv.transformers.unpad(model))

    float32 and bfloat16 (activations float32 alone), forward and backward; nothing is quantised, and parameters stay where they are. GELU
    loses PyTorch's error of up to 1.2e-6. bits: "invariant": a row of the output has the same bits for any number of rows beside it, so
    that with :func:`unpad` a text's embedding is the same alone and in any batch; one row alone (a decoder's step) takes about three
    times as long as with "fast", which promises it not. A second call sets the bits anew; :func:`restore` undoes it.
    """
    _swap(model, bits)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes :func:`optimize`; returns `model`."""
    for layer in model.modules():
        base = type(layer).__bases__[0]
        if type(layer) in _PYTORCHS:
            layer.__class__ = _PYTORCHS[type(layer)]
        elif base in _PYTORCHS and nn.utils.parametrize.is_parametrized(layer):  # whose class is this layer's own
            type(layer).__bases__ = (_PYTORCHS[base],)
    return model


@contextlib.contextmanager
def optimized(model: nn.Module, *, bits: str = "invariant") -> Iterator[nn.Module]:
    """:func:`optimize` within the block; layers that were so before stay so."""
    layers = _swap(model, bits)
    try:
        yield model
    finally:
        for layer, cls in layers:
            if type(layer) in _PYTORCHS:  # not what a parametrisation has made of it
                layer.__class__ = cls
