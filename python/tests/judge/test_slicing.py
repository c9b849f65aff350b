"""Code that takes no batch: called slice by slice, its outputs stacked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner.errors import Stop
from support_judge import agrees, answered, attend, close, subject_of

RNG = np.random.default_rng(11)
Q, K, V = (RNG.standard_normal((2, 3, length, 6)) for length in (5, 7, 7))
MASK = (RNG.random((2, 1, 5, 7)) < 0.6) | (np.arange(7) == 0)
FLAT = """
import numpy as np
def sdpa(q, k, v, mask{default}):
    scores = q @ k.T / np.sqrt(q.shape[1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights @ v, weights
"""


@pytest.mark.parametrize("default", ["=None", ""])
def test_sequence_by_sequence(tmp_path: Path, default: str) -> None:
    subject = subject_of(tmp_path, FLAT.format(default=default))
    assert "called once for each sequence and head: it takes [T, d]" in subject.notes
    for more in ({}, {"mask": MASK}):
        found, notes = answered(subject, {"q": Q, "k": K, "v": V, **more})
        out, weights = attend(Q, K, V, more.get("mask", True))
        assert notes.keys() <= {"unrun"}
        close(found["out"], out)
        close(found["weights"], weights)


def test_lengths_without_heads_are_given_head_by_head(tmp_path: Path) -> None:
    hide = "np.where(np.arange(k.shape[-2]) < lengths[:, None, None], scores, -1e9)"
    text = FLAT.replace("mask{default}", "lengths=None").replace("k.T / np.sqrt(q.shape[1])", "k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])")
    text = text.replace("np.where(mask, scores, -1e9)", hide).replace("mask is", "lengths is").replace("(1, k", "(-1, k")
    subject = subject_of(tmp_path, text)
    assert "called once for each head: it takes [B, T, d]" in subject.notes
    mask = np.arange(7) < np.array([3, 5])[:, None, None, None]
    close(answered(subject, {"q": Q, "k": K, "v": V, "mask": np.broadcast_to(mask, (2, 1, 5, 7))})[0]["out"], attend(Q, K, V, mask)[0])


def test_a_number_of_parts_is_at_most_that_of_the_keys(tmp_path: Path) -> None:
    text = FLAT.replace("mask{default}", "parts, mask=None").replace("    scores", "    assert parts <= len(k)\n    scores", 1)
    subject = subject_of(tmp_path, text)
    close(answered(subject, {"q": Q, "k": K[:, :, :1], "v": V[:, :, :1]})[0]["out"], np.broadcast_to(V[:, :, :1], Q.shape))


def test_the_error_is_that_of_the_contracts_form(tmp_path: Path) -> None:
    with pytest.raises(Stop) as stop:
        subject_of(tmp_path, "def sdpa(q, k, v):\n    raise ValueError(q.ndim)\n")
    assert stop.value.says == "calling sdpa: ValueError: 4"


LISTS = """
import math
def attention(Q, K, V):
    out = []
    for q in Q:
        if not q:
            return None
        scores = [math.exp(sum(a * b for a, b in zip(q, k)) / math.sqrt(len(q))) for k in K]
        out.append([sum(s * v[c] for s, v in zip(scores, V)) / sum(scores) for c in range(len(V[0]))])
    return out{}
"""


@pytest.mark.parametrize("returned", ["", ", [[1.0] * len(K) for _ in Q]"])
def test_nested_lists(tmp_path: Path, returned: str) -> None:
    subject = subject_of(tmp_path, LISTS.format(returned))
    assert subject.notes == ["called once for each sequence and head: it takes [T, d] as lists"]
    q, k, v = (RNG.standard_normal((2, 3, length, 6)) for length in (5, 7, 7))
    found, _ = answered(subject, {"q": q, "k": k, "v": v})
    close(found["out"], attend(q, k, v)[0])


def test_rotations_that_a_task_has_not_turn_nothing_and_are_said(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, """
import numpy as np
class Attention:
    def __init__(self, dim, n_heads):
        self.n, (self.wq, self.wk, self.wv, self.wo) = n_heads, np.zeros((4, dim, dim))

    def forward(self, x, start_pos, freqs_cis):
        split = lambda w: (x @ w).reshape(*x.shape[:2], self.n, -1).swapaxes(1, 2)
        turn = lambda y: ((y[..., ::2] + 1j * y[..., 1::2]) * freqs_cis[start_pos:])[..., None].view(float).reshape(y.shape)
        scores = turn(split(self.wq)) @ turn(split(self.wk)).swapaxes(-1, -2) / np.sqrt(x.shape[-1] // self.n)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        return (weights @ split(self.wv)).swapaxes(1, 2).reshape(x.shape) @ self.wo
""")
    assert subject.task == "mha" and subject.bindings[""].untried(True) == ["freqs_cis"]
    agrees(subject)


def test_arrays_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    text = "import jax, jax.numpy as jnp\ndef sdpa(q, k, v):\n    return jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v.at[:].get()\n"
    subject = subject_of(tmp_path, text)
    q, k, v = (RNG.standard_normal((2, 3, length, 6)) for length in (5, 7, 7))
    found, notes = answered(subject, {"q": q, "k": k, "v": v})
    assert not notes and subject.framework == "jax" and found["out"].dtype == np.float32
    close(found["out"], attend(q, k, v)[0].astype(np.float32))
