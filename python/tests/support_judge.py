"""Shared by the tests of the runner."""

from __future__ import annotations

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
