"""flash_attn.layers.rotary: rows turned by tables cos, sin [positions, R / 2], the first R of a head's numbers. Su 2021 (arXiv:2104.09864).

x is [B, T, H, D], or packed [total, H, D] with cu_seqlens; interleaved: neighbours are turned, otherwise the two halves. Where
offsets are a tensor, a token behind the tables' last position stays as it is, as there. Differentiable in x.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..torch._calls import offsets_of, require_shapes
from ._needs import require_cpu, require_integers


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [..., H, D] by cos, sin [..., 1, R / 2]; products in float32."""
    width = 2 * cos.shape[-1]
    if cos.shape != sin.shape or width > x.shape[-1]:
        raise ValueError(
            "[flash_attn of qkv.standins] cos and sin must be of one shape, of half as many numbers as are turned: got "
            f"{list(cos.shape)}, {list(sin.shape)} for x {list(x.shape)}"
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin, rows = cos.to(wide), sin.to(wide), x[..., :width].to(wide)
    a, b = (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, -1)
    made = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(made, -1).flatten(-2) if interleaved else torch.cat(made, -1)
    return torch.cat((out.to(x.dtype), x[..., width:]), -1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x [B, T, H, D] by cos, sin [T, R / 2]."""
    return _turned(x, cos[..., None, :], sin[..., None, :], interleaved)


@torch.compiler.disable
def _in_place(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """x after `change`. Autograd refuses that of a leaf: its memory is changed, and what comes back with the graph is a copy."""
    if not (torch.is_grad_enabled() and x.requires_grad and x.is_leaf):
        change(x)
        return x
    out = x.clone()
    change(out)
    x.detach().copy_(out)
    return out


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False, seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
) -> Tensor:  # fmt: skip
    """x turned to its positions; seqlen_offsets [B] or one number: the position of each sequence's first token. Tokens behind the last of
    cu_seqlens stay as they are."""
    offsets = seqlen_offsets if isinstance(seqlen_offsets, Tensor) else None
    require_cpu("flash_attn", x=x, cos=cos, sin=sin, cu_seqlens=cu_seqlens, seqlen_offsets=offsets)
    require_integers("flash_attn", "apply_rotary_emb", cu_seqlens=cu_seqlens, seqlen_offsets=offsets)
    shapes = {"x": (x, "B T H D" if cu_seqlens is None else "total H D"), "cos": (cos, "positions R/2"), "sin": (sin, "positions R/2")}
    of_sequences = {} if cu_seqlens is None else {"B": len(cu_seqlens) - 1}
    require_shapes("apply_rotary_emb", shapes | {"seqlen_offsets": (offsets, "B"), "cu_seqlens": (cu_seqlens, "N+1")}, **of_sequences)
    if cu_seqlens is not None:
        offsets_of("apply_rotary_emb", "cu_seqlens", cu_seqlens, x.shape[0])
    lengths = None if cu_seqlens is None else cu_seqlens.diff().long()
    longest = x.shape[1] if lengths is None else int(lengths.max()) if len(lengths) else 0
    if not isinstance(seqlen_offsets, Tensor) and longest + seqlen_offsets > cos.shape[0]:
        raise ValueError(
            f"[flash_attn of qkv.standins] cos and sin must have a row for each position: got {cos.shape[0]} rows, {longest} tokens from "
            f"position {seqlen_offsets}"
        )
    if lengths is None:
        at = torch.arange(x.shape[1])
        at = at + (seqlen_offsets[:, None] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets)
    else:
        assert cu_seqlens is not None
        first = cu_seqlens[:-1].long() - (seqlen_offsets.long() if isinstance(seqlen_offsets, Tensor) else seqlen_offsets)
        first = torch.repeat_interleave(first, lengths)
        at = torch.nn.functional.pad(torch.arange(len(first)) - first, (0, x.shape[0] - len(first)), value=-1)
    inside = (at >= 0) & (at < cos.shape[0])
    held = at.clamp(0, max(cos.shape[0] - 1, 0))
    cos, sin = cos[held], sin[held]
    if not bool(inside.all()):
        cos, sin = torch.where(inside[..., None], cos, 1), torch.where(inside[..., None], sin, 0)
    out = _turned(x, cos[..., None, :], sin[..., None, :], interleaved)
    return _in_place(x, lambda to: to.copy_(out)) if inplace else out


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    """apply_rotary_emb; conjugate turns back."""
    return apply_rotary_emb(x, cos, -sin if conjugate else sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Tensor | None = None, sin_k: Tensor | None = None, interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0, num_heads_q: int | None = None,
) -> Tensor:  # fmt: skip
    """q and k of qkv [B, T, 3, H, D], or [B, T, num_heads_q + 2 Hk, D], turned in place."""
    if qkv.dim() == 4 and num_heads_q is None:
        raise ValueError(f"[flash_attn of qkv.standins] num_heads_q must be given with qkv [B, T, heads, D]: got qkv {list(qkv.shape)}")

    def change(x: Tensor) -> None:
        middle = 0 if num_heads_q is None else (x.shape[2] + num_heads_q) // 2
        q, k = (x[:, :, 0], x[:, :, 1]) if x.dim() == 5 else (x[:, :, :num_heads_q], x[:, :, num_heads_q:middle])
        apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
        apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True, seqlen_offsets)

    return _in_place(qkv, change)


def apply_rotary_emb_kv_(kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0) -> Tensor:
    """k of kv [B, T, 2, H, D] turned in place."""
    return _in_place(kv, lambda x: apply_rotary_emb(x[:, :, 0], cos, sin, interleaved, True, seqlen_offsets))


class RotaryEmbedding(torch.nn.Module):
    """Tables of dim / 2 frequencies base^(-2 i / dim) and the functions above. Not: scale_base (xPos). forward takes its tables from
    _update_cos_sin_cache(positions), and that the frequencies of 16-bit modules from _compute_inv_freq(), as there: subclasses override
    them."""

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: Any = None, device: Any = None) -> None:
        super().__init__()
        if scale_base is not None:
            raise NotImplementedError(f"[flash_attn of qkv.standins] RotaryEmbedding: scale_base (xPos) is not computed: got {scale_base}")
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, None
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None  # [positions, dim / 2]
        self._sin_cached: Tensor | None = None
        self._cos_k_cached = self._sin_k_cached = None  # xPos's

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim)

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        # A module of 16 bits has rounded its frequencies: angles of late positions would be others.
        frequencies = self.inv_freq if self.inv_freq.dtype is torch.float32 else self._compute_inv_freq(device)
        angles = torch.outer(torch.arange(seqlen, dtype=torch.float32, device=device), frequencies)
        self._cos_cached, self._sin_cached, self._seq_len_cached = angles.cos().to(dtype), angles.sin().to(dtype), seqlen

    def forward(
        self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset: int | Tensor = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        """qkv with q and k turned, or (q, kv) of q [B, T, H, D] and kv [B, T, 2, H, D]; in place."""
        last = int(seqlen_offset.max()) if isinstance(seqlen_offset, Tensor) else seqlen_offset
        self._update_cos_sin_cache(max_seqlen or qkv.shape[1] + last, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None and sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, None, None, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
