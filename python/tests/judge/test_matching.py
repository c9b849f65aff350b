"""Parameters: by name, by shape and order, by calls; and the layouts in which one parameter holds several."""

from pathlib import Path

import pytest
from qkv._judge.runner.contracts import names
from qkv._judge.runner.describing import as_json
from qkv._judge.runner.errors import Stop
from support_judge import SOFTMAX, right, subject_of

torch = pytest.importorskip("torch")

SPELLINGS = {
    "q": "W_q W_Q Wq wq to_q q_proj query_proj query q_linear linear_q w_qs W_query queries 查询投影 查询",
    "k": "W_k W_K Wk wk to_k k_proj key_proj key k_linear linear_k w_ks W_key keys 键投影 键",
    "v": "W_v W_V Wv wv to_v v_proj value_proj value v_linear linear_v w_vs W_value values 值投影 值",
    "o": "W_o W_O Wo wo to_out.0 out_proj output_proj o_proj out o_linear fc c_proj 输出投影",
    "qkv": "qkv Wqkv c_attn in_proj to_qkv qkv_proj W_qkv", "kv": "kv kv_proj to_kv Wkv",
}
BIASES = {"b_q": "q", "bq": "q", "bias_k": "k", "v_bias": "v", "b_o": "o", "in_proj_bias": "qkv"}


def test_spellings() -> None:
    for letters, words in SPELLINGS.items():
        for word in words.split():
            assert names.letters(f"{word}.weight") == names.letters(f"attn.{word}.bias", True) == tuple(letters), word
    for word, letters in BIASES.items():
        assert names.is_bias(word) and names.letters(word, True) == tuple(letters), word


CHINESE = {
    "setting": {"heads": "头数 头的个数 头数量", "kv_heads": "键值头数量", "head_dim": "每头维度", "hidden": "中间维度", "dropout": "丢弃概率",
                "context": "最大长度 分块大小", "vocab": "词表大小", "window": "窗口大小"},
    "argument": {"mask": "掩膜 有效长度", "block_size": "分块大小", "W_q": "查询映射"},
}  # fmt: skip


def test_chinese_words() -> None:
    for kind, meanings in CHINESE.items():
        for meaning, words in meanings.items():
            for word in words.split():
                assert getattr(names, kind)(word) == meaning, word
    assert names.speaks_of("part", "交叉熵") == "cross-entropy" and names.speaks_of("task", "交叉注意力") == "cross"


HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F

def core(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v
"""
RAW = HEAD + """
class Raw(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.{0}, self.{1}, self.{2} = (nn.Parameter(torch.randn(dim, dim)) for _ in range(3))

    def forward(self, x):
        return core(x @ self.{0}{T}, x @ self.{1}{T}, x @ self.{2}{T})
"""


def raw(spelled: str, transposed: bool) -> str:
    """A head whose three parameters have these names."""
    text = RAW.replace("{T}", ".T" if transposed else "")
    for number, name in enumerate(spelled.split()):
        text = text.replace(f"{{{number}}}", name)
    return text


@pytest.mark.parametrize("transposed", [False, True])
def test_a_raw_square_parameter_is_read_both_ways(tmp_path: Path, transposed: bool) -> None:
    subject = subject_of(tmp_path, raw("Wq Wk Wv", transposed))
    assert ["[out, in]" in one.label for one in subject.assignments] == [False, True]
    assert subject.has["absent"] == ["b_q", "b_k", "b_v"]
    assert right(subject)


def test_names_that_say_nothing_are_tried_in_order(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, raw("b1 alpha2 zeta", False), alternatives=24)
    assert len(subject.assignments) == 12  # 3! orders, two layouts
    assert subject.assignments[0].label.startswith("W_q=b1, W_k=alpha2, W_v=zeta")
    assert right(subject)
    assert len(subject_of(tmp_path, raw("b1 alpha2 zeta", False), alternatives=4).assignments) == 4


def test_a_map_leaves_no_choice(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, raw("c a b", False), map={"W_q": "c", "W_k": "a", "W_v": "b"})
    assert len(subject.assignments) == 2
    assert right(subject)
    with pytest.raises(Stop, match="--map names nothing, but the parameters are c"):
        subject_of(tmp_path, raw("c a b", False), map={"W_q": "nothing"})


def test_a_map_goes_before_names_and_names_what_there_is(tmp_path: Path) -> None:
    """A wrong order that only the map of one matrix tells; names that neither the task nor the code has."""
    swapped = {"W_q": "wk"}
    subject = subject_of(tmp_path, raw("wq wk wv", True), map=swapped)
    assert {slot.path: slot.names[0] for slot in subject.assignments[0].slots} == {"wq": "W_k", "wk": "W_q", "wv": "W_v"}
    sdpa = SOFTMAX + "def sdpa(q, k, v): return softmax(q @ k.swapaxes(-1, -2)) @ v"
    for text, asked, says in [
        (raw("wq wk wv", True), {"map": {"nonsense": "wq"}}, "--map nonsense: the task v1 has no nonsense, but x, "),
        (raw("wq wk wv", True), {"map": {"W_q": "wk", "W_k": "wk"}}, "--map gives wk two names of the task"),
        (raw("wq wk wv", True), {"init": {"zzz": 3}}, r"--init zzz: Raw\(...\) has no such argument, but dim"),
        (sdpa, {"map": {"W_q": "q"}}, "--map W_q: the task sdpa has no W_q, but q, k, v, mask"),
        (sdpa, {"map": {"q": "foo"}}, "--map names foo, but the arguments are q, k, v"),
        (sdpa, {"init": {"dim": 3}}, "--init is for the constructor of a class: sdpa is a function"),
    ]:
        with pytest.raises(Stop, match=says):
            subject_of(tmp_path, text, **asked)


MHA = HEAD + """
class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, E, H, d = num_heads, embed_dim, num_heads, embed_dim // num_heads
        INIT

    def join(self, q, k, v):
        out = core(q, k, v).transpose(1, 2)
        return out.reshape(*out.shape[:2], -1)

    def split(self, y):
        return y.view(*y.shape[:2], self.h, -1).transpose(1, 2)

    def forward(self, x):
        FORWARD
"""
FORMS = {
    "four linear layers": (
        "self.linears = nn.ModuleList([nn.Linear(E, E) for _ in range(4)])",
        "return self.linears[3](self.join(*(self.split(layer(x)) for layer in self.linears[:3])))",
    ),
    "merged, [in, out]": (
        "self.qkv, self.bias_qkv, self.o = nn.Parameter(torch.randn(E, 3 * E)), nn.Parameter(torch.zeros(3 * E)), nn.Linear(E, E)",
        "return self.o(self.join(*(self.split(y) for y in (x @ self.qkv + self.bias_qkv).chunk(3, -1))))",
    ),
    "a matrix for each head": (
        "self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(H, E, d)) for _ in range(3)); self.wo = nn.Parameter(torch.randn(H, d, E))",
        "q, k, v = (torch.einsum('ble,hed->bhld', x, w) for w in (self.wq, self.wk, self.wv));"
        " return torch.einsum('bhld,hde->ble', core(q, k, v), self.wo)",
    ),
    "conv": (
        "self.q, self.k, self.v, self.out = (nn.Conv1d(E, E, 1) for _ in range(4))",
        "y = x.mT; return self.out(self.join(*(self.split(f(y).mT) for f in (self.q, self.k, self.v))).mT).mT",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_several_heads(tmp_path: Path, form: str) -> None:
    init, forward = FORMS[form]
    subject = subject_of(tmp_path, MHA.replace("INIT", init).replace("FORWARD", forward))
    assert subject.task == "mha" and subject.sizes[:4] == (18, 3, 3, 6)
    assert right(subject)


def test_too_many_parameters_ask_for_a_map(tmp_path: Path) -> None:
    init, forward = FORMS["four linear layers"]
    with pytest.raises(Stop, match="cannot tell which parameter is which of linears.0.weight .*--map W_q=NAME"):
        subject_of(tmp_path, MHA.replace("INIT", init.replace("range(4)", "range(6)")).replace("FORWARD", forward))


def test_a_tied_weight_leaves_one_absent(tmp_path: Path) -> None:
    init = "self.q_proj, self.v_proj, self.o_proj = (nn.Linear(E, E) for _ in range(3)); self.k_proj = self.q_proj"
    forward = "return self.o_proj(self.join(*(self.split(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))))"
    subject = subject_of(tmp_path, MHA.replace("INIT", init).replace("FORWARD", forward))
    assert subject.has["absent"] == ["W_k", "b_k"]


NUMPY = SOFTMAX + """
class Linear:
    def __init__(self, n_in, n_out):
        self.W, self.b = np.random.randn(n_in, n_out).astype(np.float32), np.zeros(n_out)

    def __call__(self, x):
        return x @ self.W + self.b

class SelfAttentionV1:
    def __init__(self, hidden_dim):
        self.query, self.key, self.value = (Linear(hidden_dim, hidden_dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
"""


def test_an_object_of_arrays(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, NUMPY)
    paths = {name: slot.path for slot in subject.assignments[0].slots for name in slot.names}
    assert paths["W_q"] == "query.W" and paths["b_v"] == "value.b"
    assert right(subject)


LINEAR = NUMPY[len(SOFTMAX) : NUMPY.index("class SelfAttentionV1")]
CLOSURE = "def Linear(n_in, n_out):\n    W, b = np.random.randn(n_in, n_out), np.zeros(n_out)\n    return lambda x: x @ W + b\n\n"
TORCH = "from torch.nn import Linear\nfrom torch import softmax as soft\ndef softmax(x):\n    return soft(x, -1)\n"
HOLDERS = {
    "a neighbour": NUMPY.replace(LINEAR, "from linear_beside import Linear\n"),
    "slots": NUMPY.replace("V1:\n", "V1:\n    __slots__ = ('query', 'key', 'value')\n"),
    "slots of a part": NUMPY.replace("Linear:\n", "Linear:\n    __slots__ = ('W', 'b')\n"),
    "a closure": NUMPY.replace(LINEAR, CLOSURE),
    "a layer of PyTorch": NUMPY.replace(LINEAR, TORCH),
    "a name like a mask's": NUMPY.replace("self.b", "self.bias"),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_arrays(tmp_path: Path, holder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "linear_beside.py").write_text("import numpy as np\n" + LINEAR)
    subject = subject_of(tmp_path, HOLDERS[holder])
    assert len(subject.assignments[0].slots) == 6 and right(subject)


def test_arrays_that_are_not_found_are_no_mistake(tmp_path: Path) -> None:
    text = NUMPY.replace(LINEAR, "from functools import partial\n").replace("Linear(hidden_dim, hidden_dim)", "partial(np.matmul, np.eye(hidden_dim))")
    with pytest.raises(Stop, match="no parameters were found in SelfAttentionV1, which holds query, key, value: "):
        subject_of(tmp_path, text, task="v1")


HELD = SOFTMAX + """
class SelfAttentionV1:
    def __init__(self, dim):
        of, w, b = ("key", "query", "value"), np.ones((dim, dim)), np.ones(dim)
        HELD

    def __call__(self, x):
        k, q, v = (x @ W + B for n in ("key", "query", "value"))
        return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
"""
PLACES = {
    "with its matrix": ("self.layers = {n: {'w': w, 'b': b} for n in of}", "self.layers[n]['w']", "self.layers[n]['b']"),
    "in a dict": ("self.W, self.b = {n: w for n in of}, {n: b for n in of}", "self.W[n]", "self.b[n]"),
    "in a dict of biases": ("self.weights, self.biases = {n: w for n in of}, {n: b for n in of}", "self.weights[n]", "self.biases[n]"),
    "in an order of its own": ("self.w, self.shifts = {n: w for n in of}, [b for n in of]", "self.w[n]", "self.shifts['kqv'.index(n[0])]"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_bias_is_found_by_its_name_or_in_every_order(tmp_path: Path, place: str) -> None:
    held, matrix, bias = PLACES[place]
    assert right(subject_of(tmp_path, HELD.replace("HELD", held).replace("W + B", f"{matrix} + {bias}")))


def test_a_block_is_found_by_what_it_holds(tmp_path: Path) -> None:
    text = """
import torch.nn as nn
class Layer(nn.Module):
    def __init__(self, dim, n_heads, hidden_dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, n_heads, batch_first=True)
        self.w1, self.w3, self.w2 = nn.Linear(dim, hidden_dim), nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        self.ffn_norm, self.attention_norm = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y)[0]
        y = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))
"""
    subject = subject_of(tmp_path, text.replace("Layer", "TransformerLayer"))
    letters = {slot.path: slot.names[0] for slot in subject.assignments[0].slots}
    assert subject.task == "block" and subject.sizes.hidden == 22 and len(subject.assignments) == 1
    assert (letters["w1.weight"], letters["w3.weight"], letters["w2.bias"]) == ("W_g", "W_u", "b_d")
    assert (letters["ffn_norm.weight"], letters["attention_norm.weight"]) == ("W_m", "W_a")
    assert subject.has["metadata"] == {"eps": "1e-06", "silu": "1", "encoder": "1"}
    french = text.replace("Layer", "BlocEncodeur").replace("hidden_dim", "dim_cachee").replace("forward(self, x", "forward(self, x, bourrage=None")
    subject = subject_of(tmp_path, french.replace("y, y, y", "y, y, y, bourrage"))
    assert subject.task == "block" and as_json(subject)["untried"] == ["bourrage"]
