"""What no probe gives, or must stay what it is: a flag `causal` of code whose task hides nothing, a cache beside a layer's usual name,
complex buffers, norms inside a layer, functions that a compiler made. What shows at other sizes, in other calls, in training, and by what
the file says: right only as far as the first call goes. What no probe asks stands in the first line, or in a note."""

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


@pytest.mark.parametrize(("hides", "mistake"), [
    ("if MASKED: s = s.masked_fill(~pad_mask[:, None, None].bool(), -torch.inf)", None),
    ("if MASKED and not self.causal: s = s.masked_fill(~pad_mask[:, None, None].bool(), -torch.inf)", "other-mask"),
    ("if MASKED: s = plain.masked_fill(~pad_mask[:, None, None].bool(), -torch.inf)", "no-causal"),
])  # fmt: skip
def test_a_constructors_causal_and_padding_hold_together(tmp_path: Path, hides: str, mistake: str | None) -> None:
    text = with_flag(0).replace("forward(self, x)", "forward(self, x, pad_mask=None)").replace("if self.causal:", "plain = s\n        if self.causal:")
    text = text.replace(").bool(), -torch.inf)", ").bool(), -torch.inf)\n        " + hides.replace("MASKED", "pad_mask is not None"), 1)
    found, _ = exchanged(subject_of(tmp_path, text))
    assert [one["id"] for one in found["mistakes"]] == ([] if mistake is None else [mistake])


def test_a_batch_of_one_stays_a_batch(tmp_path: Path) -> None:
    text = layer("MultiHeadAttention", "num_heads", "num_heads", "num_heads")
    assert right(subject_of(tmp_path, text))
    squeezed = text.replace(".reshape(B, L, E))", ".reshape(B, L, E)).squeeze(0)")
    _, said = exchanged(subject_of(tmp_path, squeezed))
    assert "MultiHeadAttention must return [1, 3, 18]: it returned [3, 18]" in said
    block = (Path(__file__).parents[3] / "tests/judge/others/gpt_block.py").read_text(encoding="utf-8")
    assert right(subject_of(tmp_path, block))
    *lines, last = block.rstrip().split("\n")
    found, said = exchanged(subject_of(tmp_path, "\n".join([*lines, last.replace("return ", "return (") + ").squeeze(0)"])))
    assert [one["id"] for one in found["mistakes"]] == ["size-not-followed"] and "it returns [5, 18]" in said


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


MASK = """# qkv practice mha --numpy ; when done: qkv judge mha.py
'''Multi-head attention.

    mask                  [B, 1, L, L]    bool, True: token i may attend to token j, in every head. None: at all
'''
{softmax}

def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    B, L, E = x.shape
    q, k, v = (y.reshape(B, L, num_heads, -1).swapaxes(1, 2) for y in (x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v))
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        s = {}
    return (softmax(s) @ v).swapaxes(1, 2).reshape(B, L, E) @ W_o + b_o
"""


def found(folder: Path, text: str, **request: object) -> list[str]:
    """The verdict, and the ids of mistakes."""
    finding = exchanged(subject_of(folder, text, **request))[0]
    return [finding["verdict"], *(one["id"] for one in finding["mistakes"])]


def test_a_layer_that_ignores_its_sizes_is_wrong(tmp_path: Path) -> None:
    grouped = ("GroupedQueryAttention", "num_heads, num_kv_heads", "num_heads")
    assert found(tmp_path, layer(*grouped, "num_kv_heads")) == ["right"]
    for kv_heads in ("num_heads", "1"):
        assert found(tmp_path, layer(*grouped, kv_heads)) == ["wrong", "size-not-followed"]
    plain = layer("MultiHeadAttention", "num_heads", "num_heads", "num_heads")
    assert found(tmp_path, plain) == ["right"] and found(tmp_path, plain, task="gqa") == ["wrong", "size-not-followed"]
    assert found(tmp_path, layer("MultiHeadAttention", "num_heads", "3", "3")) == ["wrong", "size-not-followed"]


@pytest.mark.parametrize("kept", ["self.hidden = torch.ones(L, L).triu(1).bool() if self.hidden is None else self.hidden", "self.batch = B"])
def test_what_a_first_call_keeps_is_seen_by_one_of_another_size(tmp_path: Path, kept: str) -> None:
    hides = "; s = s.masked_fill(torch.ones(L, L).triu(1).bool() if self.hidden is None else self.hidden, -1e9)"
    text = layer("CausalAttention", "num_heads", "num_heads", "num_heads", kept + hides)
    text = text.replace("B, L, E = x.shape", "L, E = x.shape[1:]; B = self.batch or x.shape[0]")
    assert found(tmp_path, text) == ["wrong", "state-left-behind"]


def test_an_exercise_says_what_its_mask_means(tmp_path: Path) -> None:
    softmax = SOFTMAX.replace("\\n", "\n")
    for line, ids in (("np.where(mask, s, -1e9)", []), ("s + mask", ["mask-added-as-is"]), ("np.where(mask, -1e9, s)", ["mask-polarity"])):
        text = MASK.format(line, softmax=softmax)
        assert found(tmp_path, text)[1:] == ids
    assert str(exchanged(subject_of(tmp_path, text))[1]).startswith("wrong: mask-polarity")
    # Elsewhere nobody says what True means.
    text = text.replace("# qkv practice", "# my own")
    assert str(exchanged(subject_of(tmp_path, text))[1]).startswith("right if 1 means hidden")


def test_training_that_drops_nothing(tmp_path: Path) -> None:
    unused = layer("MultiHeadAttention", "num_heads, dropout=0.1", "num_heads", "num_heads")
    assert found(tmp_path, unused) == ["wrong", "dropout-never"]
    off = exchanged(subject_of(tmp_path, unused.replace("dropout=0.1", "dropout=0.0")))[1]
    assert off.startswith("right, as far as asked: dropout was never tried")
    noise = layer("MultiHeadAttention", "num_heads", "num_heads", "num_heads", "s = s + self.training * torch.randn_like(s)")
    assert found(tmp_path, noise) == ["unknown"]


def test_a_mask_in_training(tmp_path: Path) -> None:
    """Tried where the code draws the same numbers again, said otherwise."""
    more = "s = s if mask is None{} else s.masked_fill(~mask, -1e9); s = s.softmax(-1); "
    more += "s = s * (torch.rand(s.shape, generator={}) > self.hidden * self.training) / (1 - self.hidden * self.training)"
    text = layer("MultiHeadAttention", "num_heads, dropout=0.1", "num_heads", "num_heads", more).replace("num_heads, None", "num_heads, dropout")
    text = text.replace("forward(self, x", "forward(self, x, mask=None").replace("s.softmax(-1) @ v", "s @ v") + "\nOWN = torch.Generator()\n"
    for off, draws, expected in (
        ("", "None", ("convention", [])), (" or self.training", "None", ("unknown", [])), ("", "OWN", ("convention", ["mask in train()"])),
    ):  # fmt: skip
        judged = exchanged(subject_of(tmp_path, text.format(off, draws)))[0]
        assert (judged["verdict"], judged["untried"]) == expected


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
