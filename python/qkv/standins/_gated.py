"""mamba_ssm.ops.triton.layernorm_gated: norms of rows, or of groups of their numbers, beside a gate.

    out = norm(x) weight + bias, times silu(z)        norm_before_gate=False: norm(x silu(z)) weight + bias
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch._calls import sum_dtype
from ._needs import require_cpu


def gated_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, eps: float, group_size: int | None, norm_before_gate: bool, rms: bool
) -> Tensor:
    """In the type of sums, rounded once to x's."""
    require_cpu("mamba_ssm", x=x, weight=weight, bias=bias, z=z)
    rows = x.to(sum_dtype(x))
    gate = None if z is None else F.silu(z.to(rows.dtype))
    if gate is not None and not norm_before_gate:
        rows = rows * gate
    groups = rows if group_size is None else rows.unflatten(-1, (-1, group_size))
    norm = F.rms_norm if rms else F.layer_norm
    out = norm(groups, groups.shape[-1:], eps=eps).reshape(rows.shape) * weight.to(rows.dtype)
    out = out if bias is None else out + bias.to(rows.dtype)
    return (out * gate if gate is not None and norm_before_gate else out).to(x.dtype)


def layernorm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None = None, eps: float = 1e-6, group_size: int | None = None,
    norm_before_gate: bool = True, is_rms_norm: bool = False,
) -> Tensor:  # fmt: skip
    """x, z [.., D], weight, bias [D]; group_size: numbers that are normed together, default D."""
    return gated_norm(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm)


def rmsnorm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any, **options: Any) -> Tensor:
    """layernorm_fn without subtracting the mean. Zhang 2019 (arXiv:1910.07467)."""
    return layernorm_fn(x, weight, bias, *arguments, **options, is_rms_norm=True)


class RMSNorm(torch.nn.Module):
    """rmsnorm_fn with a weight of its own: Mamba-2's RMSNormGated."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None, norm_before_gate: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """As rmsnorm_fn."""
        return gated_norm(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate, True)
