"""softmax(QK^T * scale + mask) V with the arguments of torch.nn.functional.scaled_dot_product_attention."""

import torch


def scaled_dot_product_attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = torch.einsum("...id,...jd->...ij", query, key) * factor
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return scores.softmax(-1) @ value
