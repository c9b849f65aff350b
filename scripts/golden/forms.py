"""The forms of attention in PyTorch, written for this project: the reference of the C++ layers.

Each form is a module whose parameters carry the names of docs/articles.md's forms. `forward(x, mask, weight_factors,
output_factors)` gives (out, weights): weights [B, H, T, T] after softmax and before dropout. Dropout is not drawn here: the
factors (0 or 1/(1-p)) are passed in. A mask is 1 where a query may attend, with any axes that broadcast to [B, H, T, T].
"""

import math

import torch
from torch import nn


def scaled_dot_product(q, k, v, keep=None, fill=0.0, factors=None):
    """q, k, v [B, H, T, D] -> out [B, H, T, D], weights [B, H, T, T]."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    if keep is not None:
        scores = torch.where(keep, scores, torch.full_like(scores, fill))
    weights = scores.softmax(dim=-1)
    applied = weights if factors is None else weights * factors
    return torch.einsum("bhij,bhjd->bhid", applied, v), weights


class Form(nn.Module):
    """Projection, attention, projection. A subclass defines how q, k, v are made and the name of the last projection."""

    output_name = None

    def __init__(self, heads=1, fill=-1e20, causal=False):
        super().__init__()
        self.heads, self.fill, self.causal = heads, fill, causal

    def project(self, x):
        raise NotImplementedError

    def keep(self, mask, length):
        causal = torch.ones(length, length, dtype=torch.bool).tril() if self.causal else None
        if mask is None:
            return causal
        return mask.bool() if causal is None else mask.bool() & causal

    def forward(self, x, mask=None, weight_factors=None, output_factors=None):
        batch, length, _ = x.shape
        q, k, v = (t.unflatten(-1, (self.heads, -1)).movedim(2, 1) for t in self.project(x))  # [B, H, T, D]
        out, weights = scaled_dot_product(q, k, v, self.keep(mask, length), self.fill, weight_factors)
        out = out.movedim(1, 2).reshape(batch, length, -1)  # [B, T, H D]
        if self.output_name is not None:
            out = getattr(self, self.output_name)(out)
        return (out if output_factors is None else out * output_factors), weights


class Separate(Form):
    """Three projections with the given names, and an output projection if one is named."""

    def __init__(self, embed_dim, names, output_name=None, width=None, bias=True, **kwargs):
        super().__init__(**kwargs)
        self.names, self.output_name, self.width = names, output_name, width or embed_dim
        for name in names:
            self.add_module(name, nn.Linear(embed_dim, self.width, bias=bias))
        if output_name is not None:
            self.add_module(output_name, nn.Linear(self.width, embed_dim, bias=bias))

    def project(self, x):
        return [getattr(self, name)(x) for name in self.names]


class Merged(Form):
    """One projection `proj` of [3E, E], rows in the order q, k, v."""

    def __init__(self, embed_dim, output=True, **kwargs):
        super().__init__(**kwargs)
        self.proj = nn.Linear(embed_dim, 3 * embed_dim)
        if output:
            self.output_name = "output_proj"
            self.output_proj = nn.Linear(embed_dim, embed_dim)

    def project(self, x):
        return self.proj(x).chunk(3, dim=-1)


class TorchMultiHead(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention itself; takes no mask and no factors here."""

    def forward(self, x, mask=None, weight_factors=None, output_factors=None):
        if mask is not None or weight_factors is not None or output_factors is not None:
            raise ValueError("TorchMultiHead is used without mask and factors")
        return super().forward(x, x, x, need_weights=True, average_attn_weights=False)


class AveragePooling(nn.Module):
    """Every token gets the mean of all."""

    def forward(self, x, mask=None, weight_factors=None, output_factors=None):
        batch, length, _ = x.shape
        weights = x.new_full((batch, 1, length, length), 1 / length)
        return weights[:, 0] @ x, weights


class FixedWeights(nn.Module):
    """Every token gets sum_j w[j] x[j] / sum(w): the weights do not depend on the words."""

    def __init__(self, length):
        super().__init__()
        self.w = nn.Parameter(torch.ones(length))

    def forward(self, x, mask=None, weight_factors=None, output_factors=None):
        batch, length, _ = x.shape
        weights = (self.w / self.w.sum()).expand(batch, 1, length, length)
        return weights[:, 0] @ x, weights


LADDER = ("query_proj", "key_proj", "value_proj")
MULTI_HEAD_NAMES = {
    "o_proj": (("q_proj", "k_proj", "v_proj"), "o_proj"),
    "W_O": (("W_Q", "W_K", "W_V"), "W_O"),
    "out_proj": (("q_proj", "k_proj", "v_proj"), "out_proj"),
}


def make(layer, embed_dim, heads=1, fill=-1e20, causal=False, output=True, width=None, names="o_proj", length=None):
    """A form by its name in `qkv layer`."""
    shared = {"fill": fill, "causal": causal}
    merged = lambda: Merged(embed_dim, output=output, **shared)
    separate = lambda names, *more, **options: Separate(embed_dim, names, *more, **shared, **options)
    makers = {
        "v1": lambda: separate(LADDER),
        "v2": merged,
        "v3": merged,
        "v4": lambda: separate(LADDER, "output_proj"),
        "self-attention": lambda: separate(("W_Q", "W_K", "W_V"), width=width),
        "single-head": lambda: separate(("W_q", "W_k", "W_v"), "W_o", bias=False),
        "mha": lambda: TorchMultiHead(embed_dim, heads, batch_first=True)
        if names == "in_proj"
        else separate(*MULTI_HEAD_NAMES[names], heads=heads),
        "average": AveragePooling,
        "fixed-weights": lambda: FixedWeights(length),
    }
    return makers[layer]()
