"""Calls in the form that code wants: its mask's shape, type and meaning; slice by slice, where it takes no batch."""

import functools
from pathlib import Path
from typing import Any

import pytest
import qkv
from qkv._judge import exchanged
from qkv._judge.runner import masks
from qkv._judge.runner.describing import as_json
from support_judge import SOFTMAX, right, subject_of

FUNCTION = SOFTMAX + """
def attention(q, k, v, ARGUMENT=None):
    "DOC"
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if ARGUMENT is not None:
        scores = HIDE
    return softmax(scores) @ v
"""


@pytest.mark.parametrize(
    ("argument", "code", "doc", "form"),
    [
        ("mask", "np.where(mask[:, None], scores, -1e9)", "", masks.Form("[B, L, L]", "bool")),
        ("mask", "np.where(mask[:, None, None, :], scores, -1e9)", "", masks.Form("[B, L]", "bool")),
        ("mask", "np.where(mask.reshape(scores.shape[2:]), scores, -1e9)", "", masks.Form("[L, L]", "bool")),
        ("mask", "np.where(mask.reshape(scores.shape), scores, -1e9)", "", masks.Form("[B, H, L, L]", "bool")),
        ("mask", "scores + -1e9 * (1 - mask)", "", masks.Form("[B, 1, L, L]", "bool")),
        ("mask", "scores + (-mask + 1) * -1e9", "", masks.Form("[B, 1, L, L]", "int64")),  # NumPy has no minus of bool
        ("mask", "scores * mask", "", masks.Form("[B, 1, L, L]", "bool")),  # it leaks either way
        ("key_padding_mask", "np.where(key_padding_mask[:, None, None], -np.inf, scores)", "", masks.Form("[B, L]", "bool", hides=True)),
        ("mask", "scores + mask * -1e9", "mask: 1 = hidden", masks.Form("[B, 1, L, L]", "bool", hides=True)),
        ("mask", "scores + mask * -1e9", "", masks.Form("[B, 1, L, L]", "bool")),  # the contract: 1 may be seen
        ("mask", "np.where(mask, scores, -1e9)", "mask: [B, 1, L, L] bool. True: the key is hidden", masks.Form("[B, 1, L, L]", "bool", hides=True)),
        ("mask", "np.where(mask, scores, -1e9)", "True means hidden", masks.Form("[B, 1, L, L]", "bool", hides=True)),  # it is not so
        ("mask", "scores + mask * -1e9", "padded keys are 1", masks.Form("[B, 1, L, L]", "bool", hides=True)),
        ("mask", "scores + mask", "", masks.Form("[B, 1, L, L]", "bool")),  # the contract: it is bool
        ("mask", "scores + mask", "0, or -inf where nothing may be seen", masks.Form("[B, 1, L, L]", "float", added=True)),
        ("gizmo", "np.where(gizmo, scores, -1e9)", "", masks.Form("[B, 1, L, L]", "bool")),  # a name that says nothing
        ("gizmo", "np.where(gizmo == 1, -np.inf, scores)", "", masks.Form("[B, 1, L, L]", "bool", hides=True)),
        ("gizmo", "scores + gizmo", "", masks.Form("[B, 1, L, L]", "float", added=True)),
        ("attn_mask", "scores + attn_mask", "", masks.Form("[B, 1, L, L]", "float", added=True)),
        ("attn_bias", "scores + attn_bias", "", masks.Form("[B, 1, L, L]", "float", added=True)),
        ("casual_mask", "np.where(casual_mask, scores, -1e9)", "", masks.Form("[B, 1, L, L]", "bool")),
        ("is_pad", "np.where(is_pad[:, None, None], -1e9, scores)", "", masks.Form("[B, L]", "bool", hides=True)),
        ("forbidden_mask", "np.where(forbidden_mask, -1e9, scores)", "", masks.Form("[B, 1, L, L]", "bool", hides=True)),
        ("valid_lens", "np.where(np.arange(7) < valid_lens.reshape(-1, 1, 1, 1), scores, -1e9)", "", masks.Form(masks.LENGTHS, "int64")),
    ],
)  # fmt: skip
def test_masks_of_functions(tmp_path: Path, argument: str, code: str, doc: str, form: masks.Form) -> None:
    subject = subject_of(tmp_path, FUNCTION.replace("ARGUMENT", argument).replace("HIDE", code).replace("DOC", doc))
    assert subject.task == "sdpa" and subject.mask_form == form
    assert as_json(subject)["conventions"] == [form.convention] * bool(form.convention)
    said = "right if mask holds 0 and -inf, to be added to the scores: the task's is bool"
    assert (said in subject.notes) == ((code, doc) == ("scores + mask", ""))


def test_a_mask_that_a_task_has_not_is_never_given(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, FUNCTION.replace("ARGUMENT", "mask").replace("HIDE", "scores + mask"), task="causal")
    assert subject.mask_form is None and subject.bindings["causal_attention"].untried(False) == ["mask"] and not subject.notes


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
HIDE = "np.where(np.arange(k.shape[-2]) < lengths[:, None, None], scores, -1e9)"
LENGTHS = FLAT.replace("mask{default}", "lengths=None").replace("k.T / np.sqrt(q.shape[1])", "k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])")
LENGTHS = LENGTHS.replace("np.where(mask, scores, -1e9)", HIDE).replace("mask is", "lengths is").replace("(1, k", "(-1, k")
PARTS = FLAT.replace("mask{default}", "parts, mask=None").replace("    scores", "    assert parts <= len(k)\n    scores", 1)
LISTS = """
import math
def attention(Q, K, V):
    out = []
    for q in Q:
        if not q:
            return None
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(len(q)) for k in K]
        scores = [math.exp(one - max(scores)) for one in scores]
        out.append([sum(s * v[c] for s, v in zip(scores, V)) / sum(scores) for c in range(len(V[0]))])
    return out
"""
BUFFERS = """
import numpy as np
class Attention:
    def __init__(self, dim, n_heads, max_batch, max_seq):
        self.n, (self.wq, self.wk, self.wv, self.wo) = n_heads, np.zeros((4, dim, dim))
        self.k_cache, self.v_cache = np.zeros((2, max_batch, max_seq, dim))

    def forward(self, x, input_pos):
        self.k_cache[:, input_pos], self.v_cache[:, input_pos] = x @ self.wk, x @ self.wv
        q, k, v = (y.reshape(*y.shape[:2], self.n, -1).swapaxes(1, 2) for y in (x @ self.wq, self.k_cache, self.v_cache))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        weights = np.where(np.arange(k.shape[2]) <= input_pos[:, None], np.exp(scores), 0)
        return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape) @ self.wo
"""
WAYS = {
    "sequence by sequence": (FLAT.format(default="=None"), "once for each sequence and head: it takes [T, d]"),
    "with a mask that must be given": (FLAT.format(default=""), "once for each sequence and head: it takes [T, d]"),
    "a number of parts, at most that of the keys": (PARTS, "once for each sequence and head: it takes [T, d]"),
    "nested lists": (LISTS, "once for each sequence and head: it takes [T, d] as lists"),
    "lengths without heads": (LENGTHS, "once for each head: it takes [B, T, d]"),
    "buffers made for some sequences": (BUFFERS, "with as many sequences as it was made for: it takes batches of 8"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_calls(tmp_path: Path, way: str) -> None:
    subject = subject_of(tmp_path, WAYS[way][0])
    assert f"called {WAYS[way][1]}" in subject.notes
    assert right(subject)


HELPER = FLAT.format(default="=None, fill=-1").replace("def sdpa", "import functools, math\ndef core").replace("-1e9", "fill").replace("k.T", "k.swapaxes(-1, -2)")
HELPER = HELPER.replace("q.shape[1]", "q.shape[-1]").replace("max(1", "max(-1").replace("sum(1", "sum(-1").replace(", weights\n", "\n")
TIMED = """
def timed(f):
    def g({self}*args, **kwargs):
        return f({self}*args, **kwargs)
    return g
"""
CLASS = TIMED.format(self="self, ") + """
class SelfAttention:
    @timed
    def __init__(self, dim):
        self.wq, self.wk, self.wv = np.zeros((3, dim, dim))
    @timed
    def forward(self, x, mask=None):
        return core(x @ self.wq, x @ self.wk, x @ self.wv, mask, -1e9)
"""
CALLABLES = {  # how it is called, whether it is right
    "sdpa = functools.partial(core, fill=-1e9)": True,
    "sdpa = functools.partial(core, fill=-1)": False,
    "sdpa = lambda q, k, v, mask=None: core(q, k, v, mask, -1e9)": True,
    "sdpa = lambda q, k, v, mask=None: core(2 * q, k, v, mask, -1e9)": False,
    "class A:\n    def attend(self, q, k, v, mask=None): return core(q, k, v, mask, -1e9)\nsdpa = A().attend": True,
    TIMED.format(self="") + "@timed\ndef sdpa(q, k, v, mask=None): return core(q, k, v, mask, -1e9)": True,
    TIMED.format(self="") + "@timed\ndef sdpa(q, k, v, mask=None): return core(q, k, v, mask, -1)": False,
    "def sdpa(*args): return core(*args)": True,
    "def sdpa(*args):\n    q, k, v, mask = args\n    return core(q, k, v, mask, -1e9)": True,
    CLASS: True,
}


@pytest.mark.parametrize("text", CALLABLES)
def test_callables_that_are_no_plain_functions(tmp_path: Path, text: str) -> None:
    subject = subject_of(tmp_path, HELPER + text)
    assert subject.name == ("SelfAttention" if text is CLASS else "sdpa")
    assert right(subject) == CALLABLES[text]
    assert text.endswith("core(*args)") or next(iter(subject.bindings.values())).takes("mask")


def test_a_lambda_beside_the_code_is_not_meant(tmp_path: Path) -> None:
    text = HELPER.replace("core", "attention").replace("fill=-1", "fill=-1e9")
    for more in ("block = lambda x: x", "rope = lambda x, positions: x", "mha = functools.lru_cache(lambda n: n)"):
        subject = subject_of(tmp_path, f"{text}\n{more}\n")
        assert subject.name == "attention" and right(subject)


def test_callables_of_this_process_are_judged_by_their_arguments(tmp_path: Path) -> None:
    core = subject_of(tmp_path, HELPER).thing
    for thing, verdict in [(functools.partial(core, fill=-1e9), "convention"), (lambda q, k, v, mask=None: core(q, k, v, mask, -1), "wrong")]:
        assert qkv.judge(thing, task="sdpa").verdict == verdict


#: As a Transformers model calls it.
LAYERS_FUNCTION = """
import torch
def attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    shared = module.num_key_value_groups
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = query @ key.mT * scaling
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[2]]
    weights = torch.dropout(scores.softmax(-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
"""


@pytest.mark.parametrize(("old", "new", "seen"), [
    ("", "", None), (".contiguous()", ".flatten(2)", None),
    ("x.repeat_interleave(shared, 1)", "x.repeat(1, shared, 1, 1)", "module.num_key_value_groups=2, 4 heads of q on 2 of k and v: head 1"),
    ("* scaling", "/ query.shape[-1] ** 0.5", "scaling=0.37: it gives what it gives without"), ("* scaling", "/ scaling", "scale-multiplied"),
    (".transpose(1, 2).contiguous()", ".reshape(len(query), query.shape[2], -1)", "line 10 is the first that is not"),
])  # fmt: skip
def test_functions_as_transformers_calls_them(tmp_path: Path, old: str, new: str, seen: str | None) -> None:
    pytest.importorskip("torch")
    subject = subject_of(tmp_path, LAYERS_FUNCTION.replace(old, new) if old else LAYERS_FUNCTION)
    found, text = exchanged(subject)
    assert found["untried"] == ["dropout"] and (seen or "") in text and (found["verdict"] == "convention") == (seen is None)
    assert [one for one in found["notes"] if "heads behind tokens" in one]


@pytest.mark.parametrize("takes", ["[B, H, T, d]", "[B, T, H, d]"])
@pytest.mark.parametrize("returns", ["[B, H, T, d]", "[B, T, H, d]", "[B, T, H * d]", "[B, H, T * d]"])
def test_heads_behind_tokens(tmp_path: Path, takes: str, returns: str) -> None:
    """Returned so, whatever is taken: not where the code says otherwise, nor where heads are before tokens in one axis with features."""
    text = FLAT.replace("sdpa", "attention").replace("mask{default}", "mask=None").replace("k.T", "k.swapaxes(-1, -2)").replace("shape[1]", "shape[-1]").replace("(1, k", "(-1, k")
    text = text.replace("    scores", "    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))\n    scores", takes == "[B, T, H, d]")
    shapes = {"[B, H, T, d]": "", "[B, T, H, d]": ".swapaxes(1, 2)", "[B, T, H * d]": ".swapaxes(1, 2).reshape(len(q), q.shape[2], -1)",
              "[B, H, T * d]": ".reshape(*q.shape[:2], -1)"}  # fmt: skip
    text = text.replace("return weights @ v, weights", f"return (weights @ v){shapes[returns]}")
    same = returns == "[B, H, T, d]"
    assert right(subject_of(tmp_path, text)) == (returns[:5] != "[B, H" or (same and takes == returns))
    if returns[:5] == "[B, T" and takes == "[B, H, T, d]":
        assert not right(subject_of(tmp_path, text.replace("attention", "sdpa")))  # the exercise's own name: its contract
        says = text.replace("    scores", '    "q, k, v [B, H, T, d]. Returns [B, H, T, d]."\n    scores', 1)
        assert not right(subject_of(tmp_path, says))


def test_rotations_that_a_task_has_not_turn_nothing_and_are_said(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, SOFTMAX + """
class Attention:
    def __init__(self, dim, n_heads):
        self.n, (self.wq, self.wk, self.wv, self.wo) = n_heads, np.zeros((4, dim, dim))

    def forward(self, x, start_pos, freqs_cis):
        split = lambda w: (x @ w).reshape(*x.shape[:2], self.n, -1).swapaxes(1, 2)
        turn = lambda y: ((y[..., ::2] + 1j * y[..., 1::2]) * freqs_cis[start_pos:])[..., None].view(float).reshape(y.shape)
        scores = turn(split(self.wq)) @ turn(split(self.wk)).swapaxes(-1, -2) / np.sqrt(x.shape[-1] // self.n)
        return (softmax(scores) @ split(self.wv)).swapaxes(1, 2).reshape(x.shape) @ self.wo
""")
    assert subject.task == "mha" and subject.bindings[""].untried(True) == ["freqs_cis"]
    assert right(subject)


def test_arrays_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    text = "import jax, jax.numpy as jnp\ndef sdpa(q, k, v):\n    return jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v.at[:].get()\n"
    subject = subject_of(tmp_path, text)
    assert subject.framework == "jax" and right(subject)


HIDES = (
    "True means the key is hidden", "True positions are ignored", "True for positions to be masked out", "True where attention is blocked",
    "True entries are set to -inf", 'True means "do not attend"', "mask: 1 = padding, 0 = token", "True 表示被遮挡的位置", "True 表示需要屏蔽",
    "True 的位置会被屏蔽", "True 的位置不参与注意力", "1 表示要遮住的位置", "1 表示看不到", "为真的位置不可见",
    "mask[b, i, j] = True 表示 i 不能看 j", "mask is True where a key must not be seen", "mask: 1 for positions to ignore",
    "mask=1 的地方填充负无穷", "where mask is nonzero the score is dropped", "mask: True表示被mask掉",
    "mask is 1 where a position must be hidden", "positions with 1 in mask are ignored", "nonzero entries of the mask are blocked",
    "1 in mask means masked out", "mask 为 1 表示该位置是 padding", "future tokens are marked with a 1",
    "mask is True where attention is forbidden", "True = disallowed", "1 for positions that must not be attended", "True marks invalid keys",
    "a True value indicates that the corresponding key will be ignored", "True for positions we cannot attend to", "True where the key must be skipped",
    "True values will be filled with -inf", "True = mask out", "set True to mask a key", "`True` -> not allowed to attend", "0 = keep, 1 = drop",
    "True if key j is hidden from query i", "True where query i may not look at key j", "True: may not attend", "0 means visible", "True drops a key",
    "ones mark what is masked", "True 表示禁止关注", "True 的位置会被置为 -inf", "True 处不参与注意力",
)  # fmt: skip
SHOWS = (
    "True means visible", "True: may attend", "1 = keep, 0 = hide", "1 for tokens that are not masked", "True where a key is kept", "1 means not padding",
    "True means not hidden", "mask[b, i, j] = True 表示 i 能看到 j", "mask is True where a key may be seen", "mask: 0 for positions to ignore",
    "mask=0 的地方填充负无穷", "where mask is zero the score is dropped", "mask: True where a key must not be masked", "True表示没有被mask掉",
    "True 表示可见，False 表示不可见", "1 表示保留，0 表示屏蔽", "1 表示不被遮挡", "1 in mask means visible", "nonzero entries of the mask are kept",
    "True means that the key cannot be masked", "True for tokens not to be ignored", "True = not invalid", "True = do not mask", "False: may not attend",
    "1 keeps, 0 drops", "0 for tokens to ignore", "non-padded keys are 1", "False where query i cannot see key j", "True 表示不禁止",
    "0 where a key may be seen, -inf elsewhere",
)  # fmt: skip


#: Not of the mask, or of no sentence that says what True means.
OTHERS = (
    "causal: if True, the future is hidden.", "Rows of weights sum to one: padded keys get weight 0.", "If a row has no True, the padded output is zero.",
    "q: batch 1, the keys are padded to a multiple of 8", "True 的位置不会被屏蔽", "1 表示不需要屏蔽", "1 means that the token is not a pad",
)  # fmt: skip


@pytest.mark.parametrize("text", OTHERS)
def test_what_a_docstring_says_of_something_else(text: str) -> None:
    spaces: dict[str, Any] = {}
    exec(f"def attention(q, k, v, mask=None, causal=False):\n    pass\nattention.__doc__ = {text!r}", spaces)
    assert "hides it" not in masks.meaning_of("mask", spaces["attention"])


@pytest.mark.parametrize("text", [*HIDES, *SHOWS])
def test_a_docstring_says_what_true_means(text: str) -> None:
    spaces: dict[str, Any] = {}
    exec(f"def masked(mask):\n    pass\nmasked.__doc__ = {text!r}", spaces)
    assert ("hides" in masks.meaning_of("mask", spaces["masked"])) == (text in HIDES)
