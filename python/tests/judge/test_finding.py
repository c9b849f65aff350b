"""Classes and functions found in a file, and their tasks."""

import copy
import re
from pathlib import Path

import pytest
import qkv
from qkv._judge.runner.describing import as_json
from qkv._judge.runner.errors import People, Stop
from qkv._judge.runner.subject import Subject
from support_judge import SOFTMAX, right, subject_of

V1 = """
def {name}(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q, k, v = x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
"""
SDPA = """
def {name}(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -1e20)) @ v
"""


def functions(tmp_path: Path, *texts: str, **request: object) -> object:
    return subject_of(tmp_path, SOFTMAX + "".join(texts), **request)


@pytest.mark.parametrize(
    ("name", "arguments", "task"),
    [
        ("scaled_dot_product", "q, k, v, mask=None", "sdpa"),
        ("attention", "Q, K, V", "sdpa"),
        ("attend", "query, key, value, block_size", "flash"),
        ("masked_attention", "q, k, v", "causal"),
        ("linear_attn", "q, k, v, causal=False", "linear"),
        ("grads", "q, k, v, dout", "backward"),
        ("attention", "q, k, v, p, training", "dropout"),
        ("rotate", "x, positions", "rope"),
        ("multi_head", "x, Wq, bq, Wk, bk, Wv, bv, Wo, bo, n_heads", "mha"),
        ("heads", "x, Wq, Wk, Wv, Wo, heads, kv_heads", "gqa"),
        ("attend", "x, context, Wq, Wk, Wv, Wo, h", "cross"),
        ("attend", "x, Wq, Wk, Wv, Wo, h, kv_cache=None", "cache"),
        ("attend", "x, Wqkv, bqkv", "v2"),
        ("attend", "x, Wqkv, bqkv, Wo, bo", "v3"),
        ("attend", "x, Wq, bq, Wk, bk, Wv, bv, Wo, bo", "v4"),
        ("attend", "x, Wq, Wk, Wv, Wo", "single-head"),
        ("注意力", "查询, 键, 值", "sdpa"),
        ("多头注意力", "输入, W查询, W键, W值, W输出, 头数", "mha"),
    ],
)
def test_names_and_arguments_say_the_task(name: str, arguments: str, task: str) -> None:
    from qkv._judge.runner import match
    from qkv._judge.runner.contracts import names

    roles = [names.argument(part.split("=")[0].strip()) for part in arguments.split(",")]
    assert match.fitting(name, {role for role in roles if role}) == task


def test_the_last_one_is_meant_and_the_choice_is_said(tmp_path: Path) -> None:
    text = [V1.format(name="first_try"), V1.format(name="second_try")]
    assert functions(tmp_path, *text).name == "second_try"
    assert functions(tmp_path, *text, name="first_try").name == "first_try"
    assert functions(tmp_path, *text, name="first_try").notes == []


IN_DICT = """
from dataclasses import make_dataclass
Weights = make_dataclass("Weights", ["w_q", "w_k", "w_v", "w_o", "b_o", "heads"])

def NAME(p, x, num_heads=3):
    q, k, v = ((IN).reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for n in ("query", "key", "value"))
    y = (softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v).swapaxes(1, 2).reshape(x.shape)
    return OUT
"""
HEADED = 'np.einsum("blhd,hde->ble", y.reshape(*x.shape[:2], num_heads, -1), p["out"])'


@pytest.mark.parametrize(
    ("into", "out", "absent"),
    [
        ('x @ p[f"W_{n[0]}"] + p[f"b_{n[0]}"]', 'y @ p["W_o"] + p["b_o"]', ""), ('x @ p["W_" + n[0]]', "y", "b_q b_k b_v W_o b_o"),
        ('x @ p[n]["kernel"] + p[n]["bias"]', 'y @ p["out"]["kernel"] + p["out"]["bias"]', ""),
        ('x @ p["attention"][n]', 'y @ p["attention"]["out"]', "b_q b_k b_v b_o"),
        *((f'np.einsum("ble,{axes}->blhd", x, p[n])', HEADED, "b_q b_k b_v b_o") for axes in ("ehd", "hed", "hde")),
        ('x @ getattr(w, "w_" + n[0]).T + 0 * w.heads', "y @ w.w_o.T", "b_q b_k b_v"),
    ],
)  # fmt: skip
def test_parameters_in_a_dict(tmp_path: Path, into: str, out: str, absent: str) -> None:
    text = IN_DICT.replace("IN)", f"{into})").replace("OUT", out)
    for name in ("multi_head_layer", "mha"):
        subject = functions(tmp_path, text.replace("NAME(p", f"{name}(w: Weights" if "getattr" in into else f"{name}(p"))
        assert subject.task == "mha" and subject.has["absent"] == absent.split()
        if absent != "b_q b_k b_v":  # of which the code forgets one
            assert right(subject)


WITH_GAMMA = """
class Attn:
    def __init__(self, dim):
        (self.wq, self.wk, self.wv), self.gamma = np.random.randn(3, dim, dim), np.zeros(1)

    def forward(self, x):
        return self.gamma * softmax(x @ self.wq @ (x @ self.wk).swapaxes(1, 2)) @ (x @ self.wv) + x
"""
HELPER = "def helper(x):\n    return x\n"
EMPTY = "class {}:\n    def __init__(self, dim):\n        pass\n    def forward(self, x):\n        return x\n"
MORE = SDPA.format(name="softcap").replace("mask=None", "mask=None, cap=3.0")
OTHERS = {"BatchNorm": "is a normalisation that no", "DecoderBlock": "is not what `block` asks for", "MLP": "is a feed-forward"}
NOT_JUDGED = [
    *((EMPTY.format(name), chosen, f"^{name} {says}") for name, says in OTHERS.items() for chosen in (None, name)),
    (HELPER, None, r"nothing in mine.py looks like attention \(it has helper\): name the one to judge: mine.py:NAME"),
    (HELPER, "helper", "cannot tell from helper which task it is: --task"),
    (HELPER, "v2", "mine.py has no v2: it has helper"),
    ("def sdpa(q, k, v, window): return q", None, "window in sdpa does; the nearest is `sdpa`"),
    (SOFTMAX + WITH_GAMMA, None, "what gamma in Attn does; the nearest is `v1`"),
    (EMPTY.format("CosineAttention").replace("dim", "dim, heads"), None, "what CosineAttention does; the nearest is `mha`"),
    (SOFTMAX + SDPA.format(name="alibi"), None, "what alibi does; the nearest is `sdpa`"),  # slopes of its own
    (SOFTMAX + MORE, None, "what softcap does; the nearest is `score-modifiers`"),
    (EMPTY.format("TinyLM").replace("dim", "vocab, dim").replace("x", "ids"), None, "TinyLM is a model: `lm` asks for a function"),
    ("def sample(logits, rng):\n    return rng.choice(logits)", None, "^sample draws a token: `sampling` asks for the probabilities"),
]


@pytest.mark.parametrize(("text", "name", "says"), NOT_JUDGED)
def test_what_is_not_judged_is_said(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(Stop, match=says):
        subject_of(tmp_path, text, name=name)


FIXED = """
def mha(x, W_q, W_k, W_v, W_o):
    q, k, v = (np.stack(np.split(x @ w, HEADS, -1), 1) for w in (W_q, W_k, W_v))
    y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return np.concatenate(list(np.moveaxis(y, 1, 0)), -1) @ W_o
"""
IN_CLASS = """
class MHA:
    HEADS = 4
    def __init__(self, dim):
        self.W_q, self.W_k, self.W_v, self.W_o = np.random.randn(4, dim, dim)
    def forward(self, x):
        return mha(x, self.W_q, self.W_k, self.W_v, self.W_o, self.HEADS)
"""
WITH_HEADS = FIXED.replace("W_o):", "W_o, heads):").replace("HEADS", "heads")
FIXED_HEADS = {
    "module": "N_HEADS = 4\n" + FIXED.replace("HEADS", "N_HEADS"),
    "width": "HEAD_DIM = 2\n" + FIXED.replace("HEADS", "x.shape[-1] // HEAD_DIM"),
    "config": "class Config:\n    n_heads = 4\nconfig = Config()\n" + FIXED.replace("HEADS", "config.n_heads"),
    "dict": "CFG = {'n_heads': 4}\n" + FIXED.replace("HEADS", 'CFG["n_heads"]'),
    "around": "def make(n_heads):\n    " + FIXED.strip().replace("\n", "\n    ").replace("HEADS", "n_heads") + "\n    return mha\nmha = make(4)\n",
    "partial": "import functools\n" + WITH_HEADS.replace("mha(", "_mha(") + "mha = functools.partial(_mha, heads=4)\n",
    "class": WITH_HEADS + IN_CLASS,
}
STEPS_OF_FIXED = """
H = 2
def cached_attention(x, W_q, W_k, W_v, W_o, cache=None):
    q, k, v = (np.stack(np.split(x @ w, H, -1), 1) for w in (W_q, W_k, W_v))
    if cache is not None:
        k, v = np.concatenate([cache[0], k], 2), np.concatenate([cache[1], v], 2)
    n, m = q.shape[2], k.shape[2]
    scores = np.where(np.tri(n, m, m - n, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return np.concatenate(list(np.moveaxis(softmax(scores) @ v, 1, 0)), -1) @ W_o, (k, v)
"""


def test_steps_of_a_fixed_number_of_heads(tmp_path: Path) -> None:
    subject = functions(tmp_path, STEPS_OF_FIXED, name="cached_attention")
    assert subject.task == "cache" and subject.sizes.heads == 2
    (tmp_path / "mine.py").write_text("import numpy as np\n" + SOFTMAX + STEPS_OF_FIXED)
    assert qkv.judge(f"{tmp_path / 'mine.py'}:cached_attention")


@pytest.mark.parametrize("kind", FIXED_HEADS)
def test_a_number_of_heads_without_an_argument(tmp_path: Path, kind: str) -> None:
    subject = functions(tmp_path, FIXED_HEADS[kind], **({"name": "MHA"} if kind == "class" else {}))
    assert right(subject) and any(re.search("judged with .* heads of", note) for note in subject.notes)
    assert subject.sizes.head_dim == 2 if kind == "width" else subject.sizes.heads == 4


IN_FIELDS = """
from dataclasses import dataclass
@dataclass
class Params:
    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray

def multi_head_attention(x, p: Params, heads: int):
    q, k, v = (np.stack(np.split(x @ w, heads, -1), 1) for w in (p.wq, p.wk, p.wv))
    y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return np.concatenate(list(np.moveaxis(y, 1, 0)), -1) @ p.wo
"""


def test_a_dataclass_of_parameters_may_be_called_anything(tmp_path: Path) -> None:
    for first in ("", "from __future__ import annotations\n"):
        assert right(subject_of(tmp_path, first + SOFTMAX + IN_FIELDS))


def test_a_jitted_function_takes_a_dict(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    text = """
import functools, jax
import jax.numpy as jnp
@functools.partial(jax.jit, static_argnames="heads")
def mha(params, x, heads):
    split = lambda w: x.reshape(*x.shape)[..., :] @ w
    q, k, v = (split(params[n]).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for n in ("wq", "wk", "wv"))
    y = jax.nn.softmax(q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])) @ v
    return y.swapaxes(1, 2).reshape(x.shape) @ params["wo"]
"""
    assert right(subject_of(tmp_path, text))


def test_a_smoothed_loss_is_another_one(tmp_path: Path) -> None:
    text = "def label_smoothing_cross_entropy(logits, targets, eps=0.1):\n    return softmax(logits).mean()\n"
    with pytest.raises(Stop, match="its arguments do not fit"):
        functions(tmp_path, text)


TABLE = """
class RotaryEmbedding:
    def __init__(self, dim, base=10000):
        self.frequencies = base ** -(np.arange(0, dim, 2) / dim)

    def forward(self, x, positions):
        angles = np.outer(positions, self.frequencies)
        return np.cos(angles), np.sin(angles)
"""


def test_a_table_of_cosines_is_no_rotation(tmp_path: Path) -> None:
    """Hugging Face's files have it beside what rotates."""
    with pytest.raises(Stop, match="nothing in mine.py looks like attention"):
        subject_of(tmp_path, "import numpy as np\n" + TABLE)
    assert functions(tmp_path, TABLE, SDPA.format(name="sdpa")).task == "sdpa"


def test_pythons_own_modules_are_nobodys(tmp_path: Path) -> None:
    """They lie below the person's folder where Python is installed in it."""
    people = People(Path(copy.__file__).parents[2] / "mine.py")
    assert people.owns(str(Path(copy.__file__).parents[2] / "beside.py")) and not people.owns(copy.__file__)


def test_a_soft_cap_that_a_call_gives_is_a_task(tmp_path: Path) -> None:
    text = MORE.replace("mask=None, cap=3.0", "cap, causal=False").replace("mask is None", "not causal").replace("mask, ", "np.tri(5) > 0, ")
    assert functions(tmp_path, text).task == "score-modifiers"


def test_what_the_judged_code_does_not_reach_is_said(tmp_path: Path) -> None:
    text = SOFTMAX + V1.format(name="attend") + "\ndef softmax_backward(p, cache):\n    return p\n\ndef scores_of(x, y):\n    return attend(x, y)\n"
    text += "\ndef softmax_dot(p, v):\n    return p @ v\n\nclass Layer:\n    def forward(self, a, b):\n        return attend(a, b)\n"
    assert as_json(subject_of(tmp_path, text))["untried"] == ["scores_of()", "Layer", "softmax_backward", "softmax_dot"]
    twice = "import numpy as np\n" + "".join(f"\ndef {name}(x):\n    return x\n" for name in ("softmax", "softmax_slow"))
    assert as_json(subject_of(tmp_path, twice))["untried"] == ["softmax_slow"]
    assert as_json(functions(tmp_path, SDPA.format(name="sdpa"), task="softmax"))["untried"] == ["sdpa()"]
    tiles = SOFTMAX + SDPA.format(name="flash").replace("mask=None", "Br, Bc").replace("mask is None", "Br")
    assert as_json(subject_of(tmp_path, tiles))["untried"] == ["Br != Bc"]
    parts = (Path(__file__).parents[3] / "tests/judge/right/torch/parts.py").read_text(encoding="utf-8")
    lora = "import torch\nfrom torch import nn\n" + parts[parts.index("class LoRALinear") : parts.index("class LoRAWrapped")]
    lora = lora.replace("torch.randn(r, in_features)", "torch.zeros(r, in_features)") + "    def merge(self):\n        return self.linear\n"
    assert as_json(subject_of(tmp_path, lora))["untried"] == ["LoRALinear.merge()", "training from A = B = 0"]
    assert not as_json(subject_of(tmp_path, parts, name="LoRALinear"))["notes"]
    assert "neither A nor B is 0" in as_json(subject_of(tmp_path, lora.replace("torch.zeros(", "torch.randn(")))["notes"][-1]


BLOCK = """
n_embd, n_head = 20, 5

class Block(nn.Module):
    def __init__(self, n_heads):
        super().__init__()
        self.attention = MultiHead(n_heads)

    def forward(self, x):
        return x + self.attention(x)
"""


def test_sizes_of_the_module_are_kept_and_a_block_around_is_not_meant(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    heads = (Path(__file__).parents[3] / "tests/judge/others/list_of_heads.py").read_text(encoding="utf-8")
    heads = heads.replace("self, d_model, ", "self, ").replace("OneHead(d_model, ", "OneHead(").replace("d_model", "n_embd")
    subject = subject_of(tmp_path, heads + BLOCK)
    assert (subject.name, subject.task, subject.sizes[:4]) == ("MultiHead", "mha", (20, 5, 5, 4))
    assert right(subject)


LAYER = """
import numpy as np
class {name}:
    def __init__(self, {settings}):
        self.{names} = (np.random.randn(dim, dim) for _ in range({count}))
    def forward(self, x, {argument}=None):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        {body}
        return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) @ v{output}
"""


def layer(tmp_path: Path, argument: str = "gizmo", body: str = "pass", name: str = "Attn", settings: str = "dim", output: bool = True) -> Subject:
    letters = "qkvo" if output else "qkv"
    text = LAYER.format(
        name=name, settings=settings, argument=argument, body=body, output=" @ self.W_o" if output else "", count=len(letters),
        names=", self.".join(f"W_{one}" for one in letters),
    )  # fmt: skip
    return subject_of(tmp_path, text)


def test_an_argument_that_is_never_read_says_nothing(tmp_path: Path) -> None:
    assert layer(tmp_path, "layer_past").task == "v4"
    assert layer(tmp_path, "layer_past", "k = k if layer_past is None else layer_past").task == "cache"
    assert as_json(layer(tmp_path))["untried"] == []
    assert as_json(layer(tmp_path, body="scores = scores if gizmo is None else gizmo"))["untried"] == ["gizmo"]


def test_a_class_made_with_heads_is_no_single_head(tmp_path: Path) -> None:
    for name in ("SelfAttention", "SelfAttentionV4"):
        assert layer(tmp_path, name=name).task == "v4"
    for name in ("SelfAttention", "SelfAttentionV4", "FlashMHA", "DropoutAttention"):  # and no function of q, k, v
        assert layer(tmp_path, name=name, settings="dim, heads").task == "mha"
    with pytest.raises(Stop, match="a layer around linear attention"):
        layer(tmp_path, name="LinearAttention", settings="dim, heads")
    assert as_json(layer(tmp_path, settings="dim, n_q, causal=False"))["untried"] == ["causal"]


def test_a_mask_without_an_output_projection_makes_v4(tmp_path: Path) -> None:
    assert functions(tmp_path, V1.format(name="attend").replace("b_v)", "b_v, mask=None)")).task == "v4"
    hide = "scores = scores if attention_mask is None else np.where(attention_mask, scores, -1e9)"
    assert layer(tmp_path, "attention_mask", hide, output=False).task == "v4"
    assert layer(tmp_path, "attention_mask", output=False).task == "v1"


@pytest.mark.parametrize(("kept", "keep"), [("mems", "x"), ("seen", "past")])
def test_keys_of_earlier_calls_are_no_mistake(tmp_path: Path, kept: str, keep: str) -> None:
    body = f"past = np.concatenate([getattr(self, '{kept}', x[:, :0]), x], 1); self.{kept} = {keep}; k, v = past @ self.W_k, past @ self.W_v"
    with pytest.raises(Stop, match=f"no exercise asks for what {kept} in Attn does; the nearest is `cache`"):
        layer(tmp_path, body=body + "; scores = q @ k.swapaxes(-1, -2)")


ROTATED = SOFTMAX + """
class Attention:
    def __init__(self, dim, n_heads, n_kv_heads):
        self.n, self.d = n_heads, dim // n_heads
        self.wq, self.wo = np.zeros((2, dim, dim))
        self.wk, self.wv = np.zeros((2, dim, n_kv_heads * self.d))

    def forward(self, x, start_pos, freqs_cis, mask):
        q, k, v = ((x @ w).reshape(*x.shape[:2], -1, self.d).swapaxes(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = (((y[..., ::2] + 1j * y[..., 1::2]) * freqs_cis).view(float) for y in (q, k))
        if start_pos:
            k, v = (np.concatenate(pair, 2) for pair in zip(self.cache, (k, v)))
        self.cache = k, v
        k, v = (np.repeat(y, self.n // y.shape[1], 1) for y in self.cache)
        scores = q @ k.swapaxes(-1, -2) / self.d**0.5 + mask
        return (softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ self.wo
"""


def test_a_layer_with_rotations_and_a_cache_inside(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, ROTATED)
    assert subject.task == "llama-attention" and subject.sizes == (24, 4, 2, 6, 0)
    assert subject.helpers["step_mask"] == "added" and not subject.helpers["whole"] and as_json(subject)["untried"] == []
    causal = ROTATED.replace(", mask):", "):").replace("+ mask", "- 1e9 * (1 - np.tri(x.shape[1]))")
    assert not subject_of(tmp_path, causal.replace("if start_pos:", "if False:")).helpers["whole"]  # it should have read its cache
    whole = subject_of(tmp_path, causal.replace(" start_pos,", "").replace("if start_pos:", "if False:"))
    assert whole.helpers["whole"] and whole.has["metadata"] == {"whole": "1"}
    own = causal.replace(", start_pos, freqs_cis", "").replace("if start_pos:", "if False:").replace("import numpy", "import torch, numpy").replace("    def forward", "    @torch.no_grad()\n    def forward")
    own = own.replace("((y[..., ::2] + 1j * y[..., 1::2]) * freqs_cis).view(float)", "rope(y, np.arange(x.shape[1]))") + """
def rope(x, positions):
    angles = np.outer(positions, 1e4 ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    return ((x[..., ::2] + 1j * x[..., 1::2]) * (np.cos(angles) + 1j * np.sin(angles))).view(float)
"""
    polar = "from cmath import rect as polar\n" + own.replace("np.cos(angles) + 1j * np.sin(angles)", "np.vectorize(polar)(1.0, angles)")
    for text in (own, own.replace("rope", "spin"), polar.replace("rope", "spin")):
        assert subject_of(tmp_path, text).task == "llama-attention"
