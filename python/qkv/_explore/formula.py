"""How a weight of one call follows from q, k and lse, as the explorer's page reads it (docs/explorer-file.md) and as the C++ library
computes it for single pairs (qkv/view/kinds.h).

    x = scale q[i].k[j]        y = softcap(x) + bias[i, j]        weight = exp(y - lse[i]) where the mask keeps the key

A mask remembers how it was made (_recipes.py): the page's members are read from that. A part that cannot be read this way (a function, a
map of blocks) is named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _nn
from ..masks import Mask

_HIDDEN = -1e30  # a bias below this is a mask written as a number
_BIAS_BYTES = 16 << 20  # of a bias that goes into a page
_WITHOUT_MEMBER = ("dilated", "chunked", "documents", "query_lengths", "global_rows", "global_columns")


class Unreadable(Exception):
    """Names a part of a mask that is no condition on two positions."""


@dataclass
class Part:
    """One condition of one sequence."""

    page: dict[str, Any] | None = None  #: the members of the page's formula that mean the same; None: there are none
    offset: int | None = None  #: the key at which query 0 stands, where the condition says it
    ids: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)  #: numbers of queries and keys that must agree


def numbers_of(x: Any, dtype: Any = None) -> np.ndarray:
    """A NumPy array or a PyTorch tensor of any floating type, as an array of dtype; None: float32 or float64."""
    if not isinstance(x, np.ndarray):
        x = x.detach()
        x = (x if str(x.dtype) == "torch.float64" else x.float()).cpu().numpy()
    return np.asarray(x, dtype)


def _leaves(mask: Mask) -> list[Mask]:
    """The masks whose intersection it is."""
    if mask._recipe is None:
        raise Unreadable("a mask of which only its kernel is known")
    name, arguments, _ = mask._recipe
    if name == "_everything":
        return []
    return [mask] if name != "_both" else [leaf for side in arguments for leaf in _leaves(side)]


def _of_ids(q_ids: np.ndarray, k_ids: np.ndarray) -> Part:
    """What belongs to nothing is a number of its own on either side."""
    return Part({}, ids=(np.where(q_ids < 0, -1, q_ids), np.where(k_ids < 0, -2, k_ids)))


def _of_documents(offsets: Any, length: int) -> np.ndarray:
    offsets = np.asarray(offsets, np.int64)
    found = np.searchsorted(offsets, np.arange(length), "right") - 1
    return np.where(found < len(offsets) - 1, found, -1)


def _of_array(array: Any, axes: str | None, b: int, q_len: int, wanted: bool) -> Part:
    """keep= and drop=: of several heads' masks the first must be all heads'."""
    kept = np.asarray(array)
    shape = dict(zip(axes or "bhqk"[4 - kept.ndim :], kept.shape))
    if shape.get("h", 1) != 1:
        raise Unreadable("a mask that differs between heads")
    kept = kept.reshape([shape.get(axis, 1) for axis in "bhqk"])
    plane = (kept[b if len(kept) > 1 else 0, 0] != 0) == wanted  # [Tq|1, Tk|1]
    if len(plane) > 1 or plane.shape[1] == 1:
        return Part()
    live = np.flatnonzero(plane[0])
    if len(live) and len(live) == live[-1] - live[0] + 1:
        return Part({"keys": [int(live[0]), int(live[-1]) + 1]})
    return _of_ids(np.zeros(q_len, np.int64), np.where(plane[0], 0, -1))


def _read(mask: Mask, b: int, q_len: int, kv_len: int) -> Part:
    name, arguments, options = mask._recipe  # type: ignore[misc]
    if name == "_any":
        return _either([[_read(leaf, b, q_len, kv_len) for leaf in _leaves(side)] for side in arguments])
    bound = inspect.signature(getattr(Mask, name)).bind(*arguments, **options)
    bound.apply_defaults()
    given = bound.arguments

    def own(numbers: Any) -> int:
        return int(numbers[b if len(numbers) > 1 else 0])

    offset = None
    if given.get("offsets") is not None and name != "documents":
        offset = own(given["offsets"])
    elif "align" in given:
        offset = kv_len - q_len if given["align"] == "bottom_right" else 0
    if name == "causal":
        return Part({"causal": True}, offset)
    if name in ("window", "sliding"):
        sides = (given["n"] - 1, 0) if name == "sliding" else (given["left"], given["right"])
        return Part({"window": [None if n < 0 else int(n) for n in sides]}, offset)
    if name == "chunked" and (given["starts"] is None or own(given["starts"]) == 0):
        return Part({"chunk": int(given["size"])}, offset)
    if name in ("key_lengths", "prefix"):
        return Part({"keys": [0, own(given["lengths"])]})
    if name == "key_starts":
        return Part({"keys": [own(given["starts"]), kv_len]})
    if name == "first":
        return Part({"keys": [0, min(int(given["n"]), kv_len)]})
    if name == "documents" and (given["inside"] is None or _leaves(given["inside"]) == []):
        k_offsets = given["offsets"] if given["k_offsets"] is None else given["k_offsets"]
        return _of_ids(_of_documents(given["offsets"], q_len), _of_documents(k_offsets, kv_len))
    if name == "document_ids":
        both = [np.asarray(x, np.int64) for x in (given["q_ids"], given["q_ids"] if given["k_ids"] is None else given["k_ids"])]
        return _of_ids(*(x if x.ndim == 1 else x[b if len(x) > 1 else 0] for x in both))
    if name in ("keep", "drop"):
        return _of_array(given["array"], given["axes"], b, q_len, name == "keep")
    if name not in _WITHOUT_MEMBER:
        raise Unreadable(f"Mask.{name}")
    return Part(offset=offset)


def _either(sides: list[list[Part]]) -> Part:
    """A union. The page knows the prefix language model."""
    joined = Part(offset=next((part.offset for side in sides for part in side if part.offset is not None), None))
    pages = [side[0].page if len(side) == 1 else None for side in sides]
    for here, other in (pages, pages[::-1]):
        keys = (other or {}).get("keys")
        if here == {"causal": True} and keys and keys[0] == 0:
            joined.page = {"causal": True, "prefix": keys[1]}
    return joined


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
        self.bias = None if bias is None else numbers_of(bias)
        self.sinks = None if sinks is None else numbers_of(sinks)
        self.why: str | None = None
        self.parts: list[list[Part]] = []
        others = [
            name for name in ("position_bias", "score_mod", "window", "key_lengths", "drop") if options.get(name) is not None
        ]
        masks = [Mask() if options.get("mask") is None else options["mask"]]
        causal, keep = options.get("causal", False), options.get("keep")
        if causal:
            masks.append(Mask.causal(causal if isinstance(causal, str) else "square"))
        if keep is not None:
            kept = np.asarray(keep)
            masks.append(Mask.keep(kept.reshape((1,) * (4 - kept.ndim) + kept.shape)))
        try:
            if others:
                raise Unreadable(f"{others[0]}=")
            self.mask = functools.reduce(Mask.__and__, masks)
            self.leaves = _leaves(self.mask)
            self.parts = [[_read(leaf, b, self.q_len, kv_len) for leaf in self.leaves] for b in range(self.batch)]
        except Unreadable as error:
            self.why = f"weights of single pairs are not computed here: the call has {error}"

    def offset(self, b: int) -> int:
        """The key at which query 0 stands."""
        found = [part.offset for part in self.parts[b] if part.offset is not None]
        return found[0] if found else self.kv_len - self.q_len

    def starts(self, b: int) -> np.ndarray:
        """The first key that is a token [Tq]; of packed sequences that of each query's."""
        start = max((part.page["keys"][0] for part in self.parts[b] if part.page and "keys" in part.page), default=0)
        documents = [part.ids for part in self.parts[b] if part.ids is not None]
        if not documents or self.cross:
            return np.full(self.q_len, start)
        of_queries, of_keys = documents[0]
        order = np.argsort(of_keys, kind="stable")
        found = np.searchsorted(of_keys[order], of_queries)
        return np.maximum(order[np.minimum(found, len(order) - 1)], start)

    def call(self, b: int, heads: Sequence[int], q: Any, k: Any, lse: Any, **statistics: Any) -> Any:
        """Sequence b and some heads, as the C++ library computes their weights. statistics: entropy and sink [heads, Tq], ids, rows."""
        heads, group = list(heads), q.shape[1] // k.shape[1]
        every = heads == list(range(self.heads))
        own = [x[b] if every else x[b][index] for x, index in ((q, heads), (k, [h // group for h in heads]), (lse, heads))]
        arrays = [numbers_of(x, dtype) for x, dtype in zip(own, (np.float32, np.float32, np.float64))]
        arrays[:2] = [x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x) for x in arrays[:2]]
        bias = None
        if self.bias is not None:
            bias = self.bias[b if len(self.bias) > 1 else 0].astype(np.float32, copy=False)
            bias = bias if every or len(bias) == 1 else bias[heads]
        given = {"entropy": None, "sink": None, "starts": self.starts(b).tolist(), **statistics}
        return _nn.head_call(
            *arrays[:2], bias, arrays[2], scale=self.scale, softcap=self.softcap, mask=self.mask._core, batch=self.batch, sequence=b,
            offset=self.offset(b), same_text=not self.cross, **given,
        )  # fmt: skip

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
        for leaf, part in zip(self.leaves, self.parts[b]):
            page, alone = part.page, part.offset in (None, offset)
            if part.ids is not None and "documents_q" not in tensors:
                tensors["documents_q"], tensors["documents_k"] = (ids.astype(np.int32) for ids in part.ids)
            elif page and alone and "keys" in page:
                first, behind = made.get("keys", [0, self.kv_len])
                made["keys"] = [max(first, page["keys"][0]), min(behind, page["keys"][1])]
            elif page and alone and all(name not in made or made[name] == value for name, value in page.items()):
                made |= page
            else:
                rest.append(leaf)
        if not heads:
            return made, {}
        if rest or self.bias is not None:
            planes = 1 if self.bias is None or self.bias.shape[1] == 1 else len(heads)
            if planes * self.q_len * self.kv_len * 4 > _BIAS_BYTES:
                made["refused"] = "a mask or bias of every pair of this layer is too large for a page"
                return made, {}
            tensors["bias"] = self._written(b, heads, planes, rest)
        return made, tensors

    def _written(self, b: int, heads: Sequence[int], planes: int, masks: list[Mask]) -> np.ndarray:
        """Bias and what the page knows no member for, float32 [1 or n, Tq, Tk]; -inf hides."""
        written = np.zeros((planes, self.q_len, self.kv_len), np.float32)
        if self.bias is not None:
            values = self.bias[b if len(self.bias) > 1 else 0]
            chosen = values if len(values) == 1 else values[list(heads)]
            written += np.where(chosen > _HIDDEN, chosen, -np.inf)
        for mask in masks:
            written[:, ~mask.to_dense(self.q_len, self.kv_len, batch=self.batch)[b, 0]] = -np.inf
        return written
