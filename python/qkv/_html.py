"""Tables: as HTML for notebooks, as text for a terminal."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np


def text(value: Any) -> str:
    """A number with three decimals, anything else as it is; escaped."""
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))


def utf8(text: str) -> str:
    """Half of a surrogate pair, which no file can hold, as a question mark."""
    return text.encode(errors="replace").decode()


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under titles; notebooks style tables themselves."""
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def lines(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns under their titles; None is left empty, words are at the left."""
    cells = [["" if x is None else f"{x:.3f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    wide = [max(map(len, column)) for column in zip(titles, *cells)]
    left = [any(isinstance(x, str) for x in column) for column in zip(*rows)] or [False] * len(titles)
    return "\n".join("  ".join(f"{x:{'<' if a else '>'}{w}}" for x, w, a in zip(row, wide, left)).rstrip() for row in (titles, *cells))


def grid(keep: np.ndarray) -> str:
    """bool [Tq, Tk] as squares: dark is kept."""
    cell = "width:12px;height:12px;min-width:12px;padding:0;border:1px solid #bbb;background:"
    rows = "".join(
        "<tr>" + "".join(f'<td style="{cell}{"#3b528b" if kept else "transparent"}"></td>' for kept in row) + "</tr>" for row in keep
    )
    return f'<table style="border-collapse:collapse;display:inline-table;margin:4px"><tbody>{rows}</tbody></table>'


def framed(page: str, height: int = 760) -> str:
    """A whole page inside of another: its scripts run, apart from the notebook's."""
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" style="{style}"></iframe>'
