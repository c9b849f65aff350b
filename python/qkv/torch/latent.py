"""DeepSeek's latent attention on PyTorch tensors: keys and values are linear maps of one small vector a token. Not: projections,
norms and rotary positions around it, which stay the model's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from .._arrays import require_numbers
from ._calls import ArgumentError, autocast, inner_contiguous, require_floats, require_shapes, require_tensors
from ._overrides import any_override, require_plain
from .sdpa import attend, direct, split_mask

__all__ = ["latent_attention"]

_FORMS = ("auto", "absorbed", "materialised")


def latent_attention(
    query: Tensor,
    latent: Tensor,
    key_rope: Tensor,
    kv_b_weight: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    form: str = "auto",
) -> Tensor:
    """softmax(q [k | r]^T scale + mask) v, where k | v of a head are the head's rows of kv_b_weight times c. DeepSeek-V2, 2024
    (arXiv:2405.04434), eq. 9 to 19.

    Args:
        query: [B, H, Tq, Dn + Dr], the last Dr numbers of a row rotated.
        latent: c [B, Tk, R], behind its norm. key_rope: r [B, Tk, Dr], rotated, the same for all heads. Both are what a cache
            holds; where they are columns of one tensor [B, Tk, R + Dr], the absorbed form reads it in place.
        kv_b_weight: kv_b_proj.weight, [H (Dn + Dv), R].
        attn_mask: a tensor that broadcasts to [B, H, Tq, Tk]: bool (True = may attend) or float (added). Beside is_causal both must
            allow a key.
        dropout_p: as in :func:`scaled_dot_product_attention`.
        is_causal: the last query stands at the last key (bottom right), as behind a cache.
        scale: default 1/sqrt(Dn + Dr).
        form: "materialised" computes k and v of all heads first. "absorbed" maps queries and results instead and attends to c
            itself, one head of keys for all of q's: for few queries. "auto" takes the one with fewer operations.

    Returns:
        [B, H, Tq, Dv] of query's type.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for shapes that do not fit. TypeError: for element types.

    float32, float64, bfloat16 and float16; differentiable in all tensors, in both forms, under autocast and
    torch.compile(fullgraph=True).
    """
    if any_override(query, latent, key_rope, kv_b_weight, attn_mask):
        tensors = {"query": query, "latent": latent, "key_rope": key_rope, "kv_b_weight": kv_b_weight, "attn_mask": attn_mask}
        require_plain("latent_attention", tensors)
    if torch.is_autocast_enabled("cpu"):
        query, latent, key_rope, attn_mask = autocast(query, latent, key_rope, attn_mask)
        require_tensors("latent_attention", {"query": query, "kv_b_weight": kv_b_weight})
        kv_b_weight = kv_b_weight.to(query.dtype)
    require_numbers("latent_attention", scale=scale)
    heads, nope, wide = _sizes(query, latent, key_rope, kv_b_weight)
    if form not in _FORMS:
        raise ArgumentError(f"[latent_attention] form must be one of {', '.join(_FORMS)}: got {form!r}")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if form == "auto":
        form = cheaper_form(query.shape[2], latent.shape[1], latent.shape[2], nope, key_rope.shape[2], wide)
    rows = kv_b_weight.unflatten(0, (heads, nope + wide))  # [H, Dn + Dv, R]
    options = (attn_mask, dropout_p, "bottom_right" if is_causal else False, scale)
    if form == "materialised":
        kv = F.linear(latent, kv_b_weight).unflatten(2, (heads, nope + wide))  # [B, Tk, H, Dn + Dv]
        k_nope, v = kv.split((nope, wide), 3)
        k = torch.cat((k_nope, key_rope[:, :, None].expand(-1, -1, heads, -1)), 3)
        return _attend(query, k.transpose(1, 2), v.transpose(1, 2), *options)
    to_latent, from_latent = rows.split((nope, wide), 1)
    q = torch.cat((_each_head(query[..., :nope], to_latent), query[..., nope:]), 3)  # [B, H, Tq, R + Dr]
    k = _joined(latent, key_rope)[:, None]  # [B, 1, Tk, R + Dr]
    v = k[..., : latent.shape[2]]
    if query.shape[2] == 1:  # heads become queries of one head: they see the same keys, which tiles share among many
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.transpose(-3, -2)
        out = _attend(q.transpose(1, 2), k, v, mask, dropout_p, False, scale).transpose(1, 2)
    else:
        out = _attend(q, k, v, *options)
    return _each_head(out, from_latent.transpose(1, 2))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool | str, scale: float
) -> Tensor:  # fmt: skip
    bias, keep = (None, None) if mask is None else split_mask(mask, q, k)
    return attend(*map(inner_contiguous, (q, k, v)), bias, keep, dropout_p, is_causal, scale)


def _sizes(query: Tensor, latent: Tensor, key_rope: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """H, Dn, Dv."""
    tensors = {"query": query, "latent": latent, "key_rope": key_rope, "kv_b_weight": weight}
    require_floats("latent_attention", tensors, {})
    got = f"got {', '.join(f'{name} {list(x.shape)}' for name, x in tensors.items())}"
    shapes = {"query": (query, "B H Tq Dn+Dr"), "latent": (latent, "B Tk R"), "key_rope": (key_rope, "B Tk Dr")}
    heads = require_shapes("latent_attention", {**shapes, "kv_b_weight": (weight, "H(Dn+Dv) R")})["H"]
    nope = query.shape[3] - key_rope.shape[2]
    if nope < 1 or heads == 0 or weight.shape[0] % heads:
        raise ArgumentError(f"[latent_attention] kv_b_weight must be [H (Dn + Dv), R], query [.., Dn + Dr] with Dn > 0: {got}")
    wide = weight.shape[0] // heads - nope
    if wide < 1:
        raise ArgumentError(f"[latent_attention] kv_b_weight must have more than H Dn = {heads * nope} rows: {got}")
    return heads, nope, wide


def cheaper_form(q_len: int, kv_len: int, rank: int, nope: int, rope: int, wide: int) -> str:
    """By the operations of a head: absorbed, queries are mapped and attend wide keys; materialised, keys are mapped."""
    mapped = rank * (nope + wide)
    absorbed = q_len * mapped + q_len * kv_len * (2 * rank + rope)
    return "absorbed" if absorbed <= kv_len * mapped + q_len * kv_len * (nope + rope + wide) else "materialised"


def _each_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, H, T, n] times weight [H, n, m], head by head."""
    b, h, t, _ = x.shape
    return torch.bmm(x.transpose(0, 1).reshape(h, b * t, -1), weight).unflatten(1, (b, t)).transpose(0, 1)


def _joined(latent: Tensor, rope: Tensor) -> Tensor:
    """[c | r], [B, Tk, R + Dr]: without a copy where they are columns of one tensor already."""
    rank = latent.shape[2]
    if (
        direct(latent, rope)
        and forward_ad._current_level < 0  # one tensor's strides would not carry the other's tangent
        and not (torch.is_grad_enabled() and (latent.requires_grad or rope.requires_grad))
        and latent.dtype is rope.dtype
        and latent.stride() == rope.stride()
        and latent.stride(2) == 1
        and latent.stride(1) >= rank + rope.shape[2]
        and rope.data_ptr() == latent.data_ptr() + rank * latent.element_size()
        and rope.untyped_storage().data_ptr() == latent.untyped_storage().data_ptr()
    ):
        return latent.as_strided((*latent.shape[:2], rank + rope.shape[2]), latent.stride())
    return torch.cat((latent, rope), 2)
