"""What no probe asks stands in the first line, or in a note; what a mask means where two readings do."""

from __future__ import annotations

from pathlib import Path

import pytest
from qkv._judge import exchanged
from support_judge import SOFTMAX, subject_of


@pytest.mark.parametrize(
    ("default", "used", "asked"), [("-1", "axis", ""), ("0", "axis", "softmax without axis"), ("None", "axis", "softmax without axis"), ("-1", "-1", "axis=0")]
)
def test_the_axis_of_a_softmax_is_asked_or_said(tmp_path: Path, default: str, used: str, asked: str) -> None:
    text = "import numpy as np\n\ndef softmax(x, axis={0}):\n    e = np.exp(x - x.max({1}, keepdims=True))\n    return e / e.sum({1}, keepdims=True)\n"
    first = exchanged(subject_of(tmp_path, text.format(default, used)))[1].split("\n")[0]
    assert first == "right" + (f", as far as asked: {asked} was never tried" if asked else "")


def test_a_block_size_that_is_not_read_is_said(tmp_path: Path) -> None:
    text = SOFTMAX + "\ndef flash(q, k, v, block_size):\n    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v\n"
    assert exchanged(subject_of(tmp_path, text))[0]["untried"] == ["block_size"]


def test_axes_of_size_1_too_many_are_said(tmp_path: Path) -> None:
    text = SOFTMAX + "\ndef sdpa(q, k, v):\n    return (softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v)[None]\n"
    assert subject_of(tmp_path, text).notes == ["it returns [1, 2, 3, 5, 6], and not [2, 3, 5, 6]: axes of size 1 are too many"]


def test_a_mask_that_may_hide_and_may_be_added_is_right_by_one_reading(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
        import torch
        class Layer(torch.nn.Module):
            def __init__(self, dim, heads):
                super().__init__()
                self.attention = torch.nn.MultiheadAttention(dim, heads, batch_first=True)
            def forward(self, x, mask=None):
                {}
                return self.attention(x, x, x, key_padding_mask=mask)[0]
        """
    assert exchanged(subject_of(tmp_path, text.format("pass")))[1].startswith("right if 1 means hidden; wrong if 1 means visible")
    assert exchanged(subject_of(tmp_path, text.format("# mask: 0 or -inf, added to the scores")))[0]["verdict"] == "convention"


@pytest.mark.parametrize(("added", "verdict"), [("1e-4", "unknown"), ("1e-5", "right"), ("1e-6", "right"), ("1e-8", "right")])
def test_a_small_number_that_is_added_is_said(tmp_path: Path, added: str, verdict: str) -> None:
    text = """
        import numpy as np
        def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads):
            B, L, E = x.shape
            q, k, v = (y.reshape(B, L, num_heads, -1).swapaxes(1, 2) for y in (x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v))
            s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
            e = np.exp(s - s.max(-1, keepdims=True))
            return (e / (e.sum(-1, keepdims=True) + ADDED) @ v).swapaxes(1, 2).reshape(B, L, E) @ W_o + b_o
        """
    found = exchanged(subject_of(tmp_path, text.replace("ADDED", added)))[0]
    assert found["verdict"] == verdict and found["notes"][-1].endswith("float32 somewhere, or a small number that is added")
