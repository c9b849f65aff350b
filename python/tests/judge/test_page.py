"""A finding in a notebook: one tree of HTML with the term, the numbers and the line marked, whatever names the code has."""

from __future__ import annotations

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


def test_the_term_and_the_numbers(findings) -> None:
    finding = findings(" / np.sqrt(q.shape[-1])")
    page = tree(finding)
    text = "".join(page.itertext())
    assert "wrong: no-scale" in text and finding.mistakes[0].says in text and "mine.py:sdpa, judged as sdpa" in text
    expected, got = ([cell.text for cell in row] for row in page.iter("tr"))
    assert expected[0] == "expected" and got[0] == "got" and len(expected) == len(got) > 1
    wrong = [one for one, other in zip(got[1:], expected[1:]) if one != other]
    assert wrong and marked(page) == ["/ sqrt(d)", ">    5 |     s = q @ k.swapaxes(-1, -2)", *wrong]
    assert all(f" {number}" in finding.evidence for number in [*expected[1:], *got[1:]])
    assert marked(tree(findings(") @ v", ") @ k")))[0] == "V", "of ) V"


def test_a_hint_names_nothing(findings) -> None:
    finding = findings(" / np.sqrt(q.shape[-1])", hint=True)
    page = finding._repr_html_()
    assert finding.mistakes[0].hint in "".join(tree(finding).itertext())
    assert "no-scale" not in page and finding.mistakes[0].says not in page and "sqrt(d)" not in page


def test_chinese(findings) -> None:
    text = "".join(tree(findings(" / np.sqrt(q.shape[-1])", lang="zh")).itertext())
    assert "错误：no-scale" in text and "分数没有除以 sqrt(d)。" in text and "期望" in text and "参考：" in text and "expected" not in text
    text = "".join(tree(findings(lang="zh")).itertext())
    assert text.startswith("● 正确") and "项检查：" in text


def test_right_unknown_and_failed(findings) -> None:
    right = tree(findings())
    assert "checks: " in "".join(right.itertext()) and not marked(right)
    maskless = findings(", mask=None):", "):\n    mask = None")
    assert maskless and "not asked: " in "".join(tree(maskless).itertext()) and not any(one.asked for one in maskless.checks if "mask" in one.name)
    unknown = findings(") @ v", ") @ v + 0.1 * v.mean()")
    assert unknown.verdict == "unknown" and "not right: by hand, " in "".join(tree(unknown).itertext())
    failed = findings("e.sum", "e.nothing")
    assert "AttributeError" in "".join(tree(failed).itertext()) and "line 9, in sdpa" in "".join(tree(failed).itertext())


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(findings, name: str) -> None:
    """Of the file, of the object, in notes and tracebacks: text, and no markup."""
    plain = findings(" / np.sqrt(q.shape[-1])")
    more = {"file": name, "name": name, "where": f">  1 | {name}", "traceback": name, "notes": (name,), "text": f"wrong: {name}"}
    tags = {one.tag for one in tree(replace(plain, **more)).iter()}
    assert tags <= {"div", "span", "b", "p", "table", "tr", "td"}
    if name.isprintable():
        assert "".join(tree(replace(plain, **more)).itertext()).count(name) >= 5 or not name.strip()
