"""nn.MultiheadAttention on qkv's kernels: the same constructor, parameters, state_dict, initialisation and forward.

It differs from PyTorch's on purpose in this: dropout draws another pattern; with need_weights the output comes from the same
tiled kernels. Nested tensors and other devices go to PyTorch's own forward.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _calls
from ._calls import Rules, require_shapes
from ._graph import attend_with_weights, attention
from .sdpa import ArgumentError, attend, direct, draw_seed

__all__ = ["MultiheadAttention"]


def _fail(text: str) -> ArgumentError:
    return ArgumentError(f"[MultiheadAttention] {text}")


class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention. Vaswani 2017 (arXiv:1706.03762), section 3.2.2; parameters as torch.nn.MultiheadAttention has them.

    A subclass: isinstance checks and load_state_dict hold in both directions. :meth:`from_torch` takes over a module's
    parameters.
    """

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiheadAttention:
        """The same layer on qkv's kernels; parameters are shared, not copied. What either layer is given later (hooks, parameters, parts)
        is its own. TypeError: for another module."""
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"[MultiheadAttention.from_torch] module must be a torch.nn.MultiheadAttention: got {type(module).__name__}")
        made = cls.__new__(cls)
        made.__dict__ = {name: copy.copy(x) if isinstance(x, (dict, set)) else x for name, x in module.__dict__.items()}
        return made

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch.nn.MultiheadAttention.forward.

        Args:
            query, key, value: [L, N, E], [S, N, kdim], [S, N, vdim]; with batch_first [N, L, E], ...; or unbatched [L, E], ...
            key_padding_mask: [N, S] (unbatched [S]): bool, True = ignore the key, or float, added.
            need_weights: also return the weights, after dropout like PyTorch's. average_attn_weights: their mean over heads.
            attn_mask: [L, S] or [N * heads, L, S]: bool, True = may not attend, or float, added.
            is_causal: a hint that attn_mask is the causal one.

        Returns:
            output like query, and None or weights [N, L, S] ([N, heads, L, S]; unbatched without N). A row that may attend
            nothing is NaN with need_weights and 0 without, like PyTorch's.

        Raises:
            ArgumentError (a ValueError and RuntimeError): for shapes that do not fit.
        """
        if query.is_nested or not (query.is_cpu and self.out_proj.weight.is_cpu):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )  # fmt: skip
        if is_causal and attn_mask is None:
            raise _fail("the hint is_causal needs attn_mask: pass nn.Transformer.generate_square_subsequent_mask(L)")
        batched = self._check(query, key, value, key_padding_mask, attn_mask)
        q, k, v = self._project(query, key, value, batched)
        causal = is_causal and key_padding_mask is None and not need_weights
        bias, keep = self._masks(q, k, None if causal else attn_mask, key_padding_mask, batched)
        if self.bias_k is not None:
            k, v = _append(k, self._heads(self.bias_k)), _append(v, self._heads(self.bias_v))
            bias, keep = _pad(bias, 0.0), _pad(keep, True)
        if self.add_zero_attn:
            k, v = _append(k, k.new_zeros(1, 1, 1, 1)), _append(v, v.new_zeros(1, 1, 1, 1))
            bias, keep = _pad(bias, 0.0), _pad(keep, True)
        dropout = float(self.dropout) if self.training else 0.0
        weights = None
        if need_weights:
            out, weights = _attend_with_weights(q, k, v, bias, keep, dropout)
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            out = attend(q, k, v, bias, keep, dropout, causal)
        merged = out.permute(0, 2, 1, 3) if self.batch_first or not batched else out.permute(2, 0, 1, 3)
        merged = self.out_proj(merged.flatten(2))
        return (merged if batched else merged.squeeze(0)), weights

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> bool:
        """Whether the input is batched. Raises ArgumentError for shapes that do not fit."""
        batched = query.dim() == 3
        of = "N {} {}" if batched and self.batch_first else "{} N {}" if batched else "{} {}"
        shapes = {"query": (query, of.format("L", "E")), "key": (key, of.format("S", "kdim")), "value": (value, of.format("S", "vdim"))}
        sizes = require_shapes("MultiheadAttention", shapes, E=self.embed_dim, kdim=self.kdim, vdim=self.vdim)
        if key_padding_mask is None and attn_mask is None:
            return batched
        masks = {
            "key_padding_mask": (key_padding_mask, "N S" if batched else "S"),
            "attn_mask": (attn_mask, "L S" if attn_mask is None or attn_mask.dim() == 2 else "N*heads L S"),
        }
        require_shapes("MultiheadAttention", masks, **sizes, **{"N*heads": sizes.get("N", 1) * self.num_heads})
        for name, (mask, _) in masks.items():
            if mask is not None and mask.dtype is not torch.bool and not mask.is_floating_point():
                raise _fail(f"{name} must be bool or float: got {mask.dtype}; mask.bool() where non-zero means masked")
        return batched

    def _heads(self, x: Tensor) -> Tensor:
        """[N, T, E] -> [N, heads, T, head_dim], a view."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _project(self, query: Tensor, key: Tensor, value: Tensor, batched: bool) -> tuple[Tensor, Tensor, Tensor]:
        """[N, heads, T, head_dim] each."""
        if self._qkv_same_embed_dim and query is key and key is value:
            projected = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            if self._qkv_same_embed_dim:
                w_q, w_k, w_v = self.in_proj_weight.chunk(3)
            else:
                w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            b_q, b_k, b_v = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            projected = (F.linear(query, w_q, b_q), F.linear(key, w_k, b_k), F.linear(value, w_v, b_v))
        if not batched:
            projected = tuple(x.unsqueeze(0) for x in projected)
        elif not self.batch_first:
            projected = tuple(x.transpose(0, 1) for x in projected)
        q, k, v = (_calls.inner_contiguous(self._heads(x)) for x in projected)
        return q, k, v

    def _masks(
        self, q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, batched: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """(bias, keep), each [N|1, heads|1, L|1, S]. Two masks of one kind become one."""
        masks = []
        if attn_mask is not None:
            masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (q.shape[0], self.num_heads)))
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None] if batched else key_padding_mask)
        masks = [mask[(None,) * (4 - mask.dim())] for mask in masks]
        drops = [mask for mask in masks if mask.dtype is torch.bool]
        biases = [mask.to(_calls.sum_dtype(q)) for mask in masks if mask.dtype is not torch.bool]
        keep = None if not drops else ~(drops[0] | drops[1] if len(drops) == 2 else drops[0])
        bias = None if not biases else (biases[0] + biases[1] if len(biases) == 2 else biases[0])
        return None if bias is None else _calls.inner_contiguous(bias), keep


def _append(x: Tensor, row: Tensor) -> Tensor:
    """One more key, [N, heads, T + 1, head_dim]; row broadcasts to [N, heads, 1, head_dim]."""
    return torch.cat([x, row.to(x.dtype).expand(x.shape[0], x.shape[1], 1, x.shape[3])], 2)


def _pad(mask: Tensor | None, value: Any) -> Tensor | None:
    """One more key that every query may attend."""
    return None if mask is None else F.pad(mask, (0, 1), value=value)


def _attend_with_weights(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """out and weights after dropout. Rows without keys are NaN, as softmax of -inf gives them."""
    if direct(q, k, v, bias, keep):
        q, k, v, bias = _calls.resolved(q, k, v, bias)  # type: ignore[assignment]
        seed = int(draw_seed()) if dropout > 0.0 else 0
        out, weights, *_ = attend_with_weights.apply(q, k, v, bias, keep, Rules(dropout=dropout, seed=seed, empty_row="nan"))
        return out, weights.to(q.dtype)
    seed = draw_seed() if dropout > 0.0 else None
    rest = (bias, keep, seed, dropout, False, None, "nan")
    one = torch.eye(k.shape[2], dtype=k.dtype).expand(k.shape[0], k.shape[1], -1, -1)
    return attention(q, k, v, *rest)[0], attention(q, k, one, *rest)[0]
