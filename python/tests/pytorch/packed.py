"""What the tests of packed sequences share: lengths, offsets, tensors, and a call of qkv.torch.varlen_attn on them."""

from __future__ import annotations

from typing import Any

import qkv.torch as qt
import torch
from support_torch import numbers
from torch import Tensor

H, HKV, D, DV = 4, 2, 8, 6
# Lengths of queries and keys: alike; different, with more keys; more queries, so that some rows are empty; no queries, no keys.
LENGTHS = {
    "alike": ([5, 1, 9], [5, 1, 9]),
    "more keys": ([3, 1, 6], [7, 4, 6]),
    "more queries": ([6, 2, 70], [3, 1, 65]),
    "empty ones": ([4, 0, 3, 0], [4, 5, 0, 0]),
}


def offsets(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def leaves(q_lens: list[int], k_lens: list[int], kv_heads: int = HKV) -> list[Tensor]:
    shapes = ((sum(q_lens), H, D), (sum(k_lens), kv_heads, D), (sum(k_lens), kv_heads, DV))
    return [numbers(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]


def ours(lengths: tuple[list[int], list[int]], lse: bool = True, dtype: torch.dtype = torch.int32, **options: Any) -> Any:
    cu_q, cu_k = (offsets(x, dtype) for x in lengths)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        longest, aux = (max(x, default=0) for x in lengths), qt.AuxRequest(lse=lse)
        return qt.varlen_attn(q, k, v, cu_q, cu_k, *longest, enable_gqa=k.shape[1] != H, return_aux=aux, **options)

    return call
