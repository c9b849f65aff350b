"""Pictures of attention: rows are queries, columns keys, colour the weight. SVG and one offline HTML page are drawn by qkv itself;
PNG and PDF too where it was built with Pango, otherwise by matplotlib (``pip install matplotlib``), as figures always are. The
weights come from ``qkv.attention(..., weights="all")``.
"""

from __future__ import annotations

import functools
import operator
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, _html, _nn
from .._arrays import integers, require_unmasked
from .._tensors import file_name
from . import figure as _figure

__all__ = ["AttentionMap", "Picture", "plot"]


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
        """Of the weights: (H, Tq, Tk) or (L, H, Tq, Tk)."""
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
    """A map that shows itself: ``figure`` for matplotlib, ``png()``, ``pdf()``, ``svg()``, ``html()``, ``save(path)``;
    ``print(picture)`` in a terminal; in a notebook, as it is."""

    def __init__(self, core: Any, weights: np.ndarray, labels: tuple[list[str], list[str]], options: dict[str, Any]) -> None:
        self._core, self._weights, self._labels, self._options = core, weights, labels, options

    def png(self, pixel_ratio: float = 1.0) -> bytes:
        """A PNG: one panel per head, labels, colour bar. Warns of characters that no installed font has.

        Args:
            pixel_ratio: 1 to 8: 2 for dense screens, 3 for print; the file says its dots per inch, so that its size stays.
        Raises:
            ValueError: for another pixel_ratio.
            ImportError: where neither Pango was built in nor matplotlib is installed.
        """
        if not 1 <= pixel_ratio <= 8:
            raise ValueError(f"[plot] pixel_ratio must be in 1 .. 8: got {pixel_ratio!r}")
        return self._drawn("png", float(pixel_ratio))

    def pdf(self) -> bytes:
        """One page of PDF, lines and text as vectors, its fonts inside. Warns and raises as :meth:`png`."""
        return self._drawn("pdf", 1.0)

    def _drawn(self, kind: str, pixel_ratio: float) -> bytes:
        if _nn.draws_text():
            missing = self._core.missing()
            drawn = self._core.png(pixel_ratio) if kind == "png" else self._core.pdf()
        elif (figure := self._new_figure()) is None:  # not self.figure: its layout moves a little each time it is drawn
            raise ImportError(
                "[plot] PNG and PDF need matplotlib here: pip install matplotlib, or write .svg or .html", name="matplotlib"
            )
        else:
            drawn, missing = _figure.saved(figure, kind, pixel_ratio)
        if missing:
            names = ", ".join(f"{text} (U+{code:04X})" for text, code in missing[:4])
            more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
            warnings.warn(f"[plot] no installed font has {names}{more}: the picture shows boxes", stacklevel=3)
        return drawn

    def svg(self) -> str:
        """SVG 1.1 with real text and a tooltip on every cell."""
        return self._core.svg()

    def html(self) -> str:
        """One HTML page that needs no network: choose layer and head, hover for values; light and dark theme."""
        return self._core.html()

    def terminal(self, *, colour: bool | None = None, columns: int | None = None) -> str:
        """Text for a terminal. colour: None: where standard output is a terminal and NO_COLOR is not set."""
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        if colour is None:
            colour = is_terminal and not os.environ.get("NO_COLOR")
        if columns is None:
            columns = shutil.get_terminal_size((100, 24)).columns if is_terminal else 100
        unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
        return self._core.terminal(colour, unicode, columns)

    def save(self, path: str | os.PathLike[str], *, pixel_ratio: float = 1.0) -> None:
        """Writes .png, .svg, .pdf or .html, whole or not at all. pixel_ratio: of a .png. Raises IoError (an OSError)."""
        name = file_name(path)
        ending = os.path.splitext(name)[1].lower()
        if ending not in (".png", ".svg", ".pdf", ".html"):
            raise ValueError(f"[plot] path must end in .png, .svg, .pdf or .html: got {name!r}")
        if pixel_ratio != 1 and ending != ".png":
            raise ValueError(f"[plot] pixel_ratio is for .png: got {pixel_ratio!r} for {name!r}")
        png = functools.partial(self.png, pixel_ratio)
        drawn = {".png": png, ".svg": self.svg, ".pdf": self.pdf, ".html": self.html}[ending]()
        _nn.write_file(name, drawn if isinstance(drawn, bytes) else drawn.encode())

    def statistics(self, layer: int = 0, head: int = 0) -> dict[str, float]:
        """How one head spreads its attention: means over rows i >= 1 of the weight on the query's own position ("self"), the
        one before ("previous"), key 0 ("first"), of the "largest" weight, of the entropy ("entropy_nats"); and how many "rows".
        Raises OptionError for a layer or head that the weights do not have."""
        return self._core.statistics(layer, head)

    @functools.cached_property
    def figure(self) -> Any:
        """A matplotlib.figure.Figure with the same panels; None where matplotlib is not installed."""
        return self._new_figure()

    def _new_figure(self) -> Any:
        try:
            return _figure.figure(self._core, self._weights, self._labels, self._options)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "matplotlib":
                raise
            return None

    def _repr_png_(self) -> bytes | None:
        try:
            return self.png()
        except ImportError:
            return None  # the notebook shows the page

    def _repr_html_(self) -> str:
        return _html.framed(self.html())

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
        path: also write the picture there: .png, .svg, .pdf or .html.
        layers, heads: which, in this order; none: all.
        range: "unit" (weight 1 has the last colour, so pictures can be compared) or "max" (the largest that is drawn has it).
        scale: "sqrt" (1 % is still visible) or "linear".  numbers: percent in cells, where they fit.
    Returns:
        a :class:`Picture`.
    Raises:
        ValueError: for shapes or labels that do not fit, a layer or head that is not there, and for a weight that is negative or infinite.
            NaN is drawn in a colour of its own.
    """
    options: dict[str, Any] = {"title": title, "layers": integers(layers, "[plot] layers"), "heads": integers(heads, "[plot] heads")}
    array = _chosen(weights, sequence, options["layers"])
    for name, count in zip(("layers", "heads"), array.shape):
        if any(not 0 <= n < count for n in options[name]):
            raise _core.OptionError(f"[plot] {name} must lie in 0..{count - 1}: got {options[name]}")
    if isinstance(weights, AttentionMap):
        tokens = weights.tokens if tokens is None else tokens
        options["title"] = title or weights.title
    if range not in ("unit", "max"):
        raise ValueError(f'[plot] range must be "unit" or "max": got {range!r}')
    if scale not in ("sqrt", "linear"):
        raise ValueError(f'[plot] scale must be "sqrt" or "linear": got {scale!r}')
    rows = _labels(tokens)
    columns = _labels(key_tokens) if key_tokens is not None else rows if array.shape[2] == array.shape[3] else []
    numbers = bool(numbers) if isinstance(numbers, (int, np.bool_)) else numbers
    options |= {"title": _html.utf8(str(options["title"] or "")), "scale": scale, "numbers": numbers}
    core = _nn.attention_map(array, rows, columns, options["title"], options["layers"], options["heads"], range, scale, numbers)
    picture = Picture(core, array, (rows, columns), options)
    if path is not None:
        picture.save(path)
    return picture


def _chosen(weights: Any, sequence: int | None, layers: Sequence[int]) -> np.ndarray:
    """[L, H, Tq, Tk] of what plot was given."""
    weights = weights if hasattr(weights, "shape") else np.asarray(weights)
    rank = len(weights.shape)
    first = weights.shape[0] if rank else 0
    if sequence is not None:
        if rank != 4 or isinstance(weights, AttentionMap):
            raise ValueError(f"[plot] sequence chooses one of weights [B, H, Tq, Tk]: got {list(np.shape(weights))}")
        if not -first <= operator.index(sequence) < first:
            raise ValueError(f"[plot] sequence must lie in 0..{first - 1}: got {sequence}")
        return _array(weights[operator.index(sequence)])
    if rank == 4 and first > 1 and not len(layers) and not isinstance(weights, AttentionMap):
        raise ValueError(
            f"[plot] the first axis of weights may count sequences or layers: got {list(np.shape(weights))}; sequence=0 draws the "
            f"first sequence of a batch, layers=range({first}) every layer"
        )
    return _array(weights)


def _array(weights: Any) -> np.ndarray:
    require_unmasked(weights, "weights")
    if hasattr(weights, "detach"):  # PyTorch
        if weights.is_complex():
            raise TypeError(f"[plot] weights must be numbers: got {weights.dtype}")
        weights = weights.detach().float().cpu().resolve_neg().numpy()
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
    return _nn.characters(_html.utf8(tokens)) if isinstance(tokens, str) else [_html.utf8(str(token)) for token in tokens]
