"""The full form of the explorer's file (docs/explorer-file.md) from layers that were looked at. Not: the page, which the C++ library
makes of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .layer import Layer, block_means, coded, decoded, merged

FORMAT = "qkv.explorer.1"
_ROWS = 512  # numbers per row statistic and of the column mass
_STATISTICS = {
    "entropy": "entropy",
    "largest": "max_weight",
    "self": "self_",
    "previous": "previous",
    "first": "first",
    "distance": "distance",
    "sink": "sink",
}


@dataclass
class Text:
    """A sequence of positions. tokens: their names; None: only their number is known."""

    name: str
    length: int
    tokens: list[str] | None = field(default=None, repr=False)
    answer: int | None = None  #: the first position that the model generated
    image: tuple[int, int, int] | None = None  #: first patch, height, width

    def json(self) -> dict[str, Any]:
        """The text's entry."""
        made: dict[str, Any] = {"name": self.name, "tokens": self.tokens}
        if self.tokens is None:
            made["length"] = self.length
        if self.answer is not None:
            made["answer"] = self.answer
        if self.image is not None:
            made["image"] = dict(zip(("start", "height", "width"), self.image))
        return made


@dataclass
class View:
    """A stack of layers on one sequence of the batch. Several parts of a layer never overlap: a prompt, and the answer behind it."""

    name: str
    queries: Text
    keys: Text
    layers: list[Layer]
    sequence: int = 0
    group: str | None = None
    relevance: dict[str, Any] | None = None
    rollout: tuple[np.ndarray, float] | None = field(default=None, repr=False)  #: [R, C], and the residual's share
    no_rollout: str | None = None  #: why there is none, where it was asked for


def stack_of(name: str) -> str:
    """What comes before the number of a layer: "model.layers" of "model.layers.3.self_attn"."""
    return re.split(r"\.\d+(?:\.|$)", name, maxsplit=1)[0]


def _peaked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """[heads, ...] as bytes, the peak of each head, and the largest error."""
    peaks = np.nanmax(values.reshape(len(values), -1), axis=1, initial=0.0).astype(np.float32)
    safe = np.where(peaks > 0, peaks, 1).reshape(-1, *(1,) * (values.ndim - 1))
    codes = coded(values / safe)
    return codes, peaks, float(np.nanmax(abs(decoded(codes) * safe - values), initial=0.0))


def _head_info(layer: Layer, b: int) -> list[dict[str, Any]]:
    seen, made = layer.captured, []
    live = slice(None) if layer.live is None else layer.live[b]
    for place in range(len(layer.heads)):
        info: dict[str, Any] = {}
        if layer.kinds is not None:
            kind = layer.kinds[place]
            info = {"kind": kind.kind, "first": round(kind.first, 4)}
            if kind.share is not None:
                info["share"] = round(kind.share, 4)
            info |= {f"{name} share": round(share, 4) for name, share in kind.shares.items() if name != "first"}
        for title, name in (("entropy", "entropy"), ("largest", "max_weight"), ("distance", "distance")):
            values = getattr(seen, name)
            if values is not None and values[b, place][live].size and np.isfinite(values[b, place][live]).all():
                info[title] = round(float(values[b, place][live].mean()), 4)
        made.append(info)
    return made


def _whole(heads: Sequence[int], wanted: Sequence[int] | None) -> list[int]:
    """Places of the heads whose weights are all stored."""
    return [place for place, head in enumerate(heads) if wanted is None or head in wanted]


def _layer(layer: Layer, b: int, view: View, prefix: str, tensors: dict[str, np.ndarray], weights: Sequence[int] | None) -> Any:
    formula, parts = layer.pages[b]
    heads = list(layer.heads)
    if heads != list(range(layer.num_heads)):
        raise ValueError(f"[save] a page shows every head of a layer: layer {layer.index} was looked at in heads {heads} only")
    made: dict[str, Any] = {
        "name": layer.name, "heads": layer.num_heads, "kv_heads": layer.num_kv_heads, "q_len": layer.q_len, "kv_len": layer.kv_len,
        "formula": formula, "head_info": _head_info(layer, b),
    }  # fmt: skip
    for name, length, text in (("q_first", layer.q_len, view.queries), ("kv_first", layer.kv_len, view.keys)):
        at = 0 if layer.cross else layer.key_first + (layer.offsets[b] if name == "q_first" else 0)
        if at + length <= text.length and at:
            made[name] = at
    errors: dict[str, float] = {}
    if layer.map is not None:
        tensors[f"{prefix}/map"], tensors[f"{prefix}/map_peak"], errors["map"] = _peaked(layer.map[b])
    if layer.captured.column_mass is not None and layer.q_len:
        mass = merged(layer.captured.column_mass[b], 1, _ROWS) / layer.q_len
        tensors[f"{prefix}/mass"], tensors[f"{prefix}/mass_peak"], _ = _peaked(mass)
    places = _whole(heads, weights)
    if layer.weights is not None and places:
        whole = len(places) == len(heads)
        tensors[f"{prefix}/weights"] = layer.weights[b] if whole else layer.weights[b][places]
        if not whole:
            made["weights"] = [heads[place] for place in places]
        errors["weights"] = layer.weights_error
    for title, name in _STATISTICS.items():
        values = getattr(layer.captured, name)
        if values is not None and values.size and (name != "sink" or values.any()):
            tensors[f"{prefix}/rows/{title}"] = block_means(merged(values[b], 1, _ROWS)[..., None], layer.q_len)[..., 0]
    if layer.exact is not None and "refused" not in formula:
        exact = layer.exact
        made |= {"exact": list(exact.heads), "exact_kv": list(exact.kv_heads)}
        for name in ("q", "k", "lse"):
            tensors[f"{prefix}/{name}"] = np.ascontiguousarray(getattr(exact, name)[b])
        tensors |= {f"{prefix}/{name}": values for name, values in parts.items()}
        errors["exact"] = exact.error
    if layer.relevance is not None:
        largest = max(float(np.nanmax(layer.relevance[b], initial=0.0)), 1e-30)
        tensors[f"{prefix}/relevance"] = coded(layer.relevance[b] / largest)
    if errors:
        made["errors"] = errors
    return made


def made_of(
    views: Sequence[View], title: str, notes: Sequence[str] = (), weights: dict[int, list[int]] | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON and the tensors. weights: by layer, the heads whose weights are all stored; None: all that there are."""
    texts: list[Text] = []
    for view in views:
        for text in (view.queries, view.keys):
            if not any(text is other for other in texts):
                texts.append(text)
    tensors: dict[str, np.ndarray] = {}
    described = []
    for n, view in enumerate(views):
        number = {id(text): place for place, text in enumerate(texts)}
        made: dict[str, Any] = {
            "name": view.name, "kind": "cross" if view.layers[0].cross else "self", "queries": number[id(view.queries)],
            "keys": number[id(view.keys)],
        }  # fmt: skip
        if view.group is not None:
            made["group"] = view.group
        made["layers"] = [
            _layer(layer, view.sequence, view, f"{n}/{m}", tensors, None if weights is None else weights.get(layer.index, []))
            for m, layer in enumerate(view.layers)
        ]
        if view.relevance is not None:
            made["relevance"] = view.relevance
        if view.rollout is not None:
            tensors[f"{n}/rollout"] = coded(view.rollout[0])
            made["rollout"] = {"residual": view.rollout[1]}
        elif view.no_rollout is not None:
            made["rollout"] = {"refused": view.no_rollout}
        described.append(made)
    json = {"title": title, "notes": list(notes), "texts": [text.json() for text in texts], "views": described}
    return json, tensors
