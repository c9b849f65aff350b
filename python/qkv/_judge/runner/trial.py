"""Inputs for a first call, before the tool's probes exist: they show whether the code runs, in which type, with which mask.

All sizes are different, so that nothing fits by chance. Not: what is judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .slots import Sizes
from .tasks import CAUSAL, contract

BATCH, LENGTH, MEMORY = 2, 5, 7


def _shape(name: str, layered: bool, sizes: Sizes) -> Any:
    embed, heads, kv_heads, dim = sizes
    width, kv_width = heads * dim, kv_heads * dim
    if name in ("q", "dout") and not layered:
        return (BATCH, heads, LENGTH, dim)
    if name in ("k", "v"):
        return (BATCH, heads, MEMORY, dim)
    return {
        "x": (BATCH, LENGTH, embed), "memory": (BATCH, MEMORY, embed), "dout": (BATCH, LENGTH, embed),
        "W_q": (embed, width), "b_q": (width,), "W_k": (embed, kv_width), "b_k": (kv_width,),
        "W_v": (embed, kv_width), "b_v": (kv_width,), "W_qkv": (embed, 3 * width), "b_qkv": (3 * width,),
        "W_o": (width, embed), "b_o": (embed,),
    }.get(name)  # fmt: skip


def metadata(task: str, sizes: Sizes) -> dict[str, str]:
    return {"task": task, "name": "trial", "call": "forward", "heads": str(sizes.heads), "kv_heads": str(sizes.kv_heads),
            "causal": "1" if task in CAUSAL else "0", "block": "3", "dropout": "0.25", "base": "10000",
            "lr": "0.1"}  # fmt: skip


def probe(task: str, function: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """Tensors of a function's contract, without a mask."""
    rng = np.random.default_rng(15)
    arguments = [name for name, _ in contract(task, function)]
    tensors: dict[str, np.ndarray] = {}
    for name in arguments:
        shape = _shape(name, "x" in arguments, sizes)
        if task in ("causal", "rope", "backward") and name in ("k", "v"):
            shape = (BATCH, sizes.heads, LENGTH, sizes.head_dim)
        if task == "rope" and name == "x":
            shape = (BATCH, sizes.heads, LENGTH, sizes.head_dim)
        if name == "positions":
            tensors[name] = np.arange(LENGTH)
        elif shape is not None:
            tensors[name] = rng.standard_normal(shape) / (1 if len(name) == 1 else 3)
    return tensors


def has_more_keys(tensors: dict[str, np.ndarray]) -> bool:
    """Whether k has another length than q."""
    return "k" in tensors and "q" in tensors and tensors["k"].shape[-2] != tensors["q"].shape[-2]


def square(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As many keys as queries."""
    return {name: value[..., :LENGTH, :] if name in ("k", "v") else value for name, value in tensors.items()}


def _keys(tensors: dict[str, np.ndarray]) -> int:
    return MEMORY if "memory" in tensors or ("k" in tensors and tensors["k"].shape[2] == MEMORY) else LENGTH


def causal_mask(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: the same triangle for every sequence."""
    kv_len = _keys(tensors)
    return np.broadcast_to(np.tri(LENGTH, kv_len, kv_len - LENGTH, dtype=bool), (BATCH, 1, LENGTH, kv_len)).copy()


def padding_mask(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: the last keys of each sequence are hidden, another number in each."""
    q_len, kv_len = LENGTH, _keys(tensors)
    lengths = np.array([kv_len - 1, kv_len - 2])[:, None, None, None]
    return np.broadcast_to(np.arange(kv_len) < lengths, (BATCH, 1, q_len, kv_len)).copy()
