"""Norms of rows in float32: flash_attn.ops.triton.layer_norm, with residual, dropout and scale, and mamba_ssm.ops.triton.layernorm_gated, of
rows or groups of their numbers, beside a gate.

    h = dropout(x rowscale) + dropout(x1) + residual        out = norm(h) weight + bias (zero_centered_weight: 1 + weight)
    out = norm(x) weight + bias, times silu(z)              norm_before_gate=False: norm(x silu(z)) weight + bias
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch._calls import require_shapes, sum_dtype
from ._needs import bound, require_cpu, require_real


def _normed(h: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centered: bool, rms: bool) -> Tensor:
    weight = (weight.float() if weight.dtype is not torch.float64 else weight) + (1.0 if centered else 0.0)
    bias = None if bias is None else bias.to(weight.dtype)
    if not rms:
        return F.layer_norm(h, h.shape[-1:], weight.to(h.dtype), None if bias is None else bias.to(h.dtype), eps)
    out = F.rms_norm(h, h.shape[-1:], weight.to(h.dtype), eps)
    return out if bias is None else out + bias


def _fits(package: str, function: str, x: Tensor, of_x: dict[str, Any], **of_width: Any) -> None:
    """Raises TypeError and ValueError unless all are real, those of_x have x's shape, the others its width."""
    row = " ".join((*"ABCEFGHIJ"[: x.dim() - 1], "D"))
    shapes = {"x": (x, row)} | {name: (t, row) for name, t in of_x.items()} | {name: (t, "D") for name, t in of_width.items()}
    require_real(package, function, **{name: t for name, (t, _) in shapes.items()})
    require_shapes(function, shapes)


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False, zero_centered_weight: bool = False,
    is_rms_norm: bool = False, return_dropout_mask: bool = False, out_dtype: Any = None, out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:  # fmt: skip
    """out, then out1 with weight1, then h with prenorm (of residual's type, or float32), then the masks of dropout where they are wanted."""
    require_cpu("flash_attn", x=x, weight=weight, residual=residual)
    bound("flash_attn", "layer_norm_fn", out=out, residual_out=residual_out, **{} if weight1 is not None else {"bias1 without weight1": bias1})
    _fits("flash_attn", "layer_norm_fn", x, {"residual": residual, "x1": x1}, weight=weight, bias=bias, weight1=weight1, bias1=bias1)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"[flash_attn of qkv.standins] layer_norm_fn: dropout_p must be from 0 to below 1: got {dropout_p}")
    if rowscale is not None and rowscale.shape != x.shape[:-1]:
        raise ValueError(f"[flash_attn of qkv.standins] layer_norm_fn: rowscale must be {list(x.shape[:-1])}: got {list(rowscale.shape)}")
    wide = torch.promote_types(x.dtype, torch.float32)
    masks = []

    def dropped(rows: Tensor) -> Tensor:
        if dropout_p <= 0:
            masks.append(None)
            return rows
        keep = torch.rand(rows.shape, dtype=torch.float32) >= dropout_p
        masks.append(keep)
        return rows * keep / (1 - dropout_p)

    h = x.to(wide) if rowscale is None else x.to(wide) * rowscale[..., None].to(wide)
    h = dropped(h)
    if x1 is not None:
        h = h + dropped(x1.to(wide))
    if residual is not None:
        h = h + residual.to(wide)
    kept = torch.float32 if residual is None and residual_in_fp32 else x.dtype if residual is None else residual.dtype
    to = x.dtype if out_dtype is None else out_dtype
    made = [_normed(h, weight, bias, eps, zero_centered_weight, is_rms_norm).to(to)]
    if weight1 is not None:
        made.append(_normed(h, weight1, bias1, eps, zero_centered_weight, is_rms_norm).to(to))
    if prenorm:
        made.append(h.to(kept))
    if return_dropout_mask:
        made += [masks[0], masks[1] if x1 is not None else None]
    return made[0] if len(made) == 1 else tuple(made)


def rms_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False, zero_centered_weight: bool = False,
    *rest: Any, **options: Any,
) -> Any:  # fmt: skip
    """layer_norm_fn without subtracting the mean. Zhang 2019 (arXiv:1910.07467)."""
    rows = (x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32, zero_centered_weight)
    return layer_norm_fn(*rows, True, *rest, **options)


def mamba_layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:  # fmt: skip
    """layer_norm_fn as mamba_ssm has it, without weights about zero."""
    rows = (x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32)
    return layer_norm_fn(*rows, False, is_rms_norm, return_dropout_mask)


def mamba_rms_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False, return_dropout_mask: bool = False,
) -> Any:  # fmt: skip
    """rms_norm_fn as mamba_ssm has it."""
    rows = (x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32)
    return layer_norm_fn(*rows, False, True, return_dropout_mask)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """flash_attn.ops.rms_norm's function."""
    return layer_norm_fn(x, weight, None, eps=epsilon, is_rms_norm=True)


class RMSNorm(torch.nn.Module):
    """rms_norm_fn with a weight of its own: flash_attn.ops.triton.layer_norm's."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, zero_centered_weight: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps, self.dropout_p, self.zero_centered_weight = eps, dropout_p, zero_centered_weight
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The weight that changes nothing."""
        torch.nn.init.constant_(self.weight, float(not self.zero_centered_weight))

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False) -> Any:
        """As rms_norm_fn."""
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, dropout_p=self.dropout_p if self.training else 0.0, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip


class PlainRMSNorm(RMSNorm):
    """flash_attn.ops.rms_norm's, of x alone."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__(hidden_size, eps, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """As rms_norm."""
        return rms_norm(x, self.weight, self.eps)


class MambaRMSNorm(RMSNorm):
    """mamba_ssm.ops.triton.layer_norm's."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, device: Any = None, dtype: Any = None) -> None:
        super().__init__(hidden_size, eps, dropout_p, device=device, dtype=dtype)


def gated_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, eps: float, group_size: int | None, norm_before_gate: bool, rms: bool
) -> Tensor:
    """In the type of sums, rounded once to x's."""
    require_cpu("mamba_ssm", x=x, weight=weight, bias=bias, z=z)
    _fits("mamba_ssm", "rmsnorm_fn" if rms else "layernorm_fn", x, {"z": z}, weight=weight, bias=bias)
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


class GatedRMSNorm(RMSNorm):
    """rmsnorm_fn with a weight of its own: Mamba-2's RMSNormGated."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None, norm_before_gate: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, eps, device=device, dtype=dtype)
        self.group_size, self.norm_before_gate = group_size, norm_before_gate

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """As rmsnorm_fn."""
        return gated_norm(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate, True)
