"""Inputs for a first call, before the tool's probes exist: they show whether the code runs, in which type, with which mask.

All sizes are different, so that nothing fits by chance. Not: what is judged.
"""

from __future__ import annotations

import numpy as np

from .slots import Sizes, Tensors
from .tasks import CAUSAL, TASKS

BATCH, LENGTH, MEMORY = 2, 5, 7


def _shape(axes: list[str], sizes: Sizes) -> tuple[int, ...]:
    embed, heads, kv_heads, dim = sizes
    letters = {"B": BATCH, "T": LENGTH, "L": LENGTH, "S": MEMORY, "M": MEMORY, "E": embed, "H": heads, "d": dim,
               "P": heads * dim, "G": kv_heads * dim, "3E": 3 * embed}  # fmt: skip
    return tuple(letters[axis] for axis in axes)


def metadata(task: str, sizes: Sizes) -> dict[str, str]:
    return {"task": task, "name": "trial", "call": "forward", "heads": str(sizes.heads), "kv_heads": str(sizes.kv_heads),
            "causal": "1" if task in CAUSAL else "0", "block": "3", "dropout": "0.25", "base": "10000",
            "lr": "0.1"}  # fmt: skip


def probe(task: str, function: str, sizes: Sizes) -> Tensors:
    """Tensors of a function's contract, without a mask; of backward as many keys as queries."""
    rng = np.random.default_rng(15)
    axes = TASKS[task].tensors
    tensors: Tensors = {}
    arguments = [name for name, _ in TASKS[task].functions[function]]
    for name in arguments:
        own = axes.get("dout_layer" if name == "dout" and "x" in arguments else name)
        if name == "positions":
            tensors[name] = np.arange(LENGTH)
        elif name != "mask" and own is not None:
            tensors[name] = rng.standard_normal(_shape(own, sizes)) / (1 if len(name) == 1 else 3)
    return square(tensors) if task in ("causal", "backward") else tensors


def has_more_keys(tensors: Tensors) -> bool:
    """Whether k has another length than q."""
    return "k" in tensors and "q" in tensors and tensors["k"].shape[-2] != tensors["q"].shape[-2]


def square(tensors: Tensors) -> Tensors:
    """As many keys as queries."""
    rows = tensors["q"].shape[-2] if "q" in tensors else LENGTH
    cut = {"k": np.s_[..., :rows, :], "v": np.s_[..., :rows, :], "mask": np.s_[..., :rows]} if has_more_keys(tensors) else {}
    return {name: value[cut.get(name, ...)] for name, value in tensors.items()}


def _keys(tensors: Tensors) -> int:
    return MEMORY if "memory" in tensors or ("k" in tensors and tensors["k"].shape[2] == MEMORY) else LENGTH


def causal_mask(tensors: Tensors) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: the same triangle for every sequence."""
    kv_len = _keys(tensors)
    return np.broadcast_to(np.tri(LENGTH, kv_len, kv_len - LENGTH, dtype=bool), (BATCH, 1, LENGTH, kv_len)).copy()


def padding_mask(tensors: Tensors) -> np.ndarray:
    """bool [B, 1, Tq, Tk]: the last keys of each sequence are hidden, another number in each."""
    q_len, kv_len = LENGTH, _keys(tensors)
    lengths = np.array([kv_len - 1, kv_len - 2])[:, None, None, None]
    return np.broadcast_to(np.arange(kv_len) < lengths, (BATCH, 1, q_len, kv_len)).copy()
