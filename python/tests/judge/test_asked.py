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
