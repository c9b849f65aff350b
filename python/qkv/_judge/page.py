"""A finding as HTML for a notebook: its text, with the formula's term, the line and the numbers that differ marked. One tree of XHTML
without scripts or addresses; colours that are legible on white and on black."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Finding

_COLOURS = {"right": "#2e9b4f", "convention": "#2e9b4f", "wrong": "#e0523f", "unknown": "#c98a12"}
_MARK = "background:rgba(224,140,30,.32);color:inherit"
_PAGE = "padding:2px 14px;font-family:monospace;font-size:13px;line-height:1.5;white-space:pre-wrap"
#: The line of a file that Finding.where marks.
_MARKED = re.compile(r" *> *\d+ \|")
_EXPECTED = re.compile(r" +(expected|期望) ")


def _box(tag: str, style: str, *inside: str) -> str:
    return f'<{tag} style="{style}">{"".join(inside)}</{tag}>'


def _text(text: str) -> str:
    """Escaped; control characters, which XML cannot hold, and marks that turn other characters around, as squares."""
    return escape("".join(one if one.isprintable() or one in "\n\t" else "\u25a1" for one in text))


def _differing(line: str, expected: str) -> str:
    """The words of a line that are not those of the line above."""
    other = iter(expected.split()[1:])
    label, *words = re.findall(r"\s*\S+", line)
    return _text(label) + "".join(_text(one) if one.strip() == next(other, "") else _box("b", _MARK, _text(one)) for one in words)


def _lines(lines: list[str]) -> Iterator[str]:
    above = ""
    for line, below in zip(lines, [*lines[1:], ""]):
        begin, end = below.find("^"), below.rfind("^") + 1
        if _MARKED.match(line):
            yield _box("div", _MARK, _text(line))
        elif end and not below.strip(" ^"):
            yield _box("div", "", _text(line[:begin]), _box("b", _MARK, _text(line[begin:end])), _text(line[end:]))
        elif _EXPECTED.match(above):
            yield _box("div", "", _differing(line, above))
        elif line.strip(" ^") or not line:
            yield _box("div", "", _text(line) or " ")
        above = line


def page(finding: Finding) -> str:
    colour = _COLOURS.get(finding.verdict, "#8a8f98")
    first, *rest = finding.text.split("\n")
    head = _box("div", "font-weight:bold", _box("span", f"color:{colour}", "\u25cf "), _text(first))
    return _box("div", f"border-left:4px solid {colour};{_PAGE}", head, *_lines(rest))
