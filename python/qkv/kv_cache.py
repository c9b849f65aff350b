"""Keys and values that are kept from call to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from ._arrays import integers, operand

__all__ = ["KVCache"]


def _common(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
    """How many tokens k, v of two sequences begin with alike, to the bit."""
    n = min(one[0].shape[1], other[0].shape[1])
    bits = [(a[:, :n].view(f"u{a.itemsize}") != b[:, :n].view(f"u{b.itemsize}")).any((0, 2)) for a, b in zip(one, other)]
    different = np.flatnonzero(bits[0] | bits[1])
    return int(different[0]) if len(different) else n


def _of_tokens(cls: type[KVCache], config: dict[str, Any], held: dict[int, tuple[Any, Any]]) -> KVCache:
    """For pickle. held: k, v of each sequence."""
    cache = cls.__new__(cls)
    KVCache.__init__(cache, **config)  # a class of the user's may be made of other arguments
    while len(cache.sequences) < max((s + 1 for s in held), default=0):
        cache.add_sequence()
    # The longest first: one that was cut shares its last page with a longer one. fork() takes the number that is free.
    done: list[int] = []
    for s in sorted(held, key=lambda s: -held[s][0].shape[1]):
        k, v = held[s]
        same, parent = max(((_common(held[s], held[other]), other) for other in done), default=(0, s))
        if same and config.get("layout") == "paged":
            cache.free(s)
            cache.fork(parent)
            cache.truncate(s, same)
        else:
            same = 0
        if same < k.shape[1] or not same:
            KVCache.append(cache, k[None, :, same:], None if config.get("values_in_keys") else v[None, :, same:], [s])
        done.append(s)
    for s in set(cache.sequences) - set(held):
        cache.free(s)
    return cache


class KVCache(_core.KVCache):
    """Keys and values of growing sequences, contiguous, as a ring or in pages; float32, float64, bfloat16, float16, int8 or int4.

        cache = qkv.KVCache(num_kv_heads=8, head_dim=128, capacity=4096)
        cache.append(k, v)                                         # [B, Hkv, n, D], [B, Hkv, n, Dv]
        out = qkv.attention(q, cache, causal="bottom_right")       # sequences=[...]: of some

    Args:
        num_kv_heads, head_dim, v_head_dim: Hkv (1), D (must be given), Dv (0: D).
        storage: "float32" (the default), "float64", "bfloat16", "float16", "int8" (one scale per token and head; the error is at most
            max|row| / 254), "int4" (one scale for 32 numbers; at most a 14th of their largest). ``error_bound`` says what that
            may do to an answer.
        layout: "contiguous" (the default; capacity: tokens per sequence), "ring" (window: keys that a query sees; max_append: tokens
            of one append, 1; first: tokens that are never overwritten and that every query sees too: StreamingLLM's sinks) or "paged"
            (page_size: tokens per page, 64; pages: how many all sequences share).
        values_in_keys: v is the first v_head_dim columns of k and held once (latent attention): ``append(k)``.
        sequences: how many there are from the start (1); max_sequences: how many there may be at once, forks included.

    Not thread-safe: one writer, or any number of readers. All memory is allocated in the constructor. Without room for new
    tokens, CacheFullError (a RuntimeError) is raised and everything stays as it was. Kwon 2023 (arXiv:2309.06180).
    """

    def __init__(self, **config: Any) -> None:
        if "head_dim" not in config:
            raise TypeError("[KVCache] head_dim, the width D of the keys, must be given: got none")
        super().__init__(**config)
        self._config = config
        self.storage, self.layout = config.get("storage", "float32"), config.get("layout", "contiguous")

    def __reduce__(self) -> Any:
        """For pickle and copy.deepcopy: the tokens that are held, once for each sequence; pages of equal beginnings are shared, as forks
        share them. Raises UnsupportedError for int8 and int4, whose scales do not come back to the bit, and for rings, which have lost
        tokens."""
        if self.storage in ("int8", "int4") or self.layout == "ring":
            raise _core.UnsupportedError(
                "[KVCache] a cache of int8, int4 or a ring cannot be pickled or copied: quantising again would round its scales anew, and a ring "
                "does not hold its older tokens; append the tokens to a new cache, or use storage bfloat16 and another layout"
            )
        return _of_tokens, (type(self), self._config, {s: self.read(s) for s in self.sequences}), vars(self)

    def append(self, k: Any, v: Any = None, sequences: Sequence[int] | None = None) -> None:
        """Appends n tokens to every sequence, or to those that are named: k [B, Hkv, n, D], v [B, Hkv, n, Dv]; of a cache with
        values in keys, k alone. float32, bfloat16 or float16, whatever the storage; float64 where the storage is "float64", and there alone."""
        rows = None if v is None else operand(v, "v")
        self._append(operand(k, "k"), rows, None if sequences is None else integers(sequences, "[KVCache.append] sequences"))

    def read(self, sequence: int, begin: int = 0, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The stored rows of tokens [begin, begin + count): k [Hkv, count, D], v [Hkv, count, Dv], float32 (or float64)."""
        length = self.length(sequence)
        n = length - begin if count is None else count
        if n < 0:
            raise _core.OptionError(f"[KVCache.read] tokens [begin, begin + count) must lie in 0..{length}: got begin {begin}, count {count}")
        dtype = np.float64 if self.storage == "float64" else np.float32
        k = np.empty((self.num_kv_heads, n, self.head_dim), dtype)
        v = np.empty((self.num_kv_heads, n, self.v_head_dim), dtype)
        self._read(sequence, begin, k, v)
        return k, v

    def error_bound(self, q: Any = None, *, scale: float | None = None) -> Any:
        """How far this cache's rounding may take an answer from that on the numbers as they were appended.

        With q [B, H, Tq, D]: float64 [B, H, Tq], ``abs(out - exact) <= bound[..., None]`` for attention of q on all sequences,
        whatever the mask, but for the rounding of the call itself; the worst case, of which errors of both signs leave a fiftieth or
        less. Without: how far a stored number of k, and of v, may be off, as two floats. Reads the cache once (docs/concepts/kv-cache.md).
        """
        if scale is not None and (q is None or not isinstance(scale, (int, float, np.number))):
            kind = _core.OptionError if q is None else TypeError
            raise kind(f"[KVCache.error_bound] scale must be a number, beside q: got {scale!r}{' without q' if q is None else ''}")
        if q is None:
            return self._element_errors()
        bound = np.empty(np.shape(q)[:3], np.float64)
        self._error_bound(operand(q, "q"), bound, scale)
        return bound

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, in the order of ``sequences``."""
        return [self.length(s) for s in self.sequences]

    def __repr__(self) -> str:
        return (
            f"KVCache({self.layout}, {self.storage}, Hkv={self.num_kv_heads}, D={self.head_dim}, lengths={self.lengths}, "
            f"{self.nbytes / 2**20:.1f} MiB)"
        )
