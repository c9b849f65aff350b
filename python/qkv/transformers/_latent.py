"""Latent attention (DeepSeek V2 and V3, and every model with their expand_kv): between a layer's cache and its attention stand c and
r of each token alone, and the attention takes the form with fewer operations. Not: training, which materialises keys and values as
the models do; where the method is replaced (_modelling.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..torch.latent import cheaper_form, latent_attention
from ..torch.sdpa import direct
from ._masks import ModelMask
from ._packing import observer

#: The name under which attention_forward is registered.
NAME = "qkv"


class LatentKeys:
    """The keys and values of all heads that nobody has computed yet: c [B, 1, Tk, R] and r [B, 1, Tk, Dr] of a layer."""

    def __init__(self, layer: Any, latent: Tensor, rope: Tensor, expand: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.layer, self.latent, self.rope, self._expand = layer, latent, rope, expand
        width = layer.qk_nope_head_dim + layer.qk_rope_head_dim
        self.shape = (latent.shape[0], layer.num_heads, latent.shape[2], width)  # of the keys

    def expanded(self) -> tuple[Tensor, Tensor]:
        """Keys [B, H, Tk, Dn + Dr] and values [B, H, Tk, Dv]."""
        return self._expand(self.layer, self.latent, self.rope)

    def absorbs(self, q_len: int) -> bool:
        """Whether q_len queries take fewer operations on c itself."""
        at = self.layer
        sizes = (at.kv_lora_rank, at.qk_nope_head_dim, at.qk_rope_head_dim, at.v_head_dim)
        return cheaper_form(q_len, self.latent.shape[2], *sizes) == "absorbed"

    def attend(self, query: Tensor, mask: ModelMask | Tensor | None, indices: Tensor | None, scale: float | None) -> Tensor:
        """out [B, H, Tq, Dv], absorbed. indices [B, Tq, n]: the keys of each query."""
        latent, rope = self.latent[:, 0], self.rope[:, 0]
        if isinstance(mask, ModelMask):
            mask.covers(query.shape[2], latent.shape[1])
            mask = mask.to_dense()
        keep = None if mask is None else mask[..., : latent.shape[1]]
        listed = None if indices is None else listed_keys(indices, latent.shape[1])
        if indices is None or listed is None or bool(listed.all()):
            pass
        elif query.shape[2] == 1 and bool((listed.sum(-1) == indices.shape[2]).all()):  # each once: only what is listed is read
            at = indices[:, 0].long()
            latent, rope = (torch.stack([x[i] for x, i in zip(rows, at)]) for rows in (latent, rope))
            keep = None if keep is None else keep.expand(len(at), -1, 1, -1).gather(3, at[:, None, None].expand(-1, keep.shape[1], 1, -1))
        else:
            floats = keep is not None and keep.dtype != torch.bool  # added to scores
            keep = listed if keep is None else keep.masked_fill(~listed, -torch.inf) if floats else keep & listed
        if keep is not None and keep.dtype == torch.bool and bool(keep.all()):
            keep = None
        return latent_attention(query, latent, rope, self.layer.kv_b_proj.weight, keep, scale=scale, form="absorbed")


def listed_keys(indices: Tensor, kv_len: int) -> Tensor:
    """bool [B, 1, Tq, Tk], True = in indices [B, Tq, n], -1 for none."""
    if bool(((indices < -1) | (indices >= kv_len)).any()):
        raise ValueError(f"[qkv.transformers] indices must name keys from 0 to below {kv_len}, or -1 for none: got {indices.unique().tolist()}")
    keep = torch.zeros(*indices.shape[:2], kv_len + 1, dtype=torch.bool)
    return keep.scatter_(2, torch.where(indices < 0, kv_len, indices.long()), True)[:, None, :, :kv_len]


def expand_later(original: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """expand_kv of a model whose attention is ours: computes nothing yet."""

    @functools.wraps(original)
    def replaced(self: nn.Module, kv_nope: Tensor, k_rot: Tensor) -> Any:
        linear = self.kv_b_proj
        differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in (kv_nope, k_rot, linear.weight))
        if (
            self.config._attn_implementation == NAME
            and kv_nope.is_cpu
            and not differentiates
            and direct(kv_nope, k_rot, linear.weight)
            and type(linear) is nn.Linear
            and linear.bias is None
            and not linear._forward_hooks  # nor whatever else changes what the layer computes: only its weight is read
            and not linear._forward_pre_hooks
            and "forward" not in vars(linear)
            and observer.get() is None
        ):
            keys = LatentKeys(self, kv_nope, k_rot, original)
            return keys, keys
        return original(self, kv_nope, k_rot)

    return replaced
