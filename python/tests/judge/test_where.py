"""The first line whose value leaves the textbook: right programs, and edits of them, whose line is that of the edit."""

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
CAUSAL = """\
import numpy as np

def causal_attention(q, k, v):
    n, m = q.shape[2], k.shape[2]
    keep = np.tril(np.ones((n, m)), m - n) > 0
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    s = np.where(keep, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    w = e / e.sum(-1, keepdims=True)
    out = np.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            out[b, h] = w[b, h] @ v[b, h]
    return out
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
HEADS = """\
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, dim, d):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(dim, d), nn.Linear(dim, d), nn.Linear(dim, d)
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.query(x), self.key(x), self.value(x)
        a = q @ k.mT / k.shape[-1] ** 0.5
        a = a.masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        return a.softmax(-1) @ v

class CausalMultiHeadAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(dim, dim // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        y = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.proj(y)
"""
DROPOUT = """\
import torch
import torch.nn.functional as F

def dropout_attention(q, k, v, p=0.0, training=False):
    s = q @ k.mT / q.shape[-1] ** 0.5
    w = torch.softmax(s, -1)
    w = F.dropout(w, p, training)
    return w @ v
"""
ROPE = """\
import torch

def rope(x, positions, base=10000.0):
    d = x.shape[-1]
    frequency = base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = positions[:, None] * frequency
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
"""
LISTS = """\
import math

def attention(q, k, v):
    scale = 1 / math.sqrt(len(q[0]))
    out = []
    for row in q:
        scores = [sum(a * b for a, b in zip(row, key)) * scale for key in k]
        e = [math.exp(s - max(scores)) for s in scores]
        weights = [x / sum(e) for x in e]
        out.append([sum(w * value[c] for w, value in zip(weights, v)) for c in range(len(v[0]))])
    return out
"""

SHARES = """\
import numpy as np

def softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    e = np.exp(shifted)
    return e / e.sum(-1, keepdims=True)
"""
MERGE = """\
import numpy as np

def merge(m1, l1, o1, m2, l2, o2):
    m = np.maximum(m1, m2)
    f1, f2 = np.exp(m1 - m), np.exp(m2 - m)
    l = f1 * l1 + f2 * l2
    return m, l, f1[..., None] * o1 + f2[..., None] * o2
"""
CACHE = """\
import numpy as np

def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    B, n, E = x.shape
    q, k, v = ((x @ W).reshape(B, n, num_heads, -1).swapaxes(1, 2) for W in (W_q, W_k, W_v))
    keys, values = (k, v) if cache is None else (np.concatenate([cache[0], k], 2), np.concatenate([cache[1], v], 2))
    kept = keys, values
    s = q @ keys.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    s = np.where(np.tri(n, keys.shape[2], keys.shape[2] - n) > 0, s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True))
    w = w / w.sum(-1, keepdims=True)
    return (w @ values).swapaxes(1, 2).reshape(B, n, E) @ W_o, kept
"""

#: program: (text, a part of it that is changed, what it becomes; the line is that of the change).
EDITS = [
    (SDPA, "** -0.5", "** -1"), (SDPA, " * scale", ""), (SDPA, "where(mask, s, -1e9)", "where(mask, -1e9, s)"), (SDPA, "shares(s)", "shares(s, -2)"),
    (SDPA, "w @ v", "w @ v[:, ::-1]"), (SDPA, "return e / e.sum(axis, keepdims=True)", "return e"), (SDPA, "e.sum(axis, keepdims=True)", "e.sum()"),
    (SDPA, "k.swapaxes(-1, -2)", "v.swapaxes(-1, -2)"), (SDPA, "w @ v", "w @ k"), (SDPA, "-1e9", "-1.0"),
    (CAUSAL, "m - n)", "m - n + 1)"), (CAUSAL, "tril", "triu"), (CAUSAL, "/ np.sqrt(q.shape[-1])", "/ q.shape[-1]"), (CAUSAL, "v[b, h]", "v[b, 0]"),
    (CAUSAL, "e / e.sum(-1, keepdims=True)", "e / e.sum(-2, keepdims=True)"), (CAUSAL, '"bhid,bhjd->bhij", q, k', '"bhid,bhjd->bhij", k, q'),
    (MHA, "self.d ** -0.5", "dim ** -0.5"), (MHA, "self.split(k), self.split(v)", "self.split(v), self.split(v)"), (MHA, "mask == 0", "mask == 1"),
    (MHA, "y = y.transpose(1, 2).reshape", "y = y.reshape"), (MHA, "softmax(-1)", "softmax(-2)"), (MHA, "weights @ v", "logits @ v"), (MHA, "self.out(y)", "y"),
    (MHA, "self.split(q), self.split(k)", "self.split(q), k.reshape(B, self.h, L, self.d)"), (MHA, "logits = logits.masked_fill", "logits.masked_fill"),
    (HEADS, "tril(torch.ones(64, 64))", "tril(torch.ones(64, 64), 1)"), (HEADS, "[head(x) for head", "[self.heads[0](x) for head"), (HEADS, "self.key(x), self.value", "x[..., :6], self.value"),
    (DROPOUT, "w = F.dropout(w, p, training)", "w = w * (torch.rand_like(w) > p) if training else w"), (DROPOUT, "F.dropout(w, p, training)", "F.dropout(w, p)"),
    (DROPOUT, "torch.softmax(s, -1)", "torch.softmax(F.dropout(s, p, training), -1)"),
    (ROPE, "base **", "(base / 20) **"), (ROPE, "positions[:, None]", "(positions[:, None] + 1)"),
    (SHARES, "x - x.max(-1, keepdims=True)", "x"), (MERGE, "np.exp(m1 - m), np.exp(m2 - m)", "np.ones_like(m1), np.ones_like(m2)"), (CACHE, "kept = keys, values", "kept = k, v"),
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


@pytest.mark.parametrize("text", [SDPA, CAUSAL, MHA, HEADS, DROPOUT, ROPE, LISTS, SHARES, MERGE, CACHE])
def test_a_right_program_is_not_blamed(text, tmp_path) -> None:
    if "torch" in text:
        pytest.importorskip("torch")
    found = _finding(tmp_path / "mine.py", text)
    assert found["verdict"] in ("right", "convention") and found["line"] is None and found["where"] == ""


@pytest.mark.parametrize("case", range(len(EDITS)))
def test_the_line_is_that_of_the_mistake(case, tmp_path) -> None:
    text, old, new = EDITS[case]
    if "torch" in text:
        pytest.importorskip("torch")
    assert old in text
    assert _finding(tmp_path / "mine.py", text.replace(old, new, 1))["line"] == text[: text.index(old)].count("\n") + 1


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
