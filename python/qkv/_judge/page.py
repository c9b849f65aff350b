"""A finding as HTML for a notebook: what its text says, in colours, with the numbers in a table and the line marked. One tree of
XHTML without scripts or addresses; colours that are legible on white and on black."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

from .. import _engine

if TYPE_CHECKING:
    from . import Finding, Mistake

_COLOURS = {"right": "#2e9b4f", "convention": "#2e9b4f", "wrong": "#e0523f", "unknown": "#c98a12"}
_FAINT, _MARK, _NUMBER = "opacity:.7", "background:rgba(224,140,30,.32);color:inherit", "padding:1px 10px;text-align:right"
_MONO = "font-family:monospace;font-size:13px;white-space:pre-wrap"
_CODE = f"{_MONO};margin:8px 0;padding:6px 10px;background:rgba(128,128,128,.12)"
#: The line of a file that Finding.where marks.
_MARKED = re.compile(r" *> *\d+ \|")


def _box(tag: str, style: str, *inside: str) -> str:
    return f'<{tag} style="{style}">{"".join(inside)}</{tag}>'


def _text(text: str) -> str:
    """Escaped; control characters, which XML cannot hold, and marks that turn other characters around, as squares."""
    return escape("".join(one if one.isprintable() or one in "\n\t" else "\u25a1" for one in text))


def _formula(one: Mistake) -> Iterator[str]:
    """Its term is marked; ") V" is about V."""
    part = one.part.lstrip(") ")
    begin = one.formula.find(one.part) + len(one.part) - len(part)
    if part:
        rest = one.formula[begin + len(part) :]
        yield _box("div", _CODE, _text(one.formula[:begin]), _box("b", _MARK, _text(part)), _text(rest))


def _evidence(text: str, said: Callable[[str], str]) -> Iterator[str]:
    """Rows "expected" and "got" as a table, what differs marked; the other lines as they are."""
    lines = text.splitlines()
    while lines:
        rows = [line.split() for line in lines[:2]]
        if [row[:1] for row in rows] != [["expected"], ["got"]]:
            yield _box("div", _MONO, _text(said(lines.pop(0))))
            continue
        pairs = list(zip(*rows))[1:]
        table = []
        for n, line in enumerate((lines.pop(0), lines.pop(0))):
            cells = [_box("td", _NUMBER + (f";{_MARK}" if n and pair[0] != pair[1] else ""), _text(pair[n])) for pair in pairs]
            table.append(_box("tr", "", _box("td", _NUMBER, _text(said(line.strip()).split()[0])), *cells))
        yield _box("table", f"{_MONO};margin:4px 0", *table)


def _where(text: str, said: Callable[[str], str]) -> Iterator[str]:
    """The source, its line marked."""
    for line in text.splitlines():
        yield _box("div", _MARK if _MARKED.match(line) else "", _text(said(line)) or " ")


def page(finding: Finding) -> str:
    said: Callable[[str], str] = _engine.in_chinese if finding.lang == "zh" else str
    faint = lambda *words: _box("div", _FAINT, *map(_text, words))  # noqa: E731
    colour = _COLOURS.get(finding.verdict, "#8a8f98")
    what = f"{finding.file}{':' if finding.file and finding.name else ''}{finding.name}"
    parts = [
        _box("div", "font-weight:bold;font-size:115%", _box("span", f"color:{colour}", "\u25cf "), _text(finding.text.split("\n")[0])),
        faint(said(f"{what}, judged as {finding.task}") if finding.task else what),
    ]
    if finding:
        parts += [_box("p", "", _text(one.says)) for one in finding.conventions]
    for one in finding.mistakes:
        name = [_box("b", "", _text(one.id), ": ")] if len(finding.mistakes) > 1 and not finding.hint else []
        parts.append(_box("p", "", *name, _text(one.hint if finding.hint else one.says)))
        if not finding.hint:
            same = f"Indistinguishable from (same function): {', '.join(one.same_as)}"
            parts += [faint(said(same))] if one.same_as else []
            parts += [*_formula(one), faint(said("read: "), said(one.read))]
    if finding.where:
        parts.append(_box("div", _CODE, *_where(finding.where, said)))
    parts += [_box("div", "margin:8px 0", *_evidence(finding.evidence, said))]
    made, wrong = ([one.name for one in finding.checks if one.asked and one.ok == ok] for ok in (True, False))
    labels = {f"{len(made)} checks": made, "not asked": [one.name for one in finding.checks if not one.asked]}
    labels = labels if finding else {"not right": wrong, "right": made} if finding.verdict == "unknown" else {}
    parts += [faint(said(f"{label}: {', '.join(names)}")) for label, names in labels.items() if names]
    if finding.traceback:
        head, _, rest = finding.traceback.partition("\n")
        parts.append(_box("div", _CODE, _text(f"{said(head)}\n{rest}")))
    parts += [faint(said("note: "), one) for one in finding.notes]
    return _box("div", f"border-left:4px solid {colour};padding:2px 14px;max-width:100ex;line-height:1.5", *parts)
