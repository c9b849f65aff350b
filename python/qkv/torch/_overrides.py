"""Arguments whose class has a say in what a call means: PyTorch's __torch_function__ protocol. The masks of torch.nn.attention.bias
are understood; a TorchFunctionMode, and objects that are no tensors (torch.fx's proxies), are asked as PyTorch's functions ask them;
other classes are refused: what lies in their memory need not be what they mean.
"""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ._calls import ArgumentError

#: Whether any argument has a __torch_function__ of its own, or a TorchFunctionMode is active.
any_override = has_torch_function_variadic
# The __torch_function__ of classes whose tensors are what their memory holds: Tensor's own, or none (Parameter, FakeTensor).
_plain = (Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)  # type: ignore[attr-defined]


def is_causal_bias(x: Any) -> bool:
    """Whether x is of torch.nn.attention.bias, which is not imported here because that takes a second."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(x, module.CausalBias)


def alignment_of(bias: Any, q_len: int, kv_len: int) -> bool | str:
    """True (top left) or "bottom_right", for attention of q_len queries on kv_len keys. ArgumentError if made for others."""
    if bias.variant.name == "UPPER_LEFT":
        return True  # as PyTorch: whatever the lengths
    if (bias.seq_len_q, bias.seq_len_kv) != (q_len, kv_len):
        raise ArgumentError(
            f"[scaled_dot_product_attention] attn_mask must be causal_lower_right({q_len}, {kv_len}): got one of ({bias.seq_len_q}, "
            f"{bias.seq_len_kv})"
        )
    return "bottom_right"


def asked(function: Any, tensors: dict[str, Any], *others: Any, **options: Any) -> tuple[bool, Any]:
    """(True, result) where somebody else computes function(*tensors, *others, **options); (False, None) where nobody does.

    Raises TypeError for a tensor of a class with a meaning of its own, except an attn_mask of torch.nn.attention.bias.
    """
    duck = any(x is not None and not isinstance(x, Tensor) for x in tensors.values())
    if duck or (not torch.compiler.is_compiling() and torch._C._is_torch_function_mode_enabled()):
        given = tuple(tensors.values())
        return True, handle_torch_function(function, given, *given, *others, **options)
    require_plain(function.__name__, {n: x for n, x in tensors.items() if n != "attn_mask" or not is_causal_bias(x)})
    return False, None


def require_plain(function: str, tensors: dict[str, Any]) -> None:
    """Raises TypeError for a tensor of a class with a meaning of its own."""
    for name, x in tensors.items():
        own = getattr(type(x), "__torch_function__", None)  # of what is no tensor None: refused where tensors are asked for
        if own is not None and getattr(own, "__func__", own) not in _plain:
            raise TypeError(
                f"[{function}] {name} must be a plain tensor: got {type(x).__name__}, whose __torch_function__ may mean something "
                "else than its memory holds; where the memory is meant: x.as_subclass(torch.Tensor); "
                "torch.nn.functional.scaled_dot_product_attention asks the class"
            )
