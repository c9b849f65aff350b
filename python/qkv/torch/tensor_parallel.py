"""A layer of attention whose heads torch.distributed's ranks share (tensor parallelism): projections by heads, the output projection by
columns; one sum over ranks forward, one backward. Shoeybi 2019 (Megatron-LM, arXiv:1909.08053), section 3.

    layer = qkv.torch.tensor_parallel(nn.MultiheadAttention(512, 8, batch_first=True))     # on every rank, of the same weights

Not: a sequence cut over ranks (parallel.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from . import _calls
from ._calls import Rules
from ._graph import apply_attend
from ._ranks import Ranks, ranks_of, shared_seed
from .multihead_attention import MultiheadAttention

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["TensorParallelAttention", "tensor_parallel"]


class _Copied(Function):
    """The input of every rank's heads: its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx, group=ctx.group)
        return dx, None


class _Summed(Function):
    """The sum over ranks; every rank's share has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        return dx, None


class _OutputProjection(nn.Module):
    """y = sum over ranks of x W[:, own columns]^T, + bias. weight [E, E / ranks]; bias [E], the same on every rank."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        y = _Summed.apply(x @ self.weight.T, self.group)
        return y if self.bias is None else y + self.bias


class TensorParallelAttention(MultiheadAttention):
    """This rank's heads of a MultiheadAttention; tensor_parallel makes it. Its parameters are this rank's own: in_proj_weight
    [3 E / ranks, E] (or q_, k_, v_proj_weight), in_proj_bias [3 E / ranks], out_proj.weight [E, E / ranks], out_proj.bias [E]."""

    _ranks: Ranks
    _all_heads: int

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As MultiheadAttention.forward, with the same input, masks and result on every rank, up to the rounding of one sum over
        ranks; collective. Dropout draws one machine's pattern.

        Raises:
            NotImplementedError: for need_weights=True, since no rank has the weights of all heads.
        """
        if need_weights:
            raise NotImplementedError("[tensor_parallel] need_weights is not supported: no rank has the weights of all heads")
        if attn_mask is not None and attn_mask.dim() == 3:
            if attn_mask.shape[0] % self._all_heads:
                raise _calls.ArgumentError(
                    f"[tensor_parallel] attn_mask must be [L, S] or [N * {self._all_heads}, L, S]: got {list(attn_mask.shape)}"
                )
            of_heads = attn_mask.unflatten(0, (-1, self._all_heads))
            attn_mask = of_heads[:, self._first_head : self._first_head + self.num_heads].flatten(0, 1)
        # query, key and value may be one tensor, whose gradient is then summed once.
        copies = {id(x): _Copied.apply(x, self._ranks.group) for x in (query, key, value)}
        query, key, value = (copies[id(x)] for x in (query, key, value))
        out, _ = super().forward(query, key, value, key_padding_mask, False, attn_mask, average_attn_weights, is_causal)
        return out, None

    @property
    def _first_head(self) -> int:
        return self._ranks.rank * self.num_heads

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, dropout: float, causal: bool
    ) -> Tensor:
        seed = shared_seed(self._ranks) if dropout > 0 else 0
        rules = Rules(causal, dropout=dropout, seed=seed, place=(0, -1, self._first_head, self._all_heads))
        return apply_attend(q, k, v, self._of_all_heads(bias), self._of_all_heads(keep), None, rules)

    def _of_all_heads(self, mask: Tensor | None) -> Tensor | None:
        """A mask with a row of axes per head, in the places of all heads: those of other ranks are not read."""
        if mask is None or mask.shape[1] == 1:
            return mask
        whole = mask.new_zeros((mask.shape[0], self._all_heads, *mask.shape[2:]))
        whole[:, self._first_head : self._first_head + self.num_heads] = mask
        return whole


def tensor_parallel(layer: nn.MultiheadAttention, group: ProcessGroup | None = None) -> TensorParallelAttention:
    """This rank's share of a layer that every rank of the group has with the same weights; collective only when it is called.

    Args:
        layer: torch.nn.MultiheadAttention or qkv.torch.MultiheadAttention; its weights are copied. The number of ranks divides its
            heads. group: None is the default group.

    Raises:
        RuntimeError: without torch.distributed. ArgumentError: where the ranks do not divide the heads. NotImplementedError: for
            another class, or add_bias_kv and add_zero_attn.
    """
    ranks = ranks_of("tensor_parallel", group)
    if not isinstance(layer, nn.MultiheadAttention):
        raise NotImplementedError(f"[tensor_parallel] layer must be a MultiheadAttention: got {type(layer).__name__}")
    if layer.bias_k is not None or layer.add_zero_attn:
        raise NotImplementedError(
            "[tensor_parallel] add_bias_kv and add_zero_attn are not supported: make the layer without them"
        )
    if layer.num_heads % ranks.size:
        raise _calls.ArgumentError(f"[tensor_parallel] {ranks.size} ranks must divide the heads: got {layer.num_heads} heads")
    made = TensorParallelAttention.__new__(TensorParallelAttention)
    nn.Module.__init__(made)
    for name in ("embed_dim", "kdim", "vdim", "_qkv_same_embed_dim", "dropout", "batch_first", "head_dim", "add_zero_attn"):
        setattr(made, name, getattr(layer, name))
    made._ranks, made._all_heads, made.num_heads = ranks, layer.num_heads, layer.num_heads // ranks.size
    made.bias_k = made.bias_v = None
    width = made.num_heads * layer.head_dim
    own = slice(ranks.rank * width, (ranks.rank + 1) * width)

    def rows(weight: Tensor | None, parts: int) -> nn.Parameter | None:
        """This rank's rows of each of `parts` projections that lie one after the other."""
        if weight is None:
            return None
        return nn.Parameter(torch.cat([part[own] for part in weight.detach().chunk(parts)]).clone())

    made.in_proj_weight = rows(layer.in_proj_weight, 3)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        setattr(made, name, rows(getattr(layer, name), 1))
    made.in_proj_bias = rows(layer.in_proj_bias, 3)
    out = layer.out_proj
    bias = None if out.bias is None else out.bias.detach().clone()
    made.out_proj = _OutputProjection(out.weight.detach()[:, own].clone(), bias, ranks.group)
    return made.train(layer.training)
