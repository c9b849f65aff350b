"""qkv in the place of torch.nn.functional.scaled_dot_product_attention, for tensors on the CPU; undone by disable().

    qkv.torch.enable()                  # until qkv.torch.disable()
    with qkv.torch.enable(): ...        # until the end of the block

nn.MultiheadAttention(need_weights=False), nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, diffusers and whatever else
looks the function up in torch.nn.functional run on qkv's kernels then. PyTorch's fused inference path of nn.TransformerEncoder
layers, which passes by the function, is switched off meanwhile. Not: names that were imported before (from torch.nn.functional
import scaled_dot_product_attention), other devices, nested tensors, Tensor subclasses: those stay PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .sdpa import _FLOATS, _PLAIN, scaled_dot_product_attention

__all__ = ["disable", "enable", "is_enabled"]

_pytorchs = F.scaled_dot_product_attention
_fast_path_was: list[bool] = []  # one entry while enabled


def _patched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """qkv.torch.scaled_dot_product_attention where it computes what is asked, else PyTorch's."""
    if _is_ours(query) and _is_ours(key) and _is_ours(value) and query.shape[-1] and value.shape[-1]:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return _pytorchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _is_ours(x: Any) -> bool:
    # Under torch.compile types are those of the tensors that the trace stands for.
    return type(x) in _PLAIN and x is not None and x.is_cpu and not x.is_nested and x.dtype in _FLOATS


class _Enabled:
    """What enable() returns: a context manager that disables at its end."""

    def __enter__(self) -> _Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        disable()


def enable() -> _Enabled:
    """Puts qkv in the place of torch.nn.functional.scaled_dot_product_attention. Twice is once."""
    if not is_enabled():
        _fast_path_was.append(torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        F.scaled_dot_product_attention = _patched  # type: ignore[assignment]
    return _Enabled()


def disable() -> None:
    """PyTorch's function again, and its fused inference path as it was. Without effect where enable() was not called."""
    if is_enabled():
        F.scaled_dot_product_attention = _pytorchs
        torch.backends.mha.set_fastpath_enabled(_fast_path_was.pop())


def is_enabled() -> bool:
    """Whether qkv stands in PyTorch's place."""
    return F.scaled_dot_product_attention is _patched
