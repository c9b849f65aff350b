"""How a weight of one call follows from q, k and lse, as the explorer's page reads it (docs/explorer-file.md) and as the C++ library
computes it for single pairs (qkv/view/kinds.h).

    x = scale q[i].k[j]        y = softcap(x) + bias[i, j]        weight = exp(y - lse[i]) where the mask keeps the key

A mask remembers how it was made (_recipes.py): where the queries stand and where texts begin are read from that. The page gets the keys
that each query sees as an interval, or, where they are none, in the bias of every pair.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _nn
from ..masks import Mask

_HIDDEN = -1e30  # a bias below this is a mask written as a number
_BIAS_BYTES = 16 << 20  # of a bias that goes into a page
_SHOWN_MASK = 1 << 22  # pairs whose mask the page shows where no head is exact
# Masks that a page can show besides keep and drop: by the distance of query and key, by texts and their lengths, others.
_POSITIONS = ("causal", "window", "sliding", "dilated", "chunked")
_TEXTS = ("key_lengths", "key_starts", "prefix", "first", "documents", "document_ids")
_OTHERS = ("query_lengths", "global_rows", "global_columns")


class Unreadable(Exception):
    """Names a part of a mask that is no condition on two positions."""


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


def _given(mask: Mask) -> tuple[str, dict[str, Any]]:
    """The function that made it and its arguments; of keep and drop also "shape", by axis."""
    name, arguments, options = mask._recipe  # type: ignore[misc]
    bound = inspect.signature(getattr(Mask, name)).bind(*arguments, **options)
    bound.apply_defaults()
    given = dict(bound.arguments)
    if name in ("keep", "drop"):
        shape = np.shape(given["array"])
        given["shape"] = dict(zip(given["axes"] or "bhqk"[4 - len(shape) :], shape))
    return name, given


def _offset(mask: Mask, b: int, q_len: int, kv_len: int) -> int | None:
    """The key at which query 0 stands, where the mask says it. Raises Unreadable for one that the page cannot show."""
    if mask._recipe[0] == "_any":  # type: ignore[index]
        found = [_offset(leaf, b, q_len, kv_len) for side in mask._recipe[1] for leaf in _leaves(side)]  # type: ignore[index]
        return next((offset for offset in found if offset is not None), None)
    name, given = _given(mask)
    if given.get("shape", {}).get("h", 1) != 1:
        raise Unreadable("a mask that differs between heads")
    if "shape" not in given and name not in _POSITIONS + _TEXTS + _OTHERS:
        raise Unreadable(f"Mask.{name}")
    if name in _POSITIONS and given.get("offsets") is not None:
        return int(given["offsets"][b if len(given["offsets"]) > 1 else 0])
    return None if "align" not in given else kv_len - q_len if given["align"] == "bottom_right" else 0


def _is_of_texts(mask: Mask) -> bool:
    """Whether it says which keys are tokens or belong to a query's text, not how far it reaches."""
    if mask._recipe[0] == "_any":  # type: ignore[index]
        return False
    name, given = _given(mask)
    inside = given.get("inside")
    return given.get("shape", {}).get("q", 2) == 1 or (name in _TEXTS and (inside is None or not _leaves(inside)))


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
            leaves = _leaves(self.mask)
            self.offsets = [[_offset(leaf, b, self.q_len, kv_len) for leaf in leaves] for b in range(self.batch)]
            self.texts = [leaf for leaf in leaves if _is_of_texts(leaf)]
            if self.bias is not None and self.bias.shape[1] > 1:
                hidden = self.bias <= _HIDDEN
                if (hidden != hidden[:, :1]).any():
                    raise Unreadable("a mask that differs between heads")
        except Unreadable as error:
            self.why = f"weights of single pairs are not computed here: the call has {error}"

    def offset(self, b: int) -> int:
        """The key at which query 0 stands."""
        return next((offset for offset in self.offsets[b] if offset is not None), self.kv_len - self.q_len)

    def _intervals(self, mask: Mask, b: int) -> tuple[np.ndarray, bool]:
        return _nn.key_intervals(mask._core, self.batch, b, self.q_len, self.kv_len)

    def starts(self, b: int) -> np.ndarray:
        """The first key that is a token [Tq]; of packed sequences that of each query's."""
        if not self.texts:
            return np.zeros(self.q_len, np.int64)
        return self._intervals(functools.reduce(Mask.__and__, self.texts), b)[0][:, 0].astype(np.int64)

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
        if self.offset(b) != self.kv_len - self.q_len:
            made["offset"] = self.offset(b)
        if not heads and self.q_len * self.kv_len > _SHOWN_MASK:
            return made, {}
        intervals, all_between = self._intervals(self.mask, b)
        if all_between and (intervals != (0, self.kv_len)).any():
            tensors["intervals"] = intervals
        if not heads:
            return made, {name: tensors[name] for name in ("intervals",) if name in tensors}
        if not all_between or self.bias is not None:
            planes = 1 if self.bias is None or self.bias.shape[1] == 1 else len(heads)
            if planes * self.q_len * self.kv_len * 4 > _BIAS_BYTES:
                made["refused"] = "a mask or bias of every pair of this layer is too large for a page"
                return made, {}
            tensors["bias"] = self._written(b, heads, planes, not all_between)
        return made, tensors

    def _written(self, b: int, heads: Sequence[int], planes: int, with_mask: bool) -> np.ndarray:
        """Bias, and the mask where its keys are no intervals, float32 [1 or n, Tq, Tk]; -inf hides."""
        written = np.zeros((planes, self.q_len, self.kv_len), np.float32)
        if self.bias is not None:
            values = self.bias[b if len(self.bias) > 1 else 0]
            chosen = values if len(values) == 1 else values[list(heads)]
            written += np.where(chosen > _HIDDEN, chosen, -np.inf)
        if with_mask:
            written[:, ~self.mask.to_dense(self.q_len, self.kv_len, batch=self.batch)[b, 0]] = -np.inf
        return written
