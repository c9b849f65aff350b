"""Shared by the tests of NumPy arrays: numbers, a mask of every kind, the formula of attention in any type, and a bound of two of its results.
Through the bindings options and arrays arrive; the kernels' numbers are C++'s.
"""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import qkv

i, j = np.ogrid[:6, :6]
KEYS = [[n in row for n in range(6)] for row in ([5, 0], [1], [], [2, 4], [3, 0], [1, 2])]
#: Of 6 queries and 6 keys: a mask of every kind, and what it keeps.
MASKS: dict[str, tuple[qkv.Mask, Any]] = {
    "everything": (qkv.Mask(), j >= 0),
    "causal": (qkv.Mask.causal(), j <= i),
    "causal offsets": (qkv.Mask.causal(offsets=[2]), j <= i + 2),
    "window": (qkv.Mask.window(1, 2), (j >= i - 1) & (j <= i + 2)),
    "window offsets": (qkv.Mask.window(1, 0, offsets=np.array([1])), (j >= i) & (j <= i + 1)),
    "sliding": (qkv.Mask.sliding(2), (j >= i - 1) & (j <= i)),
    "dilated": (qkv.Mask.dilated(2), (j - i) % 2 == 0),
    "chunked": (qkv.Mask.chunked(4), i // 4 == j // 4),
    "chunked starts": (qkv.Mask.chunked(4, starts=[1]), (i - 1) // 4 == (j - 1) // 4),
    "key lengths": (qkv.Mask.key_lengths([4]), j < 4),
    "key starts": (qkv.Mask.key_starts([2]), j >= 2),
    "query lengths": (qkv.Mask.query_lengths([4]), i < 4),
    "prefix": (qkv.Mask.causal() | qkv.Mask.prefix([3]), (j <= i) | (j < 3)),
    "first": (qkv.Mask.first(2), j < 2),
    "global rows": (qkv.Mask.global_rows([1, 4]), (i == 1) | (i == 4)),
    "global columns": (qkv.Mask.global_columns([5]), j == 5),
    "documents": (qkv.Mask.documents([0, 2, 6]), (i < 2) == (j < 2)),
    "documents inside": (qkv.Mask.documents([0, 2, 6], inside=qkv.Mask.causal()), ((i < 2) == (j < 2)) & (j <= i)),
    "document ids": (qkv.Mask.document_ids(np.array([[0, 1, 0, 1, 0, 1]])), i % 2 == j % 2),
    "blocks": (qkv.Mask.blocks(qkv.BlockMap.from_mask(qkv.Mask.causal(), 6, 6, q_block=2, kv_block=2)), j // 2 <= i // 2),
    "keys": (qkv.Mask.keys([[[[5, 0], [1, -1], [-1, -1], [2, 4], [3, 0], [1, 2]]]]), np.array(KEYS, bool)),
    "drop": (qkv.Mask.drop(np.eye(6, dtype=bool), "qk"), i != j),
    "of": (qkv.Mask.of(lambda b, h, i, j: (i + j) % 2 == 0, 6, 6), (i + j) % 2 == 0),
    "and, or": (qkv.Mask.causal() & qkv.Mask.window(2, 0) | qkv.Mask.first(1), ((j <= i) & (j >= i - 2)) | (j < 1)),
}


def _program(path: Path, folder: Path) -> None:
    os.chdir(folder)
    sys.argv = [str(path)]
    printed = os.open("printed", os.O_CREAT | os.O_WRONLY)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    runpy.run_path(str(path), run_name="__main__")


def run_program(path: Path, folder: Path) -> str:
    """What a program prints that runs in a process of its own, forked from one that has imported its libraries (seconds) and done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["qkv.transformers", "torch._dynamo"])
    process = context.Process(target=_program, args=(path, folder))
    process.start()
    process.join(300)
    process.kill()
    said = (folder / "printed").read_text()
    assert process.exitcode == 0, said[-2000:]
    return said


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers; the same seed and shape give the same ones in every type."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def problem(seed: int, batch: int, heads: int, q_len: int, kv_len: int, width: int, *, kv_heads: int = 0, v_width: int = 0, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:  # fmt: skip
    """q, k, v."""
    kv_heads, v_width = kv_heads or heads, v_width or width
    return (
        numbers(seed, batch, heads, q_len, width, dtype=dtype),
        numbers(seed + 1, batch, kv_heads, kv_len, width, dtype=dtype),
        numbers(seed + 2, batch, kv_heads, kv_len, v_width, dtype=dtype),
    )


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, keep: Any = True, bias: Any = 0.0, scale: float | None = None, softcap: float = 0.0,
    sinks: Any = None, factors: Any = 1.0, dtype: Any = np.float64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """out, lse and weights, computed in dtype; rows without keys are 0, their lse is -inf."""
    q, k, v, bias, factors = (np.asarray(x).astype(dtype) for x in (q, k, v, bias, factors))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = dtype(q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.swapaxes(-1, -2))
    s = (dtype(softcap) * np.tanh(s / dtype(softcap)) if softcap else s) + bias
    e = np.where(keep, np.exp(s), 0)
    total = e.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(np.asarray(sinks, dtype))[:, None, None])
    weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    with np.errstate(divide="ignore"):
        return (weights * factors) @ v, np.log(total)[..., 0], weights


def expect_close(fast: np.ndarray, exact: np.ndarray, naive: np.ndarray, size: Any = None, eps: Any = None, times: int = 2) -> None:
    """error(fast) <= times error(naive) + 4 eps A; A: the largest sum of the terms made positive, or of exact; times: 3 of gradients."""
    live = np.isfinite(exact)
    assert np.array_equal(fast[~live], exact[~live].astype(fast.dtype), equal_nan=True)
    error, room = (abs(x[live].astype(exact.dtype) - exact[live]).max(initial=0) for x in (fast, naive))
    largest = abs((exact if size is None else size)[live]).max(initial=0)
    assert error <= times * room + 4 * (np.finfo(fast.dtype).eps if eps is None else eps) * largest, (error, room, largest)
