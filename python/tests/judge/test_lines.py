"""The line that is blamed: where a helper is handed something wrong, as the parameters were read, not from memory that holds what was."""

from pathlib import Path

import pytest

qkv = pytest.importorskip("qkv")
pytest.importorskip("qkv._engine")

HELPED = """
import numpy as np
def scaled(q, k, d):
    return q @ k.swapaxes(-1, -2) / np.sqrt(d)
def hide(s, mask):
    return np.where(mask, s, -1e9)
def weighed(s, mask, v):
    s = s if mask is None else hide(s, mask)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    "mask: True may attend"
    q, k, v = (y.reshape(*y.shape[:2], num_heads, -1).swapaxes(1, 2) for y in (x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v))
    s = scaled(q, k, q.shape[-1])
    y = weighed(s, mask, v)
    return y.swapaxes(1, 2).reshape(x.shape) @ W_o + b_o
"""


@pytest.mark.parametrize(
    ("right", "wrong", "mistake"),
    [
        ("scaled(q, k, q.shape[-1])", "scaled(q, k, x.shape[-1])", "scale-sqrt-embed"),  # the helper is right
        ("np.sqrt(d)", "np.sqrt(d * q.shape[1])", "scale-sqrt-embed"),
        ("y = weighed(s, mask, v)", "y = weighed(s, mask if mask is None else ~mask, v)", "mask-polarity"),  # handed on by another
        ("np.where(mask, s, -1e9)", "np.where(mask, -1e9, s)", "mask-polarity"),
    ],
)
def test_what_a_helper_is_handed_is_wrong_at_the_call(tmp_path: Path, right: str, wrong: str, mistake: str) -> None:
    text = HELPED.replace(right, wrong)
    (tmp_path / "mine.py").write_text(text)
    finding = qkv.judge(tmp_path / "mine.py")
    assert [one.id for one in finding.mistakes] == [mistake]
    assert wrong in text.splitlines()[finding.line - 1]


FLASH_BACKWARD = """
import numpy as np
def flash_backward(q, k, v, out, lse, d_out, block_q=2, block_k=2, causal=False):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - lse[..., None])
    if causal:
        p = p * np.tri(q.shape[-2], k.shape[-2])
    dv = p.swapaxes(-1, -2) @ d_out
    ds = p * (d_out @ v.swapaxes(-1, -2) - (out * d_out).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return ds @ k, ds.swapaxes(-1, -2) @ q, dv
"""


def test_a_mask_after_the_exponentials_is_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FLASH_BACKWARD)
    assert FLASH_BACKWARD.splitlines()[qkv.judge(tmp_path / "mine.py").line - 1].strip() == "p = p * np.tri(q.shape[-2], k.shape[-2])"


BY_HEADS = """
import numpy as np

def multi_head_attention(x, wq, bq, wk, bk, wv, bv, wo, bo, n_heads):
    b, t, c = x.shape
    sp = lambda y: y.reshape(b, t, n_heads, c // n_heads).transpose(0, 2, 1, 3)
    q, k, v = sp(x @ wq + bq), sp(x @ wk + bk), sp(x @ wv + bv)
    s = q @ k.swapaxes(-1, -2)
    s = np.exp(s - s.max(-1, keepdims=True))
    y = s / s.sum(-1, keepdims=True) @ v
    return y.transpose(0, 2, 1, 3).reshape(b, t, c) @ wo + bo
"""
INTO_NEW_MEMORY = """
import numpy as np

def flash(q, k, v, block_size):
    out = np.empty(q.shape[:-1] + (v.shape[-1],), dtype=q.dtype)
    for at in np.ndindex(*q.shape[:-1]):
        best, total, row = -np.inf, 0.0, np.zeros(v.shape[-1])
        for begin in range(0, k.shape[-2], block_size):
            keys = k[at[:-1]][begin : begin + block_size]
            s = keys @ q[at] / np.sqrt(q.shape[-1])
            new = max(best, s.max())
            w = np.exp(s - new)
            total = total * np.exp(best - new) + w.sum()
            row = row + w @ v[at[:-1]][begin : begin + block_size]
            best = new
        out[at] = row / total
    return out
"""


@pytest.mark.parametrize(
    ("text", "name", "line"), [(BY_HEADS, "no-scale", "s = q @ k"), (INTO_NEW_MEMORY, "flash-output-not-rescaled", "row = row + w")]
)
def test_the_line_follows_the_reading_and_no_stale_memory(text: str, name: str, line: str, tmp_path: Path) -> None:
    """Square matrices may be [in, out] or [out, in]: the line is traced as they were judged."""
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    finding = qkv.judge(tmp_path / "mine.py")
    assert [one.id for one in finding.mistakes] == [name]
    assert text.splitlines()[finding.line - 1].strip().startswith(line)
