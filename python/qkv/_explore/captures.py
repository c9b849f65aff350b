"""Captures of a model's attention: tables, kinds of heads, maps, and the explorer's page.
"""

import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _html, _nn
from .._arrays import pairs_of
from .._tensors import file_name
from ..capture import Captured
from ..plotting import plot
from .file import File, Run, page_of, write_file
from .layer import WHOLE, Layer, decoded

#: Columns of a table: title, field of Captured.
_COLUMNS = (
    ("entropy_nats", "entropy"),
    ("max", "max_weight"),
    ("self", "self_"),
    ("previous", "previous"),
    ("first", "first"),
    ("distance", "distance"),
)
_BEGINNING, _READ = 28, 48  # characters of a view's name, and tokens that are read for them
_MORE = "\N{HORIZONTAL ELLIPSIS}"
_NOTEBOOK_BYTES = 64 << 20  # of a page inside of a notebook


class Captures:
    """All that was captured. In a notebook it shows the explorer's page."""

    def __init__(self, runs: list[Run], *, title: str = "", names: Callable[[int], str] | None = None) -> None:
        self.runs, self.title, self.names = runs, title, names

    @property
    def layers(self) -> list[Layer]:
        """The calls of the first run, in their order."""
        return self.runs[0].layers if self.runs else []

    def _layer(self, layer: int) -> Layer | None:
        return next((one for one in self.layers if one.index == layer), None)

    def __getitem__(self, layer: int) -> Captured:
        """Of the layer with that index."""
        found = self._layer(layer)
        if found is None:
            raise IndexError(
                f"[capture_attention] layer {layer} was not captured: there are {[one.index for one in self.layers]}"
            )
        return found.captured

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Captured]:
        return (layer.captured for layer in self.layers)

    def statistics(self) -> list[dict[str, Any]]:
        """One row per layer and head: means over the queries that are tokens, of all sequences.

        entropy_nats, max (largest weight), self, previous, first (weight on the query's own key, the one before it, key 0),
        distance (in tokens).
        """
        rows = []
        for layer in self.layers:
            if layer.captured.entropy is None:
                continue
            live = _live(layer)
            for n, head in enumerate(layer.heads):
                means = {title: float(getattr(layer.captured, name)[:, n][live].mean()) for title, name in _COLUMNS}
                rows.append({"layer": layer.index, "head": head, **means})
        return rows

    def kinds(self) -> list[dict[str, Any]]:
        """One row per layer and head: kind (docs/explore.md), share (None of a mixed head), first (mass on the first keys),
        entropy_nats (mean over the queries that are tokens), shares (of every kind that was asked for), name (the layer's), run."""
        rows = []
        for number, run in enumerate(self.runs):
            for layer in run.layers:
                live = _live(layer)
                for n, head in enumerate(layer.heads):
                    if layer.kinds is None:
                        continue
                    kind = layer.kinds[n]
                    rows.append({
                        "layer": layer.index, "head": head, "kind": kind.kind, "share": kind.share, "first": kind.first,
                        "entropy_nats": float(layer.captured.entropy[:, n][live].mean()), "shares": dict(kind.shares),
                        "name": layer.name, "run": number,
                    })  # fmt: skip
        return rows

    def table(self) -> str:
        """The statistics as text, one line per layer and head."""
        rows = self.statistics()
        if not rows:
            return "no statistics: no call was captured, or by a Capture without statistics=True"
        kinds = {(row["layer"], row["head"]): row["kind"] for row in self.kinds() if row["run"] == 0}
        titles = [*rows[0], *(["kind"] if kinds else [])]
        return _html.lines(titles, [[*row.values(), *([kinds[row["layer"], row["head"]]] if kinds else [])] for row in rows])

    def map(self, layer: int, head: int, *, sequence: int = 0) -> np.ndarray:
        """Weights of one head, [rows, columns]: every weight where the map is as large as Tq x Tk, otherwise sums over blocks
        of keys, averaged over blocks of queries (each row adds up to 1).
        """
        found = self._layer(layer)
        if found is None or found.captured.map is None:
            raise ValueError(f"[capture_attention] there is no map of layer {layer}: pass a Capture with map=(rows, columns)")
        if head not in found.heads:
            raise ValueError(f"[capture_attention] head {head} was not captured: there are {list(found.heads)}")
        sums = found.captured.map[sequence, found.heads.index(head)]
        queries = np.bincount(np.arange(found.q_len) * sums.shape[0] // found.q_len, minlength=sums.shape[0])
        return sums / queries[:, None]

    def plot(
        self, layer: int = 0, head: int | None = None, *, tokens: Sequence[str] | None = None, sequence: int = 0, **options: Any
    ) -> Any:
        """qkv.plot of one head's map, or (head None) of all of a layer; tokens label it where there is one per row and
        column.
        options: as in qkv.plot, such as path="map.png".
        """
        found = self._layer(layer)
        heads = [head] if head is not None else [0] if found is None else list(found.heads)
        weights = np.stack([self.map(layer, one, sequence=sequence) for one in heads])
        if tokens is not None and not len(tokens) == weights.shape[1] == weights.shape[2]:
            tokens = None
        return plot(weights, tokens, **options)

    def rollout(self, *, residual: float = 0.5, sequence: int = 0, run: int = 0) -> np.ndarray:
        """[T, T]: the product over the layers of residual I + (1 - residual) times the heads' mean weights, rows made to add up to 1.
        How tokens could mix, not what the model computed with them. Abnar & Zuidema 2020 (arXiv:2005.00928).

        Weights are exact up to 64 tokens; beyond, those of the page. Raises ValueError where not every weight was kept: more than
        512 tokens, cross-attention, or chosen heads or layers; for a residual outside [0, 1] and a run that there is not.
        """
        if not 0 <= residual <= 1:
            raise ValueError(f"[rollout] residual is a share and must lie in [0, 1]: got {residual}")
        if not -len(self.runs) <= run < len(self.runs):
            raise ValueError(f"[rollout] run must lie in 0..{len(self.runs) - 1}: got {run}")
        layers = [layer for layer in self.runs[run].layers if not layer.cross]
        length = layers[0].q_len if layers else 0
        product = eye = np.eye(length, dtype=np.float32)
        for layer in layers:
            whole = len(layer.heads) == layer.num_heads and layer.q_len == layer.kv_len == length
            is_map = layer.map is not None and layer.map.shape[-2:] == (length, length)
            if not whole or not is_map and layer.weights is None:
                raise ValueError("[rollout] it needs every weight of every layer of one self-attention: up to 512 tokens, all heads")
            weights = (layer.map if is_map else decoded(layer.weights))[sequence]  # type: ignore[index, arg-type]
            step = residual * eye + (1 - residual) * np.nan_to_num(weights.mean(0))
            product = (step / step.sum(1, keepdims=True)) @ product
        return product

    # The page.

    def _beginnings(self, run: Run) -> list[str]:
        """Of every sequence the first words; "": not known."""
        ids = run.ids.get("")
        if self.names is None or ids is None or run.image:
            return [""] * len(run.layers[0].pages if run.layers else ())
        text_of = getattr(self.names, "text", lambda row: "".join(map(self.names, row)))
        return [_shortened(text_of(row.tolist())) for row in ids[:, :_READ]]

    def _prefixes(self) -> list[list[str]]:
        """Of every run and sequence what tells its views from the others of the model: its first words, which heads were cut, and how."""
        made: dict[int, list[str]] = {}
        seen: Counter[tuple[str | None, int, str]] = Counter()
        whole = [run for run in self.runs if run.cut is None]
        total, before = Counter(run.name for run in whole), Counter[str | None]()
        for run in [*whole, *(run for run in self.runs if run.cut is not None)]:
            words = made[id(run.of)] if id(run.of) in made else self._beginnings(run)
            if run.cut is not None:
                words = [", ".join(filter(None, (word, _cut_in_words(run.cut)))) for word in words]
            elif total[run.name] > 1:
                words = [word or f"{'image' if run.image else 'text'} {before[run.name]}" for word in words]
                before[run.name] += 1
            seen.update((run.name, b, word) for b, word in enumerate(words))
            counts = [seen[run.name, b, word] for b, word in enumerate(words)]
            made[id(run)] = [f"{word} ({count})" if word and count > 1 else word for word, count in zip(words, counts)]
        return [made[id(run)] for run in self.runs]

    def save(
        self, path: str | os.PathLike[str], *, title: str | None = None, tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        weights: Sequence[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """Writes the explorer's page (.html), or the file from which `qkv map --qk` makes it (.safetensors, docs/explorer-file.md);
        whole or not at all.

        Args:
            title: above the page.
            tokens: names of the positions, where they are not known already; for an encoder-decoder {"": [...], "decoder": [...]}.
            weights: (layer, head) of which every weight is stored; None: of all, up to 512 tokens.

        Raises ValueError for another ending, heads that are not there, and where only chosen heads were captured.
        """
        ending = Path(path).suffix
        if ending not in (".html", ".safetensors"):
            raise ValueError(f"[save] the file must end in .html or .safetensors: got {os.fspath(path)}")
        name = file_name(path)
        json, tensors = self._made(title=title, tokens=tokens, weights=weights)
        if ending == ".html":
            _nn.write_file(name, page_of(json, tensors).encode())
        else:
            write_file(path, json, tensors)

    def html(self, **options: Any) -> str:
        """The explorer's page as text; options as in :meth:`save`."""
        return page_of(*self._made(**options))

    def _made(self, *, title: Any = None, tokens: Any = None, weights: Any = None) -> tuple[Any, Any]:
        if not any(run.layers for run in self.runs):
            raise ValueError("[save] nothing was captured: no call of attention went through qkv; see docs/explore.md")
        named = tokens if isinstance(tokens, Mapping) else {} if tokens is None else {"": list(tokens)}
        chosen: dict[int, list[int]] | None = None if weights is None else {}
        for layer, head in () if weights is None else pairs_of(weights, "[save] weights"):
            found = self._layer(layer)
            if found is None or head not in found.heads:
                raise ValueError(f"[save] weights: there is no layer {layer} with a head {head}")
            if found.weights is None:
                raise ValueError(
                    f"[save] weights: those of layer {layer} were not kept, as they are up to {WHOLE} tokens; at any length: "
                    f"exact=[({layer}, {head})]"
                )
            chosen.setdefault(layer, []).append(head)  # type: ignore[union-attr]
        file = File(self.names, named, chosen)
        for run, prefixes in zip(self.runs, self._prefixes()):
            file.add(run, prefixes)
        if lost := named.keys() - file.sides:
            raise ValueError(f"[save] tokens: the sides of texts are {sorted(file.sides)}: got {sorted(lost)}")
        notes = [note for run in self.runs for note in run.notes]
        json = {"title": str(title or self.title or "attention"), "notes": notes, "texts": file.texts, "views": file.views}
        if file.words:
            json["words"] = [self.names(number) if self.names else str(number) for number in file.words]
        return json, file.tensors

    def _repr_html_(self) -> str:
        rows = self.statistics()
        if not rows:
            return f"<p>{_html.text(self.table())}</p>"
        try:
            page = self.html()
        except (ValueError, RuntimeError, OSError):
            page = ""  # chosen heads only, or no tool: the table still shows them
        if page and len(page) <= _NOTEBOOK_BYTES:
            return _html.framed(page)
        return _html.table(list(rows[0]), [list(row.values()) for row in rows])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.layers)} layers)\n{self.table()}"


def _shortened(text: str) -> str:
    """Whole words, or where there are no blanks characters."""
    words = textwrap.shorten(text, _BEGINNING, placeholder=_MORE)
    return words if words != _MORE else text.strip()[: _BEGINNING - 1] + _MORE


def _cut_in_words(cut: Mapping[str, Any]) -> str:
    heads = ",".join(f"{layer}:{head}" for layer, head in cut["heads"]) or "nothing"
    if cut["with"] == "patch":
        return f"patch {heads} from {_shortened(cut['from'])}"
    return f"cut {heads}" + (f" ({cut['with']})" if cut["with"] != "zero" else "")


def _live(layer: Layer) -> np.ndarray:
    batch = layer.captured.entropy.shape[0]
    return np.ones((batch, layer.q_len), bool) if layer.live is None else layer.live
