"""The full form of the explorer's file (docs/explorer-file.md) from captured layers, view by view, and the page that the C++ library makes of it.
"""

from __future__ import annotations

import json as encoder
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _html, _nn, io
from .layer import WHOLE, Layer, block_means, coded, decoded, merged

FORMAT = "qkv.explorer.1"
_ROWS = 512  # numbers per row statistic and of the column mass
_F16 = 6e4  # numbers up to here are stored in 16 bits
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
class Run:
    """One forward of a model. ids: token numbers [B, T] by the side they belong to, "" or
    "decoder"; image: first patch, height, width."""

    layers: list[Layer]
    ids: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    image: tuple[int, int, int] | None = None
    answer: tuple[str, int] | None = None  #: side and position of the first token that the model generated
    name: str | None = None
    notes: list[str] = field(default_factory=list)
    numbers: dict[str, dict[int, np.ndarray]] = field(default_factory=dict, repr=False)  #: of every head, by name and call
    said: dict[str, Any] = field(default_factory=dict, repr=False)  #: loss, losses, next: docs/explorer-file.md
    cut: dict[str, Any] | None = None  #: heads (call, head), with, from, and what changed
    of: Run | None = field(default=None, repr=False)  #: the same text with no head cut


def _stack_of(name: str) -> str:
    """The name before the number of a layer: "model.layers" of "model.layers.3.self_attn"."""
    return re.split(r"\.\d+(?:\.|$)", name, maxsplit=1)[0]


def _peaked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """[heads, ...] as bytes, the peak of each head, and the largest error."""
    peaks = np.nanmax(values.reshape(len(values), -1), axis=1, initial=0.0).astype(np.float32)
    safe = np.where(peaks > 0, peaks, 1).reshape(-1, *(1,) * (values.ndim - 1))
    codes = coded(values / safe)
    return codes, peaks, float(np.nanmax(abs(decoded(codes) * safe - values), initial=0.0))


def _head_info(layer: Layer, b: int, numbers: Mapping[str, Mapping[int, np.ndarray]]) -> list[dict[str, Any]]:
    made = []
    live = slice(None) if layer.live is None else layer.live[b]
    for n in range(len(layer.heads)):
        info: dict[str, Any] = {}
        if layer.kinds is not None:
            kind = layer.kinds[n]
            info = {"kind": kind.kind, "first": round(kind.first, 4)}
            if kind.share is not None:
                info["share"] = round(kind.share, 4)
            info |= {f"{name} share": round(share, 4) for name, share in kind.shares.items() if name != "first"}
        for title, name in (("entropy", "entropy"), ("largest", "max_weight"), ("distance", "distance")):
            values = getattr(layer.captured, name)
            if values is not None and values[b, n][live].size and np.isfinite(values[b, n][live]).all():
                info[title] = round(float(values[b, n][live].mean()), 4)
        if layer.writes is not None:
            info["writes"] = round(float(layer.writes.sizes[b, n][live].mean()), 4)
        if layer.writes is not None and layer.writes.next_token is not None:
            pairs = slice(None, -1) if layer.live is None else np.flatnonzero(live[:-1] & live[1:])  # type: ignore[index]
            values = layer.writes.next_token[b, n, pairs]
            info["next token"] = round(float(values.mean()), 4) if values.size else 0.0
            info["copies"] = round(float(layer.writes.copies[b, n]), 4)
        for name, by_layer in numbers.items():
            if layer.index in by_layer:
                info[name] = round(float(by_layer[layer.index][layer.heads[n]]), 6)
        made.append(info)
    return made


class File:
    """The JSON and the tensors. names: tokens by number; given: tokens by side; weights: by layer, the heads whose weights are all stored, None:
    all that there are."""

    def __init__(
        self, names: Callable[[int], str] | None, given: Mapping[str, Sequence[str]], weights: Mapping[int, Sequence[int]] | None
    ) -> None:
        self.names, self.given, self.weights = names, given, weights
        self.texts: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        self.sides: set[str] = set()  # of the texts
        self.words: dict[int, int] = {}  # of tokens that heads raise and lower: their places in the file's list
        self._at: dict[tuple[int, Any, int], int] = {}  # the view of a run's stack and sequence
        self.tensors: dict[str, np.ndarray] = {}

    def add(self, run: Run, prefixes: Sequence[str]) -> None:
        """A view per stack of layers and sequence; prefixes: what tells sequences apart, "" where nothing is known."""
        crossing = {_stack_of(layer.name) for layer in run.layers if layer.cross}
        batch = len(run.layers[0].pages) if run.layers else 0

        def side_of(layer: Layer, keys: bool) -> str:
            return "decoder" if _stack_of(layer.name) in crossing and not (layer.cross and keys) else ""

        lengths: dict[str, int] = {}
        for layer in run.layers:
            behind = layer.q_len + (0 if layer.cross else max(layer.offsets, default=0))
            for side, length in ((side_of(layer, False), behind), (side_of(layer, True), layer.kv_len)):
                lengths[side] = max(lengths.get(side, 0), length)
        for b in range(batch):
            texts: dict[str, int] = {}
            prefix = prefixes[b] if b < len(prefixes) else ""

            def text_of(side: str, b: int = b, texts: dict[str, int] = texts, prefix: str = prefix) -> int:
                if side not in texts:
                    words = (side or "text" * (not prefix), prefix, f"{b}" if batch > 1 else "")
                    made = self._text(run, side, b, lengths[side])
                    if run.answer is not None and run.answer[0] == side:
                        made["answer"] = run.answer[1]
                    self.texts.append({"name": " ".join(filter(None, words)), **made})
                    texts[side] = len(self.texts) - 1
                return texts[side]

            found: dict[Any, list[Layer]] = {}
            for layer in run.layers:
                found.setdefault((_stack_of(layer.name), layer.cross), []).append(layer)
            for (stack, cross), some in found.items():
                words = (stack, "cross" * cross, prefix, f"sequence {b}" * (batch > 1))
                sides = [text_of(side_of(some[0], keys)) for keys in (False, True)]
                view = {"name": " ".join(filter(None, words)), "kind": "cross" if cross else "self", "queries": sides[0], "keys": sides[1]}
                if run.name is not None:
                    view["group"] = run.name
                if not cross and side_of(some[0], False) == ("decoder" if crossing else ""):
                    view |= run.said
                if run.cut is not None:
                    view["cut"] = self._cut(run, (stack, cross), b, some)
                size = [lengths[side_of(some[0], keys)] for keys in (False, True)]
                at = self._at[id(run), (stack, cross), b] = len(self.views)
                view["layers"] = [
                    # Chosen layers, and a decoder's beside its encoder: numbered as cut() and --exact take them.
                    self._layer(layer, b, size, f"{at}/{m}", run) | ({"number": layer.index} if layer.index != m else {})
                    for m, layer in enumerate(some)
                ]
                self.views.append(view)

    def _text(self, run: Run, side: str, b: int, length: int) -> dict[str, Any]:
        """A sequence of positions: their names, or how many there are; an image's grid."""
        self.sides.add(side)
        ids = run.ids.get(side)
        tokens = [str(token) for token in self.given[side]] if side in self.given else None
        if tokens is not None and len(tokens) != length:
            raise ValueError(f"[save] tokens must name the {length} positions{' of the decoder' * bool(side)}: got {len(tokens)}")
        if tokens is None and ids is not None and ids.shape[1] == length:
            tokens = [self.names(int(n)) if self.names else str(int(n)) for n in ids[b if len(ids) > 1 else 0]]
        made: dict[str, Any] = {"tokens": tokens} if tokens is not None else {"tokens": None, "length": length}
        if run.image is not None and not side and length >= run.image[0] + run.image[1] * run.image[2]:
            made["image"] = dict(zip(("start", "height", "width"), run.image))
        return made

    def _cut(self, run: Run, stack: Any, b: int, layers: Sequence[Layer]) -> dict[str, Any]:
        """With the layers' numbers in this view."""
        at = {layer.index: m for m, layer in enumerate(layers)}
        cut = dict(run.cut or {})
        for name in ("heads", "others"):
            cut[name] = [[at[index], *rest] for index, *rest in cut[name] if index in at]
        return cut | ({"of": self._at[id(run.of), stack, b]} if (id(run.of), stack, b) in self._at else {})

    def _written(self, layer: Layer, b: int, prefix: str) -> None:
        made = layer.writes
        is_short = made.norms.shape[2] <= WHOLE or made.norms[b].max(initial=0) > _F16
        self.tensors[f"{prefix}/norms"] = made.norms[b].astype(np.float32 if is_short else np.float16)
        rows = {"writes": made.sizes, "next token": made.next_token}
        for name, values in rows.items():
            if values is not None:
                self.tensors[f"{prefix}/rows/{name}"] = block_means(merged(values[b], 1, _ROWS)[..., None], layer.q_len)[..., 0]
        for name in ("push", "ov"):
            numbers = getattr(made, name)
            if numbers is not None:
                flat = [self.words.setdefault(int(number), len(self.words)) for number in numbers[b].ravel()]
                self.tensors[f"{prefix}/{name}"] = np.array(flat, np.float32).reshape(numbers[b].shape)
        if made.push_by is not None:
            self.tensors[f"{prefix}/push_by"] = made.push_by[b].astype(np.float16 if abs(made.push_by[b]).max(initial=0) < _F16 else np.float32)

    def _layer(self, layer: Layer, b: int, lengths: Sequence[int], prefix: str, run: Run) -> dict[str, Any]:
        """lengths: of the texts of queries and keys."""
        formula, parts = layer.pages[b]
        heads, tensors = list(layer.heads), self.tensors
        if heads != list(range(layer.num_heads)):
            raise ValueError(f"[save] a page shows every head of a layer: layer {layer.index} was captured in heads {heads} only")
        made: dict[str, Any] = {
            "name": layer.name, "heads": layer.num_heads, "kv_heads": layer.num_kv_heads, "q_len": layer.q_len, "kv_len": layer.kv_len,
            "formula": formula, "head_info": _head_info(layer, b, run.numbers),
        }  # fmt: skip
        at = 0 if layer.cross else layer.offsets[b]
        if at > 0 and at + layer.q_len <= lengths[0]:
            made["q_first"] = at
        errors: dict[str, float] = {}
        if layer.map is not None:
            tensors[f"{prefix}/map"], tensors[f"{prefix}/map_peak"], errors["map"] = _peaked(layer.map[b])
        if layer.captured.column_mass is not None and layer.q_len:
            mass = merged(layer.captured.column_mass[b], 1, _ROWS) / layer.q_len
            tensors[f"{prefix}/mass"], tensors[f"{prefix}/mass_peak"], _ = _peaked(mass)
        wanted = heads if self.weights is None else [head for head in heads if head in self.weights.get(layer.index, ())]
        if layer.weights is not None and wanted:
            tensors[f"{prefix}/weights"] = layer.weights[b] if wanted == heads else layer.weights[b][wanted]
            if wanted != heads:
                made["weights"] = wanted
            errors["weights"] = layer.weights_error
        for title, name in _STATISTICS.items():
            values = getattr(layer.captured, name)
            if values is not None and values.size and (name != "sink" or values.any()):
                tensors[f"{prefix}/rows/{title}"] = block_means(merged(values[b], 1, _ROWS)[..., None], layer.q_len)[..., 0]
        if layer.writes is not None:
            self._written(layer, b, prefix)
        if layer.exact is not None and "refused" not in formula:
            exact = layer.exact
            made |= {"exact": list(exact.heads), "exact_kv": list(exact.kv_heads)}
            for name in ("q", "k", "lse"):
                tensors[f"{prefix}/{name}"] = np.ascontiguousarray(getattr(exact, name)[b])
            errors["exact"] = exact.error
        tensors |= {f"{prefix}/{name}": values for name, values in parts.items()}
        if errors:
            made["errors"] = errors
        return made


def finite(x: Any) -> Any:
    """None instead of NaN and infinity, which JSON does not have: of a model that gives NaN, everything else is shown."""
    if isinstance(x, dict):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def write_file(path: str | os.PathLike[str], json: dict[str, Any], tensors: dict[str, Any]) -> None:
    """The explorer's file."""
    text = _html.utf8(encoder.dumps(finite(json), ensure_ascii=False, allow_nan=False))
    io.save_safetensors(path, tensors, {"format": FORMAT, "explorer": text, "title": _html.utf8(json["title"])})


def page_of(json: dict[str, Any], tensors: dict[str, Any]) -> str:
    """The page as HTML; one with a server behind it may ask that."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "explorer.safetensors")
        write_file(file, json, tensors)
        return _nn.explorer_page(os.fspath(file), "live" in json)
