"""A finding in a notebook: one tree of HTML with the term, the numbers and the line marked, whatever names the code has."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

qkv = pytest.importorskip("qkv")
pytest.importorskip("qkv._engine")
from support_explorer import HOSTILE

CODE = """
import numpy as np

def sdpa(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -1e9)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
"""


@pytest.fixture
def findings(tmp_path: Path):
    """(old, new, **options of judge) -> the finding of CODE with this edit."""

    def found(old: str = "", new: str = "", **options):
        (tmp_path / "mine.py").write_text(CODE.replace(old, new))
        return qkv.judge(tmp_path / "mine.py", **options)

    return found


def tree(finding) -> ElementTree.Element:
    return ElementTree.fromstring(finding._repr_html_())


def marked(page: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in page.iter() if "background:rgba(224" in one.get("style", "")]


def test_the_term_the_line_and_the_numbers(findings) -> None:
    finding = findings(" / np.sqrt(q.shape[-1])")
    page = tree(finding)
    expected, got = (re.search(rf"^ +{label} (.*)", str(finding), re.MULTILINE)[1].split() for label in ("expected", "got"))
    term, line, *wrong = marked(page)
    assert (term, line) == ("/ sqrt(d)", "  >    5 |     s = q @ k.swapaxes(-1, -2)")
    differing = [one for one, other in zip(got, expected) if one != other]
    assert [one.strip() for one in wrong][: len(differing)] == differing
    assert marked(tree(findings(") @ v", ") @ k")))[0] == "V", "of ) V"


def test_it_says_what_the_text_says(findings) -> None:
    maskless = findings(", mask=None):", "):\n    mask = None")
    for options in ({}, {"hint": True}, {"lang": "zh"}):
        for finding in (maskless, *(findings(*edit, **options) for edit in ((), (" / np.sqrt(q.shape[-1])",), ("e.sum", "e.nothing")))):
            shown, said = (re.sub(r"[\s^]", "", one) for one in ("".join(tree(finding).itertext()), f"\u25cf{finding}"))
            assert shown == said


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(findings, name: str) -> None:
    """Of the file, of the object, in notes and tracebacks: text, and no markup."""
    page = tree(replace(findings(" / np.sqrt(q.shape[-1])"), text=f"wrong: {name}\n  {name}\n  >  1 | {name}"))
    assert {one.tag for one in page.iter()} <= {"div", "span", "b"}
    if name.isprintable():
        assert "".join(page.itertext()).count(name) >= 3 or not name.strip()
