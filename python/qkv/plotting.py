"""Pictures of attention: rows are queries, columns keys, colour the weight. PNG, SVG and one offline HTML page are drawn by qkv
itself; a matplotlib figure needs matplotlib. The weights come from ``qkv.attention(..., weights="all")``.
"""

from __future__ import annotations

import functools
import html
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _nn

__all__ = ["AttentionMap", "Picture", "plot"]

# A page in a notebook's frame says how high it is, now and whenever that changes; the notebook's page resizes the frame.
_SAY_HEIGHT = (
    "new ResizeObserver(() => parent.postMessage({qkvHeight: document.documentElement.offsetHeight}, '*'))"
    ".observe(document.documentElement);"
)
_HEAR_HEIGHT = (
    "addEventListener('message', e => { if (e.data && e.data.qkvHeight) "
    "for (const f of document.querySelectorAll('iframe.qkv-map')) "
    "if (f.contentWindow === e.source) f.style.height = Math.min(Math.ceil(e.data.qkvHeight), 1600) + 'px'; });"
)


class AttentionMap:
    """Attention weights with the labels of their rows and columns. ``np.asarray(map)`` is the array.

    weights: float32 [H, Tq, Tk], or [L, H, Tq, Tk] of several layers.  tokens: labels of queries and keys, or None.
    """

    def __init__(self, weights: np.ndarray, tokens: Sequence[str] | None = None, title: str = "") -> None:
        self.weights, self.tokens, self.title = weights, None if tokens is None else list(tokens), title

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.weights, dtype=dtype) if copy else np.asarray(self.weights, dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.weights[index]

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.shape

    def plot(self, *, path: str | os.PathLike[str] | None = None, **options: Any) -> Picture:
        """:func:`plot` of this map."""
        return plot(self, path=path, **options)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    def __repr__(self) -> str:
        said = f", {self.title!r}" if self.title else ""
        return f"AttentionMap({list(self.shape)}{said})"

    def __str__(self) -> str:
        return str(self.plot())


class Picture:
    """A map that shows itself: ``figure`` for matplotlib, ``png()``, ``svg()``, ``html()``, ``save(path)``; ``print(picture)``
    in a terminal; in a notebook, as it is."""

    def __init__(self, core: Any, weights: np.ndarray, labels: tuple[list[str], list[str]], options: dict[str, Any]) -> None:
        self._core, self._weights, self._labels, self._options = core, weights, labels, options

    def png(self) -> bytes:
        """An 8-bit palette PNG: one panel per head, labels, colour bar."""
        return self._core.png()

    def svg(self) -> str:
        """SVG 1.1 with real text and a tooltip on every cell."""
        return self._core.svg()

    def html(self) -> str:
        """One HTML page that needs no network: choose layer and head, hover for values; light and dark theme."""
        return self._core.html()

    def terminal(self, *, colour: bool | None = None, columns: int | None = None) -> str:
        """Text for a terminal. colour: None: where standard output is a terminal and NO_COLOR is not set."""
        if colour is None:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        if columns is None:
            columns = os.get_terminal_size().columns if sys.stdout.isatty() else 100
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        return self._core.terminal(colour, unicode, columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .png, .svg or .html, whole or not at all. Raises IoError (an OSError)."""
        name = os.fspath(path)
        ending = os.path.splitext(name)[1].lower()
        if ending not in (".png", ".svg", ".html"):
            raise ValueError(f"[plot] path must end in .png, .svg or .html: got {name!r}")
        drawn = {".png": self.png, ".svg": self.svg, ".html": self.html}[ending]()
        _nn.write_file(name, drawn if isinstance(drawn, bytes) else drawn.encode())

    def statistics(self, layer: int = 0, head: int = 0) -> dict[str, float]:
        """How one head spreads its attention: means over rows i >= 1 of the weight on the query's own position ("self"), the
        one before ("previous"), key 0 ("first"), of the "largest" weight, of the entropy ("entropy_nats"); and how many "rows"."""
        return self._core.statistics(layer, head)

    @functools.cached_property
    def figure(self) -> Any:
        """A matplotlib.figure.Figure with the same panels; None where matplotlib is not installed."""
        try:
            return _figure(self)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "matplotlib":
                raise
            return None

    def _repr_png_(self) -> bytes:
        return self.png()

    def _repr_html_(self) -> str:
        layers, heads = self._weights.shape[:2]
        height = 660 if layers * heads == 1 else 770 + 95 * min(3, (heads - 1) // 8) + 60 * (layers > 1)  # until the page says
        page = html.escape(self.html().replace("</body>", f"<script>{_SAY_HEIGHT}</script>\n</body>"), quote=True)
        frame = f'<iframe srcdoc="{page}" class="qkv-map" sandbox="allow-scripts" style="width:100%;height:{height}px;border:0">'
        return f"{frame}</iframe><script>{_HEAR_HEIGHT}</script>"

    def __str__(self) -> str:
        return self.terminal()

    def __repr__(self) -> str:
        layers, heads, queries, keys = self._weights.shape
        return f"Picture({layers} x {heads} heads, {queries} queries x {keys} keys; print() it, or .figure, .save(path))"


def plot(
    weights: Any,
    tokens: Sequence[str] | str | None = None,
    *,
    key_tokens: Sequence[str] | str | None = None,
    sequence: int | None = None,
    path: str | os.PathLike[str] | None = None,
    title: str = "",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    range: str = "unit",
    scale: str = "sqrt",
    numbers: bool = True,
) -> Picture:
    """A picture of weights.

    Args:
        weights: [Tq, Tk], [H, Tq, Tk], [L, H, Tq, Tk] of several layers (say ``layers``) or [B, H, Tq, Tk] of a batch (say
            ``sequence``), any array; or an :class:`AttentionMap`.
        tokens: labels of the rows, and of the columns unless key_tokens is given or Tk != Tq; a str: its characters.
        sequence: which sequence of weights [B, H, Tq, Tk] is drawn.
        path: also write the picture there: .png, .svg or .html.
        layers, heads: which, in this order; none: all.
        range: "unit" (weight 1 has the last colour, so pictures can be compared) or "max" (the largest weight has it).
        scale: "sqrt" (1 % is still visible) or "linear".  numbers: percent in cells, where they fit.
    Returns:
        a :class:`Picture`.
    Raises:
        ValueError: for shapes or labels that do not fit, and for a weight that is negative or not finite.
    """
    array = _chosen(weights, sequence, layers)
    if isinstance(weights, AttentionMap):
        tokens = weights.tokens if tokens is None else tokens
        title = title or weights.title
    if range not in ("unit", "max"):
        raise ValueError(f'[plot] range must be "unit" or "max": got {range!r}')
    if scale not in ("sqrt", "linear"):
        raise ValueError(f'[plot] scale must be "sqrt" or "linear": got {scale!r}')
    rows = _labels(tokens)
    columns = _labels(key_tokens) if key_tokens is not None else rows if array.shape[2] == array.shape[3] else []
    options = {"title": title, "layers": list(layers), "heads": list(heads), "scale": scale, "numbers": numbers}
    core = _nn.attention_map(array, rows, columns, title, options["layers"], options["heads"], range, scale, numbers)
    picture = Picture(core, array, (rows, columns), options)
    if path is not None:
        picture.save(path)
    return picture


def _chosen(weights: Any, sequence: int | None, layers: Sequence[int]) -> np.ndarray:
    """[L, H, Tq, Tk] of what plot was given."""
    first, rank = len(weights), len(weights.shape) if hasattr(weights, "shape") else np.ndim(weights)
    if sequence is not None:
        if rank != 4 or isinstance(weights, AttentionMap):
            raise ValueError(f"[plot] sequence chooses one of weights [B, H, Tq, Tk]: got {list(np.shape(weights))}")
        if not -first <= sequence < first:
            raise ValueError(f"[plot] sequence must lie in 0..{first - 1}: got {sequence}")
        return _array(weights[sequence])
    if rank == 4 and first > 1 and not len(layers) and not isinstance(weights, AttentionMap):
        raise ValueError(
            f"[plot] the first axis of weights may count sequences or layers: got {list(np.shape(weights))}; sequence=0 draws the "
            f"first sequence of a batch, layers=range({first}) every layer"
        )
    return _array(weights)


def _array(weights: Any) -> np.ndarray:
    if hasattr(weights, "detach"):  # PyTorch
        weights = weights.detach().float().cpu().numpy()
    array = np.asarray(weights)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise TypeError(f"[plot] weights must be numbers: got {array.dtype.name}")
    if not 2 <= array.ndim <= 4:
        raise ValueError(f"[plot] weights must be [Tq, Tk], [H, Tq, Tk] or [L, H, Tq, Tk]: got {list(array.shape)}")
    array = np.ascontiguousarray(array, dtype=np.float32)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _labels(tokens: Sequence[str] | str | None) -> list[str]:
    if tokens is None:
        return []
    return _nn.characters(tokens) if isinstance(tokens, str) else [str(token) for token in tokens]


def _figure(picture: Picture) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, PowerNorm
    from matplotlib.figure import Figure

    weights, (rows, columns), options = picture._weights, picture._labels, picture._options
    layers, heads = (
        options["layers"] or list(np.arange(weights.shape[0])),
        options["heads"] or list(np.arange(weights.shape[1])),
    )
    panels = [(layer, head) for layer in layers for head in heads]
    across = min(len(heads), 4)
    down = -(-len(panels) // across)
    queries, keys = weights.shape[2:]
    cell = min(0.42, 6 / max(queries, keys)) if across == 1 else min(0.36, 3 / max(queries, keys))
    size = (across * (keys * cell + 0.45) + 1.1, down * (queries * cell + 0.9) + (0.3 if options["title"] else 0))
    figure = Figure(figsize=size, layout="compressed")
    colours = ListedColormap(np.array(_nn.colour_map()) / 255, name="qkv").with_extremes(bad=np.array(_nn.NAN_COLOUR) / 255)
    norm = PowerNorm(0.5 if options["scale"] == "sqrt" else 1.0, 0, picture._core.top_weight())
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for place, axis in enumerate(axes):
        if place >= len(panels):
            axis.set_visible(False)
            continue
        layer, head = panels[place]
        panel = weights[layer, head]
        axis.imshow(panel, cmap=colours, norm=norm, interpolation="nearest", aspect="equal")
        if len(panels) > 1:
            axis.set_title(f"head {head}" if len(layers) == 1 else f"layer {layer}, head {head}", fontsize=9)
        _ticks(axis.xaxis, columns, keys)
        _ticks(axis.yaxis, rows, queries)
        axis.tick_params(length=0, labelsize=8)
        if place % across == 0:
            axis.set_ylabel("query", fontsize=8)
        if place + across >= len(panels):
            axis.set_xlabel("key", fontsize=8)
        if options["numbers"] and cell >= 0.3:
            _percents(axis, panel, norm)
    figure.colorbar(ScalarMappable(norm, colours), ax=list(axes), label="weight", fraction=0.05)
    if options["title"]:
        figure.suptitle(options["title"], fontsize=10)
    return figure


def _ticks(axis: Any, labels: list[str], count: int) -> None:
    step = max(1, count // 32)
    places = list(np.arange(0, count, step))
    axis.set_ticks(places, [labels[p].replace("$", r"\$") if labels else str(p) for p in places])


def _percents(axis: Any, panel: np.ndarray, norm: Any) -> None:
    for i, j in np.ndindex(panel.shape):
        if np.isfinite(panel[i, j]) and panel[i, j] >= 0.005:
            dark = norm(panel[i, j]) > 0.5
            axis.text(
                j, i, f"{100 * panel[i, j]:.0f}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
