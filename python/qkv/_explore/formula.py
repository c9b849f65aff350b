"""How a weight of one call follows from q, k and lse, for single pairs of query and key, and as the explorer's page reads it
(docs/explorer-file.md). Not: whole rows, which qkv's kernels compute.

    x = scale q[i].k[j]        y = softcap(x) + bias[i, j]        weight = exp(y - lse[i]) where the key may be seen
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .visible import Part, Place, Unreadable, parts_of

_HIDDEN = -1e30  # a bias below this is a mask written as a number
_AT_ONCE = 1 << 19  # numbers of q that are read at once
_BIAS_BYTES = 16 << 20  # of a bias that goes into a page


def _numbers(x: Any) -> np.ndarray:
    """A NumPy array or a PyTorch tensor of any floating type, as an array of float32 or float64."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach()
    return (x if str(x.dtype) == "torch.float64" else x.float()).cpu().numpy()


def _rows(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """x [heads, T, D] -> [heads, n, D]. np.take copies all of an array that is not contiguous; models' queries lie as [T, heads, D]."""
    turned = x.transpose(1, 0, 2)
    return np.take(turned, rows, axis=0).transpose(1, 0, 2) if turned.flags.c_contiguous else np.take(x, rows, axis=1)


def _taken(x: Any, rows: np.ndarray) -> np.ndarray:
    """x [heads, T, D] -> [heads, n, D]. Reading the memory of a PyTorch tensor with NumPy takes a tenth of PyTorch's own time."""
    if isinstance(x, np.ndarray):
        return _rows(x, rows)
    import torch

    if x.dtype is torch.bfloat16:  # the upper half of a float32, which NumPy has no name for
        halves = _rows(x.detach().view(torch.int16).numpy(), rows)
        return (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    taken = _rows(x.detach().numpy(), rows)
    return taken.astype(np.float32) if taken.dtype == np.float16 else taken


class Formula:
    """Of one call on q [B, H, Tq, D] and k [B, Hkv, Tk, D]. options: qkv.attention's keyword arguments (mask, causal, keep, scale,
    softcap, empty_row); bias, sinks as there. `why` is a sentence where something cannot be said pair by pair, otherwise None."""

    def __init__(
        self,
        sizes: Sequence[int],
        kv_len: int,
        options: Mapping[str, Any],
        bias: Any = None,
        sinks: Any = None,
        *,
        cross: bool = False,
    ) -> None:
        self.batch, self.heads, self.q_len, head_dim = sizes
        self.kv_len, self.cross = kv_len, cross
        scale = options.get("scale")
        self.scale = head_dim**-0.5 if scale is None else float(scale)
        self.softcap = float(options.get("softcap") or 0.0)
        self.empty_row = options.get("empty_row", "zero")
        self.bias = None if bias is None else _numbers(bias)
        self.sinks = None if sinks is None else _numbers(sinks)
        self.why: str | None = None
        self.parts: list[list[Part]] = []
        others = [
            name for name in ("position_bias", "score_mod", "window", "key_lengths", "drop") if options.get(name) is not None
        ]
        try:
            if others:
                raise Unreadable(f"{others[0]}=")
            masks = options.get("mask"), options.get("causal", False), options.get("keep")
            self.parts = [parts_of(Place(b, self.q_len, kv_len), *masks) for b in range(self.batch)]
        except Unreadable as error:
            self.why = f"weights of single pairs are not computed here: the call has {error}"

    def offset(self, b: int) -> int:
        """The key at which query 0 stands."""
        found = [part.offset for part in self.parts[b] if part.offset is not None]
        return found[0] if found else self.kv_len - self.q_len

    def _bias(self, b: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """[H|1, n]"""
        rows, columns = self.bias.shape[2:]  # type: ignore[union-attr]
        plane = self.bias[b if len(self.bias) > 1 else 0]  # type: ignore[index, arg-type]
        return plane[:, i if rows > 1 else np.zeros_like(i), j if columns > 1 else np.zeros_like(j)]

    def keep(self, b: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Whether query i may see key j of sequence b, bool [n]; of a bias that hides, head 0's word."""
        kept = (j >= 0) & (j < self.kv_len)
        inside = np.clip(j, 0, self.kv_len - 1)
        for part in self.parts[b]:
            kept = kept & part.keep(i, inside)
        if self.bias is not None:
            kept = kept & (self._bias(b, i, inside)[0] > _HIDDEN)
        return kept

    def count(self, b: int, rows: np.ndarray) -> np.ndarray:
        """How many keys each of these queries may see."""
        low, high = np.zeros_like(rows), np.full_like(rows, self.kv_len)
        for part in self.parts[b]:
            if part.interval is None:
                low = None
                break
            first, behind = part.interval(rows)
            low, high = np.maximum(low, first), np.minimum(high, behind)
        if low is not None and self.bias is None:
            return np.maximum(high - low, 0)
        block = max(1, _AT_ONCE // max(self.kv_len, 1))
        keys = np.arange(self.kv_len)
        counts = np.empty(len(rows), np.int64)
        for at in range(0, len(rows), block):
            some = rows[at : at + block]
            i, j = np.repeat(some, self.kv_len), np.tile(keys, len(some))
            counts[at : at + block] = self.keep(b, i, j).reshape(len(some), -1).sum(1)
        return counts

    def weights(self, q: Any, k: Any, lse: Any, b: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Weights of pairs (i[n], j[n]) of sequence b in every head, float64 [H, n]; pairs that may not be seen have 0."""
        kept = np.flatnonzero(self.keep(b, i, j))
        heads, kv_heads = q.shape[1], k.shape[1]
        result = np.zeros((heads, len(i)))
        log_sums = _numbers(lse[b]).astype(np.float64)
        block = max(1, _AT_ONCE // (heads * q.shape[3]))
        for at in range(0, len(kept), block):
            some = kept[at : at + block]
            rows, columns = i[some], j[some]
            queries = _taken(q[b], rows).reshape(kv_heads, heads // kv_heads, len(some), -1)
            products = np.einsum("gsnd,gnd->gsn", queries, _taken(k[b], columns)).reshape(heads, -1)
            y = products.astype(np.float64) * self.scale
            if self.softcap:
                y = self.softcap * np.tanh(y / self.softcap)
            if self.bias is not None:
                y = y + self._bias(b, rows, columns)
            with np.errstate(over="ignore"):
                result[:, some] = np.where(np.isneginf(log_sums[:, rows]), 0.0, np.exp(y - log_sums[:, rows]))
        return result

    def page(self, b: int, heads: Sequence[int]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The page's formula of sequence b, and its tensors for the heads whose q is stored."""
        if self.why is not None:
            return {"scale": self.scale, "refused": self.why}, {}
        made: dict[str, Any] = {"scale": self.scale}
        tensors: dict[str, np.ndarray] = {}
        if self.softcap:
            made["softcap"] = self.softcap
        if self.sinks is not None:
            tensors["sinks"] = self.sinks.astype(np.float32)
        if self.empty_row == "mean":
            made["empty"] = "mean"
        offset = self.offset(b)
        if offset != self.kv_len - self.q_len:
            made["offset"] = offset
        rest = []
        for part in self.parts[b]:
            page, alone = part.page, part.offset in (None, offset)
            if part.ids is not None and "documents_q" not in tensors:
                tensors["documents_q"], tensors["documents_k"] = (ids.astype(np.int32) for ids in part.ids)
            elif page and alone and "keys" in page:
                first, behind = made.get("keys", [0, self.kv_len])
                made["keys"] = [max(first, page["keys"][0]), min(behind, page["keys"][1])]
            elif page and alone and all(name not in made or made[name] == value for name, value in page.items()):
                made |= page
            else:
                rest.append(part)
        if not heads:
            return made, {}
        if rest or self.bias is not None:
            planes = 1 if self.bias is None or self.bias.shape[1] == 1 else len(heads)
            if planes * self.q_len * self.kv_len * 4 > _BIAS_BYTES:
                made["refused"] = "a mask or bias of every pair of this layer is too large for a page"
                return made, {}
            tensors["bias"] = self._written(b, heads, planes, rest)
        return made, tensors

    def _written(self, b: int, heads: Sequence[int], planes: int, parts: list[Part]) -> np.ndarray:
        """Bias and what the page knows no member for, float32 [1 or n, Tq, Tk]; -inf hides."""
        i, j = (x.ravel() for x in np.mgrid[: self.q_len, : self.kv_len])
        written = np.zeros((planes, len(i)), np.float32)
        if self.bias is not None:
            values = self._bias(b, i, j)
            chosen = values if len(values) == 1 else values[list(heads)]
            written += np.where(chosen > _HIDDEN, chosen, -np.inf)
        for part in parts:
            written[:, ~part.keep(i, j)] = -np.inf
        return written.reshape(planes, self.q_len, self.kv_len)
