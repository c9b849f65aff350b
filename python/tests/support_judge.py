"""Shared by the tests of the runner: it is imported from the sources on its own, as the tool starts it; probes and their truth.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "qkv" / "_judge"))
from runner import answering, describing  # noqa: E402
from runner.subject import Subject  # noqa: E402

RUNNER = Path(describing.__file__).parent


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def subject_of(folder: Path, text: str, **request: Any) -> Subject:
    """The subject of a file with this text."""
    return describing.subject_of_file({"file": written(folder, text), **request})


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = True, causal: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        mask = mask & np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool)
    weights = softmax(np.where(mask, scores, -np.inf))
    return weights @ v, weights


def probe(task: str, sizes: Any, seed: int = 0, length: int = 5) -> dict[str, np.ndarray]:
    """Tensors of a layer's contract, without a mask."""
    rng = np.random.default_rng(seed)
    embed, width, kv_width = sizes.embed, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    merged = task in ("v2", "v3")
    biased = task not in ("single-head", "gqa", "cache")
    shapes: dict[str, tuple[int, ...]] = {"x": (2, length, embed)}
    if task == "cross":
        shapes["memory"] = (2, 7, embed)
    if merged:
        shapes.update(W_qkv=(embed, 3 * width), b_qkv=(3 * width,))
    else:
        for letter, columns in (("q", width), ("k", kv_width), ("v", kv_width)):
            shapes[f"W_{letter}"] = (embed, columns)
            if biased:
                shapes[f"b_{letter}"] = (columns,)
    if task not in ("v1", "v2", "self-attention"):
        shapes["W_o"] = (width, embed)
        if biased:
            shapes["b_o"] = (embed,)
    return {name: rng.standard_normal(shape) / (1 if name in ("x", "memory") else 2) for name, shape in shapes.items()}


def truth(tensors: dict[str, np.ndarray], sizes: Any, causal: bool = False) -> np.ndarray:
    """The output of the layer."""
    found = dict(tensors)
    if "W_qkv" in found:
        for name in ("W_", "b_"):
            found |= {name + letter: part for letter, part in zip("qkv", np.split(found[name + "qkv"], 3, -1))}
    x = found["x"]
    memory = found.get("memory", x)
    parts = []
    for letter, source, heads in (("q", x, sizes.heads), ("k", memory, sizes.kv_heads), ("v", memory, sizes.kv_heads)):
        rows = source @ found[f"W_{letter}"] + found.get(f"b_{letter}", 0)
        rows = rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)
        parts.append(np.repeat(rows, sizes.heads // heads, axis=1))
    mask = np.asarray(found.get("mask", True))
    out = attend(*parts, mask[:, None] if mask.ndim == 3 else mask, causal)[0]
    out = out.swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return out @ found["W_o"] + found.get("b_o", 0) if "W_o" in found else out


def metadata(subject: Subject, **more: str) -> dict[str, str]:
    sizes = subject.sizes
    return {
        "task": subject.task,
        "name": "plain",
        "call": "forward",
        "heads": str(sizes.heads),
        "kv_heads": str(sizes.kv_heads),
        "causal": "0",
    } | more


def answered(
    subject: Subject, tensors: dict[str, np.ndarray], assignment: int = 0, **more: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    return answering.answer(subject, tensors, metadata(subject, **more), assignment)


def tensors_for(subject: Subject, seed: int = 0) -> dict[str, np.ndarray]:
    """A probe as the tool makes it: what the code lacks is zero."""
    tensors = probe(subject.task, subject.sizes, seed)
    for name in subject.has["absent"]:
        tensors[name] = np.zeros_like(tensors[name]) if name != "W_o" else np.eye(*tensors[name].shape)
    return tensors


def agrees(subject: Subject, seed: int = 0, assignment: int = 0, causal: bool = False) -> None:
    """The answer to a probe is the layer's output to the rounding of its type."""
    tensors = tensors_for(subject, seed)
    found, notes = answered(subject, tensors, assignment, causal="1" if causal else "0")
    assert not notes, notes
    close(found["out"], truth(tensors, subject.sizes, causal))


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    unit = float(np.finfo(found.dtype).eps)
    # A few hundred operations on numbers of this size: far above rounding, far below any mistake.
    assert np.abs(found - wanted).max() <= 1e4 * unit * max(1.0, np.abs(wanted).max()), np.abs(found - wanted).max()
