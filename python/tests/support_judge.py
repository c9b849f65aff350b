"""Shared by the tests of the runner."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("qkv._engine")
from qkv._judge import exchanged
from qkv._judge.runner import answering, describing
from qkv._judge.runner.subject import Subject

SOFTMAX = """
import numpy as np

def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
"""
LAYER = """
import torch, torch.nn as nn, torch.nn.functional as F

class {}(nn.Module):
    def __init__(self, embed_dim, {}):
        super().__init__()
        self.heads, self.hidden, self.batch = {}, None, None
        self.to_q, self.to_out = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.to_k, self.to_v = (nn.Linear(embed_dim, {} * embed_dim // self.heads) for _ in range(2))

    def forward(self, x):
        B, L, E = x.shape
        q, k, v = (f(x).view(B, L, -1, E // self.heads).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        k, v = (y.repeat_interleave(self.heads // y.size(1), 1) for y in (k, v))
        s = q @ k.mT / q.size(-1) ** 0.5
        {}
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, L, E))
"""


def subject_of(folder: Path, text: str, **request: Any) -> Subject:
    """The subject of a file with this text."""
    (folder / "mine.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return describing.subject_of_file({"file": str(folder / "mine.py"), **request})


def answered(subject: Subject, tensors: dict[str, np.ndarray], **more: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    sizes = subject.sizes
    metadata = {"task": subject.task, "name": "plain", "call": "forward", "causal": "0", "heads": str(sizes.heads), "kv_heads": str(sizes.kv_heads)}
    return answering.answer(subject, tensors, metadata | more)


def right(subject: Subject) -> bool:
    """Whether the judge calls it right, in some reading of its parameters."""
    return exchanged(subject)[0]["verdict"] in ("right", "convention")


def layer(name: str, more: str, heads: str, kv_heads: str, mask: str = "pass") -> str:
    """The text of a class of PyTorch."""
    pytest.importorskip("torch")
    return LAYER.format(name, more, heads, kv_heads, mask)
