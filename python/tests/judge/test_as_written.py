"""Layers as people write them: what they return, where their heads come from, what they keep in functions. Each is right, or wrong in one
way."""

from pathlib import Path

import pytest
from qkv._judge import exchanged
from support_judge import right, subject_of

LAYER = """
import torch
from torch import nn
import torch.nn.functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.FUSED, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        INIT

    def forward(self, x, **more):
        b, t, e = x.shape
        split = lambda one: one.view(b, t, self.heads, -1).transpose(1, 2)
        q, k, v = map(split, COLUMNS)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = WEIGHTS
        context = (weights @ v).transpose(1, 2).reshape(b, t, e)
        return RETURNED
"""
PLAIN = {"FUSED": "qkv", "INIT": "pass", "COLUMNS": "self.qkv(x).chunk(3, -1)", "WEIGHTS": "scores.softmax(-1)", "RETURNED": "self.out(context)"}
FORMS = {  # what differs from PLAIN, what is said to be untried
    "plain": ({}, []),
    "a lambda with the layers": ({"INIT": "self.project = lambda x: self.qkv(x).chunk(3, -1)", "COLUMNS": "self.project(x)"}, []),
    "a partial of a function": ({"INIT": "import functools\n        def cut(n, x): return self.qkv(x).chunk(n, -1)\n"
                                         "        self.project = [functools.partial(cut, 3)]", "COLUMNS": "self.project[0](x)"}, []),
    "dropout in a lambda": ({"INIT": "self.drop = lambda w: F.dropout(w, 0.1, self.training)", "WEIGHTS": "self.drop(scores.softmax(-1))"}, []),
    "keys and values": ({"RETURNED": "self.out(context), k, v"}, ["returned[1]"]),
    "heads side by side": ({"RETURNED": "self.out(context), context"}, ["returned[1]"]),
    "scores": ({"RETURNED": "self.out(context), scores"}, ["returned[1]"]),
    "weights": ({"RETURNED": "self.out(context), weights"}, []),
    "k, q, v by its name": ({"FUSED": "kqv", "COLUMNS": "[self.kqv(x).chunk(3, -1)[n] for n in (1, 0, 2)]"}, []),
    "k, q, v by its columns": ({"FUSED": "c_attn", "COLUMNS": "(q, k, v)", "RETURNED": "self.out(context)",
                                "b, t, e = x.shape": "b, t, e = x.shape\n        k, q, v = self.c_attn(x).split(e, -1)"}, []),
}  # fmt: skip


def written(changes: dict[str, str]) -> str:
    text = LAYER
    for old, new in {**PLAIN, **changes}.items():
        text = text.replace(old, new)
    return text.replace(", **more", "")


@pytest.mark.parametrize("form", FORMS)
def test_layers_that_are_right(tmp_path: Path, form: str) -> None:
    pytest.importorskip("torch")
    found, _ = exchanged(subject_of(tmp_path, written(FORMS[form][0])))
    assert found["verdict"] == "right" and found["untried"] == FORMS[form][1]


def test_what_is_called_weights_is_held_to_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, _ = exchanged(subject_of(tmp_path, written({"weights = ": "weights, attn = scores.softmax(-1), ", "RETURNED": "self.out(context), attn", "WEIGHTS": "scores"})))
    assert [one["id"] for one in found["mistakes"]] == ["weights-are-scores"]


def test_a_state_that_the_caller_keeps_is_a_cache(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    grown = """b, t, e = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        if state is not None:
            if "k" in state:
                k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
            state["k"], state["v"] = k, v"""
    changes = {", **more": ", state=None", "b, t, e = x.shape": grown, "COLUMNS": "(q, k, v)", "view(b, t,": "view(b, one.shape[1],",
               "WEIGHTS": "scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - t), -torch.inf).softmax(-1)"}  # fmt: skip
    subject = subject_of(tmp_path, written(changes))
    assert subject.task == "cache" and right(subject)


#: Sizes of the file; of a class's parts, beside its own arguments; as numbers where columns become heads.
@pytest.mark.parametrize(("sizes", "dim", "heads"), [("dim, heads = 24, 4", "dim", "heads"), ("", "24", "4"), ("dim = 24", "dim", "4")])
def test_sizes_that_no_argument_gives(tmp_path: Path, sizes: str, dim: str, heads: str) -> None:
    pytest.importorskip("torch")
    text = written({"dim, heads": "", "(self, ):": "(self):", "        self.heads = heads\n": ""}).replace("MultiHead", "Self").replace("3 * dim", f"3 * {dim}")
    text = text.replace("Linear(dim, dim)", f"Linear({dim}, {dim})").replace("Linear(dim,", f"Linear({dim},").replace("self.heads, -1", f"{heads}, e // {heads}")
    subject = subject_of(tmp_path, text.replace("class ", f"{sizes}\n\nclass ", 1))
    assert subject.task == "mha" and subject.sizes[:2] == (24, 4) and right(subject)


def test_a_file_whose_heads_read_its_sizes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subject = subject_of(tmp_path, """
import torch
from torch import nn
n_embd, n_head, block_size = 32, 4, 16

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T, q, k = x.shape[1], self.query(x), self.key(x)
        scores = (q @ k.mT * k.shape[-1] ** -0.5).masked_fill(self.tril[:T, :T] == 0, -torch.inf)
        return scores.softmax(-1) @ self.value(x)

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.heads = nn.ModuleList(Head(n_embd // n_head) for _ in range(n_head))
        self.proj, self.fc1, self.fc2 = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.proj(torch.cat([head(self.ln1(x)) for head in self.heads], -1))
        return x + self.fc2(self.fc1(self.ln2(x)).relu())
""")
    assert subject.task == "block" and not subject.small and right(subject)


def test_matrices_of_a_swiglu_by_their_shapes(tmp_path: Path) -> None:
    """w2 and w3 are called either: the one that is like the gate is up."""
    pytest.importorskip("torch")
    text = """
import torch
from torch import nn
class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.UP = nn.Parameter(torch.zeros(hidden, dim)), nn.Parameter(torch.zeros(hidden, dim))
        self.DOWN = nn.Parameter(torch.zeros(dim, hidden))

    def forward(self, x):
        return (nn.functional.silu(x @ self.w1.T) * (x @ self.UP.T)) @ self.DOWN.T
"""
    for up, down in (("w3", "w2"), ("w2", "w3")):
        assert right(subject_of(tmp_path, text.replace("UP", up).replace("DOWN", down)))


FLASH = """
import torch
class FlashAttention:
    def __init__(self, block_size=3):
        self.block_size = block_size
    def __call__(self, q, k, v):
        out, top, total = torch.zeros_like(q), q.new_full(q.shape[:-1] + (1,), -torch.inf), q.new_zeros(q.shape[:-1] + (1,))
        for n in range(0, k.shape[-2], self.block_size):
            scores = q @ k[..., n : n + self.block_size, :].mT / q.shape[-1] ** 0.5
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            p, kept = (scores - new).exp(), (top - new).exp()
            out, total, top = kept * out + p @ v[..., n : n + self.block_size, :], kept * total + p.sum(-1, keepdim=True), new
        return out / total
"""


def test_a_class_in_blocks_is_called_with_many(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert right(subject_of(tmp_path, FLASH)) and not right(subject_of(tmp_path, FLASH.replace("kept * out", "out")))


@pytest.mark.parametrize(("name", "code"), [
    ("flash_attention(q, k, v, block)", "q /= q.shape[-1] ** 0.5\n    s = q @ k.swapaxes(-1, -2)\n    e = np.exp(s - s.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True) @ v"),
    ("lora_merge(W, A, B, alpha)", "W += alpha / A.shape[-1] * A @ B\n    return W"),
])  # fmt: skip
def test_an_input_that_a_call_changes(tmp_path: Path, name: str, code: str) -> None:
    found, text = exchanged(subject_of(tmp_path, f"import numpy as np\ndef {name}:\n    {code}\n"))
    assert [one["id"] for one in found["mistakes"]] == ["inputs-changed"] and "the call changes its input" in text
    assert right(subject_of(tmp_path, f"import numpy as np\ndef {name}:\n    'In place.'\n    {code}\n"))


def test_a_flag_that_nobody_reads_is_untried(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, _ = exchanged(subject_of(tmp_path, written({", **more": ", is_causal=False"})))
    assert found["verdict"] == "right" and found["untried"] == ["is_causal"]


ROTATE = """
import torch
def half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)
def apply_rotary_pos_emb(ARGUMENTS):
    BODY
    return RETURNED
"""
PAIRS = """x1, x2 = x[..., ::2], x[..., 1::2]
    y = torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)"""
COMPLEX = "turned = lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * freqs_cis[:, None]).flatten(3)"
BY_POSITION = """angles = positions[:, None] * theta ** -(torch.arange(0, q.shape[-1], 2, dtype=q.dtype) / q.shape[-1])
    cos, sin = (torch.cat([one, one], -1) for one in (angles.cos(), angles.sin()))"""
BOTH = "q * cos + half(q) * sin, k * cos + half(k) * sin"


@pytest.mark.parametrize(("arguments", "body", "returned", "verdict"), [
    ("q, k, cos, sin, unsqueeze_dim=1", "cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)", BOTH, "right"),
    ("q, k, cos, sin", "pass", BOTH.replace("half(k)", "half(q)"), "unknown"),  # k is turned as q
    ("q, k, cos, sin", "pass", BOTH.replace(" + ", " - "), "wrong"),
    ("x, cos, sin", PAIRS, "y.flatten(-2)", "convention"),
    ("x, cos, sin", "'x [B, T, H, d]'; d = x.shape[-1] // 2; c, s = cos[:, None, :d], sin[:, None, :d]; a, b = x[..., :d], x[..., d:]",
     "torch.cat([a * c - b * s, b * c + a * s], -1)", "right"),
    ("xq, xk, freqs_cis", COMPLEX, "turned(xq), turned(xk)", "convention"),
    ("q, k, positions, theta=10000.0", BY_POSITION, BOTH, "right"),
])  # fmt: skip
def test_rotations_that_are_given(tmp_path: Path, arguments: str, body: str, returned: str, verdict: str) -> None:
    pytest.importorskip("torch")
    text = ROTATE.replace("ARGUMENTS", arguments).replace("BODY", body).replace("RETURNED", returned)
    subject = subject_of(tmp_path, text)
    found, _ = exchanged(subject)
    assert subject.task == "rope" and found["verdict"] == verdict


PARTS = {
    "swiglu": """
class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, hidden, False), nn.Linear(dim, hidden, False), nn.Linear(hidden, dim, False)
    def forward(self, x):
        return self.down(F.silu(self.gate(x)CUT) * self.up(x))
""",
    "lora": """
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear, self.alpha = linear, alpha
        self.A, self.B = nn.Parameter(torch.zeros(linear.in_features, r)), nn.Parameter(torch.zeros(r, linear.out_features))
    def forward(self, x):
        return self.linear(x) + self.alpha / self.A.shape[1] * x @ self.A @ self.BCUT
""",
}


@pytest.mark.parametrize("part", PARTS)
def test_gradients_of_parts(tmp_path: Path, part: str) -> None:
    pytest.importorskip("torch")
    text = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n" + PARTS[part]
    assert right(subject_of(tmp_path, text.replace("CUT", "")))
    found, evidence = exchanged(subject_of(tmp_path, text.replace("CUT", ".detach()")))
    assert [one["id"] for one in found["mistakes"]] == ["gradient-cut"] and "along one direction: the output's differences give" in evidence


def test_a_norm_whose_root_is_clamped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
import torch
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale, self.gain = dim**0.5, nn.Parameter(torch.ones(dim))
    def forward(self, x):
        return nn.functional.normalize(x, dim=-1) * self.scale * self.gain
"""
    found, _ = exchanged(subject_of(tmp_path, text))
    assert found["verdict"] == "convention" and [one["id"] for one in found["conventions"]] == ["norm-eps-clamped"]
    bare = text.replace("nn.functional.normalize(x, dim=-1) * self.scale", "x / x.square().mean(-1, keepdim=True).sqrt()")
    assert [one["id"] for one in exchanged(subject_of(tmp_path, bare))[0]["mistakes"]] == ["norm-eps-missing"]
