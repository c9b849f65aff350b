"""qkv for PyTorch, on the CPU: attention that is differentiable, compiles, and can take the place of PyTorch's own.

    from qkv.torch import scaled_dot_product_attention, MultiheadAttention, flex_attention
    with qkv.torch.capture() as captures: model(x)  # every head of any model; captures.save("page.html")
    qkv.torch.enable()         # torch.nn.functional.scaled_dot_product_attention is qkv's on the CPU, until disable()

There are no kernels for other devices (enable() leaves those to PyTorch).
"""

from __future__ import annotations

from .._needs import need

need("qkv.torch", "torch")

import torch

if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    raise ImportError(f"qkv.torch needs PyTorch 2.10 or newer: got {torch.__version__}", name="torch")

from .flex import Relative, SoftCap, flex_attention, mask_of
from .latent import latent_attention
from .linear import (
    chunk_gated_delta_rule,
    chunk_kimi_delta_attention,
    fused_recurrent_gated_delta_rule,
    recurrent_kimi_delta_attention,
)
from ._capture import TorchCapture, capture
from .multihead_attention import MultiheadAttention
from .parallel import context_parallel, parallel_attention, sequence_positions
from .patch import disable, enable, is_enabled
from .sdpa import ArgumentError, scaled_dot_product_attention
from .varlen import AuxRequest, varlen_attn, varlen_attn_out

__all__ = [
    "ArgumentError",
    "AuxRequest",
    "MultiheadAttention",
    "Relative",
    "SoftCap",
    "TorchCapture",
    "capture",
    "chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "context_parallel",
    "disable",
    "enable",
    "flex_attention",
    "fused_recurrent_gated_delta_rule",
    "is_enabled",
    "latent_attention",
    "mask_of",
    "parallel_attention",
    "recurrent_kimi_delta_attention",
    "scaled_dot_product_attention",
    "sequence_positions",
    "varlen_attn",
    "varlen_attn_out",
]
