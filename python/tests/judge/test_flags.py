"""What no probe gives, or must stay what it is: a flag `causal` of code whose task hides nothing, a cache beside a layer's usual name,
complex buffers, norms inside a layer, functions that a compiler made."""

from __future__ import annotations

from pathlib import Path

import pytest
from qkv._judge import exchanged
from qkv._judge.runner.errors import NoTask
from support_judge import SOFTMAX, layer, right, subject_of

FUNCTION = SOFTMAX + """
def sdpa(q, k, v, causal=False):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[-2], k.shape[-2], WIDTH), scores, -1e9)
    return softmax(scores) @ v
"""
TURNED = """
import torch
class Attention(torch.nn.Module):
    def __init__(self, dim, n_heads, max_len=64):
        super().__init__()
        self.n, self.wq, self.wk, self.wv, self.wo = n_heads, *(torch.nn.Linear(dim, dim, bias=False) for _ in range(4))
        width = dim // n_heads
        angles = torch.outer(torch.arange(max_len), 1e4 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)
    def forward(self, x, past=None):
        start = 0 if past is None else past[0].shape[1]
        q, k, v = (w(x).view(*x.shape[:2], self.n, -1) for w in (self.wq, self.wk, self.wv))
        turns = self.freqs_cis[start : start + x.shape[1], None]
        q, k = (torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2))) * turns).flatten(3) for y in (q, k))
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        keep = torch.ones(x.shape[1], k.shape[1]).tril(start).bool()
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        out = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~keep, -torch.inf).softmax(-1), v)
        return self.wo(out.flatten(2)), (k, v)
"""


def with_flag(width: int) -> str:
    hides = f"if self.causal: s = s.masked_fill(~torch.ones(L, L).tril({width}).bool(), -torch.inf)"
    text = layer("MultiHeadAttention", "num_heads, causal=False", "num_heads", "num_heads", hides)
    text = text.replace("super().__init__()", "super().__init__(); self.causal, self.more = causal, nn.Identity()")
    return text.replace("B, L, E", "x = self.more(x); B, L, E", 1)


@pytest.mark.parametrize(("width", "mistake"), [(0, None), (1, "causal-sees-next"), (-1, "causal-off-by-one")])
def test_an_argument_causal_is_tried(tmp_path: Path, width: int, mistake: str | None) -> None:
    found, text = exchanged(subject_of(tmp_path, FUNCTION.replace("WIDTH", str(width))))
    assert [one["id"] for one in found["mistakes"]] == ([] if mistake is None else [mistake])
    assert "causal" not in found["untried"] and (mistake is None or "causal=True: query 1 gives" in text)


@pytest.mark.parametrize("width", [0, 1])
def test_a_constructors_causal_is_tried(tmp_path: Path, width: int) -> None:
    found, _ = exchanged(subject_of(tmp_path, with_flag(width)))
    assert [one["id"] for one in found["mistakes"]] == ["causal-sees-next"] * width and not found["untried"]


def test_a_cache_is_asked_for_whatever_the_layers_name_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    step = (Path(__file__).parents[3] / "tests/judge/others/cache_concat.py").read_text(encoding="utf-8")
    step = step.replace("CachedAttention", "MultiHeadAttention")
    subject = subject_of(tmp_path, step)
    assert subject.task == "cache" and right(subject)
    found, _ = exchanged(subject_of(tmp_path, step.replace("tril(s - t)", "tril(0)")))
    assert [one["id"] for one in found["mistakes"]] == ["cache-position-not-advanced"]
    keep = "keep = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)"
    given = step.replace("past=None", "mask=None, past=None").replace(keep, "pass")
    given = given.replace("logits.masked_fill(~keep", "logits if mask is None else logits.masked_fill(~mask")
    subject = subject_of(tmp_path, given)  # whose mask is the caller's
    assert subject.task == "mha" and right(subject)


def test_complex_buffers_keep_both_parts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subject = subject_of(tmp_path, TURNED)
    assert subject.task == "llama-attention" and right(subject)


def test_a_norm_inside_is_no_part_of_a_task(tmp_path: Path) -> None:
    normed = with_flag(0).replace("Identity()", "LayerNorm(embed_dim)")
    with pytest.raises(NoTask, match="no exercise asks for what more in MultiHeadAttention does"):
        subject_of(tmp_path, normed)
    assert right(subject_of(tmp_path, normed.replace("x = self.more(x); ", "")))


def test_a_flag_that_means_another_triangle_is_not_tried(tmp_path: Path) -> None:
    shifted = FUNCTION.replace("WIDTH", "1").replace("causal=False):", 'causal=False):\n    "causal: with a lookahead of one token"')
    found, _ = exchanged(subject_of(tmp_path, shifted))
    assert not found["mistakes"] and found["untried"] == ["causal"]


OPTION = SOFTMAX + """
def sdpa(q, k, v, OPTION):
    return softmax(q @ k.swapaxes(-1, -2) * USED) @ v
"""


@pytest.mark.parametrize(("option", "used", "untried"), [
    ("scale=None", "(q.shape[-1] ** -0.5 if scale is None else scale)", []),
    ("scale=None", "(q.shape[-1] ** -0.5 if scale is None else 1 / scale)", ["scale"]),  # what a scale is, is its author's to say
    ("scale=True", "(q.shape[-1] ** -0.5 if scale else 1)", []),
    ("scale=1.0", "scale / q.shape[-1] ** 0.5", []),
    ("scale=1", "q.shape[-1] ** -0.5 / scale", []),
])  # fmt: skip
def test_a_right_scale_is_not_accused(tmp_path: Path, option: str, used: str, untried: list[str]) -> None:
    found, _ = exchanged(subject_of(tmp_path, OPTION.replace("OPTION", option).replace("USED", used)))
    assert not found["mistakes"] and found["untried"] == untried


@pytest.mark.parametrize("option", ["scale=None", "scale=True", "softmax_scale=1.0"])
def test_a_scale_that_nobody_reads_is_named(tmp_path: Path, option: str) -> None:
    found, text = exchanged(subject_of(tmp_path, OPTION.replace("OPTION", option).replace("USED", "q.shape[-1] ** -0.5")))
    assert [one["id"] for one in found["mistakes"]] == ["option-not-followed"] and "it gives what it gives without" in text


@pytest.mark.parametrize(("returned", "untried"), [
    ("e @ v / l, m, l", []), ("e @ v / l, (m + np.log(l))[..., 0]", []), ("e @ v / l, e / l, l[..., 0]", []),
    ("e @ v / l, np.log(l)", ["returned[1]"]), ("e @ v / l, e / l, 'done'", ["returned[2]"]),
])  # fmt: skip
def test_what_is_returned_beside_the_output(tmp_path: Path, returned: str, untried: list[str]) -> None:
    """A row's maximum, sum and the logarithm of it are no weights; of what is none of them nothing is said."""
    found, _ = exchanged(subject_of(tmp_path, f"""
import numpy as np
def sdpa(q, k, v):
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    m = s.max(-1, keepdims=True)
    e = np.exp(s - m)
    l = e.sum(-1, keepdims=True)
    return {returned}
"""))
    assert found["verdict"] == "right" and found["untried"] == untried


def test_a_compiled_function_of_any_name_is_judged(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    subject = subject_of(tmp_path, """
import functools, jax

def head(q, k, v):
    return jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5) @ v

@functools.partial(jax.jit, static_argnames="scale")
def attend_all(q, k, v, scale=1):
    return jax.vmap(jax.vmap(head))(q * scale, k, v)
""")
    assert subject.name == "attend_all" and right(subject)
