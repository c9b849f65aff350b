"""The first line whose value leaves the textbook: edits of a layer, whose line is that of the edit. More of them: tests/judge/corpus.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("qkv._engine")
import qkv
from qkv import _engine
from qkv._judge.runner import files
from qkv._judge.runner.answering import answer
from qkv._judge.runner.describing import as_json, subject_of_file
from qkv._judge.runner.process import watch
from qkv._judge.runner.trace.layouts import layouts
from qkv._judge.runner.trace.where import find_line

SDPA = """\
import numpy as np

def shares(a, axis=-1):
    top = a.max(axis, keepdims=True)
    e = np.exp(a - top)
    return e / e.sum(axis, keepdims=True)

def sdpa(q, k, v, mask=None):
    scale = q.shape[-1] ** -0.5
    s = q @ k.swapaxes(-1, -2) * scale
    if mask is not None:
        s = np.where(mask, s, -1e9)
    w = shares(s)
    return w @ v
"""
MHA = """\
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.d = num_heads, dim // num_heads
        self.scale = self.d ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def split(self, t):
        return t.view(t.size(0), t.size(1), self.h, self.d).transpose(1, 2)

    def forward(self, x, mask=None):
        B, L, E = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = self.split(q), self.split(k), self.split(v)
        logits = q @ k.transpose(-2, -1) * self.scale
        if mask is not None:
            logits = logits.masked_fill(mask == 0, float("-inf"))
        weights = logits.softmax(-1)
        y = weights @ v
        y = y.transpose(1, 2).reshape(B, L, E)
        return self.out(y)
"""

#: (a part of the program, what it becomes); the line is that of the change.
EDITS = [
    ("self.d ** -0.5", "dim ** -0.5"), ("self.split(k), self.split(v)", "self.split(v), self.split(v)"), ("mask == 0", "mask == 1"),
    ("y = y.transpose(1, 2).reshape", "y = y.reshape"), ("softmax(-1)", "softmax(-2)"), ("weights @ v", "logits @ v"), ("self.out(y)", "y"),
    ("self.split(q), self.split(k)", "self.split(q), k.reshape(B, self.h, L, self.d)"), ("logits = logits.masked_fill", "logits.masked_fill"),
]  # fmt: skip


def _finding(path, text: str) -> dict:
    path.write_text(text)
    subject = subject_of_file({"file": str(path), "map": {}, "init": {}})
    described = json.dumps(as_json(subject))
    probes = _engine.probes(described)
    answers = [[files.encode(*answer(subject, *files.decode(probe), n)) for probe in probes] for n in range(max(1, len(subject.assignments)))]

    def watching(reading, wrong, stages):
        return json.dumps(find_line(subject, reading, [(*files.decode(probes[n]), files.decode(own)[0]) for n, own in zip(wrong, stages)]))

    return json.loads(_engine.verdict(described, probes, answers, False, False, watching)[0])


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_the_line_is_that_of_the_mistake(old, new, tmp_path) -> None:
    pytest.importorskip("torch")
    assert _finding(tmp_path / "mine.py", MHA.replace(old, new, 1))["line"] == MHA[: MHA.index(old)].count("\n") + 1


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


def test_the_tool_finds_it_in_its_folder(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SDPA.replace("e.sum(axis, keepdims=True)", "e.sum()"))
    subject = subject_of_file({"file": str(path), "map": {}, "init": {}})
    probes = _engine.probes(json.dumps(as_json(subject)))

    def stages(reading, wrong, stages):
        for n, own in zip(wrong, stages):
            (tmp_path / f"probe-{n}.safetensors").write_bytes(probes[n])
            (tmp_path / f"stages-{n}.safetensors").write_bytes(own)
        return ""

    answers = [[files.encode(*answer(subject, *files.decode(probe))) for probe in probes]]
    _engine.verdict(json.dumps(as_json(subject)), probes, answers, False, False, stages)
    watch(subject, tmp_path, 0)
    found = json.loads((tmp_path / "line.json").read_text())
    assert found["line"] == 6 and found["called"] == 13 and found["source"][2] == "    return e / e.sum()"
