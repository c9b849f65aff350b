"""scaled_dot_product_attention on nested tensors of jagged layout (torch.nested, layout=torch.jagged): query [B, H, j, D], each
sequence of its own length, on the kernels of packed sequences. Not: padding; masks; other layouts.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ._calls import FLOATS, ArgumentError, autocast, draw_seed, inner_contiguous
from ._functional import attend_packed
from ._varlen_calls import Rules

_HOW = "[scaled_dot_product_attention] nested tensors: "


def is_jagged(x: Any) -> bool:
    """Whether x is a nested tensor of jagged layout; its module is not imported here."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module is not None and isinstance(x, module.NestedTensor)


def why_not(query: Any, key: Any, value: Any, attn_mask: Any) -> str | None:
    """What keeps qkv from computing a call with nested tensors; None where nothing does."""
    given = (query, key, value)
    if not all(is_jagged(x) for x in given):
        return "query, key and value must all be of layout torch.jagged"
    if attn_mask is not None:
        return "attn_mask is not supported, as in PyTorch; is_causal is"
    if any(x.dim() != 4 or x._ragged_idx != 2 for x in given):
        return "query, key and value must be [B, H, j, D], ragged on axis 2: nested [B, j, H, D].transpose(1, 2)"
    if any(x.lengths() is not None for x in given):
        return "sequences with holes between them (lengths=) are not supported: x.contiguous() packs them"
    if any(x.device.type != "cpu" for x in given):
        return "tensors must lie in the CPU's memory"
    if any(x.dtype not in FLOATS or x.dtype is not query.dtype for x in given):
        return "query, key and value must have one type, float32, float64, bfloat16 or float16"
    sizes = [tuple(x.values().shape) for x in given]  # [H, total, D]
    (heads, _, width), (kv_heads, kv_total, kv_width), (v_heads, v_total, v_width) = sizes
    if width != kv_width or kv_heads != v_heads or not width or not v_width:
        return "query and key must have the same width, key and value the same heads, and no axis be empty"
    if kv_heads == 0 or heads % kv_heads:
        return "the heads of key must divide those of query"
    if len({x.shape[0] for x in given}) != 1:
        return "query, key and value must have the same number of sequences"
    if key.shape[2] != value.shape[2] and (kv_total != v_total or not torch.equal(key.offsets(), value.offsets())):
        return "key and value must have the same lengths"
    return None


def jagged_attention(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    """Attention of each sequence alone; is_causal is aligned at the top left. Returns [B, Hq, j, Dv], j that of query.

    Raises:
        ArgumentError: for what :func:`why_not` names, or grouped heads without enable_gqa.
    """
    reason = why_not(query, key, value, attn_mask)
    if reason is None and not enable_gqa and query.shape[1] != key.shape[1]:
        reason = "query and key must have the same number of heads (grouped heads: enable_gqa=True)"
    if reason is not None:
        shapes = ", ".join(f"{type(x).__name__} {list(x.shape)}" for x in (query, key, value))
        raise ArgumentError(f"{_HOW}{reason}: got {shapes}")
    q, k, v = (x.values().transpose(0, 1) for x in (query, key, value))
    if torch.is_autocast_enabled("cpu"):
        q, k, v, _ = autocast(q, k, v, None)
    q, k, v = (inner_contiguous(x) for x in (q, k, v))
    window = (-1, 0) if is_causal else (-1, -1)
    rules = Rules(q.shape[0], k.shape[0], *window, bottom_right=False, scale=scale, dropout_p=float(dropout_p))
    seed = draw_seed() if dropout_p else None
    out, _ = attend_packed(q, k, v, query.offsets(), key.offsets(), None, None, seed, *rules)
    longest = {"min_seqlen": query._maybe_min_seqlen, "max_seqlen": query._maybe_max_seqlen}
    return torch.nested.nested_tensor_from_jagged(out, query.offsets(), **longest).transpose(1, 2)
