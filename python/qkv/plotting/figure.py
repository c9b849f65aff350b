"""A map as a matplotlib figure, and that figure as PNG and PDF.

matplotlib is imported by the functions, since it may not be installed.
"""

import contextlib
import io
import re
import unicodedata
import warnings
from typing import Any

import numpy as np

from .. import _nn

_DPI = 120  # of a pixel ratio of 1; text of 8 points is then 13 pixels high
_COLUMN = 0.075  # inches of a column of such text, about


def figure(core: Any, weights: np.ndarray, labels: tuple[list[str], list[str]], options: dict[str, Any]) -> Any:
    """The panels of a map (``_nn.Map``) of weights [L, H, Tq, Tk]: a matplotlib.figure.Figure."""
    import matplotlib

    texts = [*labels[0], *labels[1], options["title"]]
    with matplotlib.rc_context({"font.family": _families("".join(texts))}):
        return _panels(core, weights, labels, options)


def saved(figure: Any, kind: str, pixel_ratio: float) -> tuple[bytes, list[tuple[str, int]]]:
    """The figure as "png" or "pdf", the same bytes each time, and the characters that its fonts lack with their code points."""
    file = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(file, format=kind, dpi=_DPI * pixel_ratio, bbox_inches="tight", metadata=metadata)
    missing: dict[int, str] = {}
    for warning in caught:
        if match := re.match(r"Glyph (\d+) ", str(warning.message)):
            missing[int(match[1])] = chr(int(match[1]))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return file.getvalue(), [(text, code) for code, text in missing.items()]


def _families(text: str) -> list[str]:
    """Those that matplotlib would use, then installed ones with the characters of the text that these lack."""
    import matplotlib
    from matplotlib import font_manager

    families = list(matplotlib.rcParams["font.family"])
    known = {font_manager.findfont(font_manager.FontProperties(family=[name])) for name in families}
    lacking = {
        c for c in text if ord(c) > 0x7F and not any(font_manager.get_font(path).get_char_index(ord(c)) for path in known)
    }
    if lacking:
        listed = {entry.fname for entry in font_manager.fontManager.ttflist}
        for path in sorted(set(font_manager.findSystemFonts()) - listed):  # installed since matplotlib made its list
            with contextlib.suppress(OSError, RuntimeError):
                font_manager.fontManager.addfont(path)
    for entry in font_manager.fontManager.ttflist:
        # matplotlib draws no colours; what its last resort has for every character is a box.
        if not lacking or "color" in entry.name.lower() or entry.name.startswith("Last Resort"):
            continue
        with contextlib.suppress(OSError, RuntimeError):
            font = font_manager.get_font(entry.fname)
            if found := {c for c in lacking if font.get_char_index(ord(c))}:
                families.append(entry.name)
                lacking -= found
    return families


def _panels(core: Any, weights: np.ndarray, labels: tuple[list[str], list[str]], options: dict[str, Any]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    rows, columns = labels
    layers, heads = (options[name] or list(range(n)) for name, n in zip(("layers", "heads"), weights.shape))
    panels = [(layer, head) for layer in layers for head in heads]
    across = min(len(heads), 4)
    down = -(-len(panels) // across)
    queries, keys = weights.shape[2:]
    is_empty = queries == 0 or keys == 0
    cell = min(0.42, 6 / max(queries, keys, 1)) if across == 1 else min(0.36, 3 / max(queries, keys, 1))
    wide, high = (1, 1) if is_empty else (keys * cell, queries * cell)
    size = (across * (wide + 0.45) + 1.1, down * (high + 0.9) + (0.3 if options["title"] else 0))
    figure = Figure(figsize=size, layout="compressed")
    colours = ListedColormap(np.array(_nn.colour_map()) / 255, name="qkv").with_extremes(bad=np.array(_nn.NAN_COLOUR) / 255)
    norm = PowerNorm(0.5 if options["scale"] == "sqrt" else 1.0, 0, core.top_weight())
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for n, axis in enumerate(axes):
        if n >= len(panels):
            axis.set_visible(False)
            continue
        layer, head = panels[n]
        panel = weights[layer, head]
        if is_empty:
            axis.text(0.5, 0.5, "no queries" if queries == 0 else "no keys", ha="center", va="center", fontsize=8)
        else:
            axis.imshow(panel, cmap=colours, norm=norm, interpolation="nearest", aspect="equal")
        if len(panels) > 1:
            axis.set_title(f"head {head}" if len(layers) == 1 else f"layer {layer}, head {head}", fontsize=9)
        _ticks(axis.xaxis, columns, 0 if is_empty else keys)
        _ticks(axis.yaxis, rows, 0 if is_empty else queries)
        axis.tick_params(length=0, labelsize=8)
        if max(map(_columns, columns), default=0) * _COLUMN > cell:
            axis.tick_params(axis="x", labelrotation=90)
        if n % across == 0:
            axis.set_ylabel("query", fontsize=8)
        if n + across >= len(panels):
            axis.set_xlabel("key", fontsize=8)
        if options["numbers"] and cell >= 0.3:
            _percents(axis, panel, norm)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=list(axes), fraction=0.05, format=PercentFormatter(1.0))
    bar.ax.tick_params(labelsize=8)
    bar.set_label("weight", fontsize=8)
    if options["title"]:
        figure.suptitle(_plain(_nn.picture_title(options["title"])), fontsize=10)
    return figure


def _ticks(axis: Any, labels: list[str], count: int) -> None:
    step = max(1, count // 32)
    at = list(np.arange(0, count, step))
    axis.set_ticks(at, [_plain(_nn.picture_label(labels[n])) if labels else str(n) for n in at])


def _columns(label: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in _nn.picture_label(label))


def _plain(text: str) -> str:
    """Not read as a formula."""
    return text.replace("$", r"\$")


def _percents(axis: Any, panel: np.ndarray, norm: Any) -> None:
    for i, j in np.ndindex(panel.shape):
        if np.isfinite(panel[i, j]) and panel[i, j] > 0:  # no number is exactly 0 (docs/concepts/reading-maps.md)
            dark = norm(panel[i, j]) > 0.5
            axis.text(
                j, i, str(int(100 * float(panel[i, j]) + 0.5)), ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
