"""The first line whose value leaves the textbook, in text and over files. Which line it is: tests/judge/corpus.py."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("qkv._engine")
import qkv
from qkv._judge.runner.trace.match import layouts
from qkv._judge.runner.trace.where import _row


def test_views_that_mix_axes_are_none() -> None:
    assert layouts((2, 5, 12), (2, 3, 5, 4), "bgid")[0].order == [0, 2, 1, 3]  # [B, T, H d]
    mixed = [layout for layout in layouts((2, 15, 4), (2, 5, 3, 4), "bgid") if sorted(layout.groups[1]) != [1, 2]]
    assert all(layout.rest for layout in mixed)


def test_the_finding_shows_the_line() -> None:
    def attention(q, k, v, mask=None):
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, -1e20)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        e = e / e.sum(-1, keepdims=True)
        return e @ v[..., ::-1, :]

    code = attention.__code__
    finding = qkv.judge(attention, task="sdpa")
    line = code.co_firstlineno + 6
    assert finding.line == line and f">{line:5} |         return e @ v" in finding.where
    assert f"right up to line {line - 1} (weights); line {line} is the first that is not" in str(finding)
    assert f"{line} is the first" in str(qkv.judge(attention, task="sdpa", hint=True))
    assert f"第 {line} 行是第一处不正确的地方" in str(qkv.judge(attention, task="sdpa", lang="zh"))
    assert attention.__code__ is code and not [name for name in globals() if "watch__" in name]  # as it was


def test_numbers_stand_apart() -> None:
    assert _row(np.array([-2412.9601, -1052.338, -12345.6])).split() == ["-2412.9601", "-1052.3380", "-1.23e+04"]
