"""Calls: gradients by value, state, training mode, steps with a cache, training steps; what fails and what is not filled in."""

import sys
from pathlib import Path

import numpy as np
import pytest
import qkv
from qkv._judge import exchanged
from qkv._judge.runner.describing import subject_of_file
from qkv._judge.runner.errors import Stop
from qkv._judge.runner.steps import trial_tensors
from support_judge import SOFTMAX, answered, layer, right, subject_of

RNG = np.random.default_rng(5)
Q, K, V = (RNG.standard_normal((2, 3, length, 6)) for length in (5, 7, 7))


def test_code_that_cannot_do_float64_is_judged_in_float32(tmp_path: Path) -> None:
    text = layer("MultiHeadAttention", *["num_heads"] * 3)
    text = text.replace("x):", "x):\n        assert x.dtype == torch.get_default_dtype() == torch.ones(1, dtype=torch.float32).dtype")
    subject = subject_of(tmp_path, text)
    assert subject.dtype == "float32" and "judged in float32: it does not run in float64" in subject.notes
    assert right(subject)


CACHED = SOFTMAX + """
from types import SimpleNamespace as KVCache

class CachedAttention:
    def __init__(self, embed_dim, num_heads):
        self.h, self.past, self.cache_k = num_heads, None, np.zeros((9, 9))
        self.W_q, self.W_k, self.W_v, self.W_o = (np.random.randn(embed_dim, embed_dim) for _ in range(4))

    def forward(self, xTAKES):
        B, L, E = x.shape
        q, k, v = (y.reshape(B, L, self.h, -1).swapaxes(1, 2) for y in (x @ self.W_q, x @ self.W_k, x @ self.W_v))
        past = PAST
        if past is not None and len(past):
            k, v = (np.concatenate([a, b], 2) for a, b in zip(past, (k, v)))
        KEEP
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - L, dtype=bool), scores, -np.inf)
        out = (softmax(scores) @ v).swapaxes(1, 2).reshape(B, L, E) @ self.W_o
        return GIVES
"""
STATES = {
    "returned": (", cache=None", "cache", "pass", "out, (k, v)"),
    "two arguments": (", past_k=None, past_v=None", "None if past_k is None else (past_k, past_v)", "pass", "out, k, v"),
    "its own": ("", "self.past", "self.past = (k, v)", "out"),
    "a list that grows": (", kv_cache", "list(kv_cache)", "kv_cache[:] = [k, v]", "out"),
    "an object": (", cache", "getattr(cache, 'kept', ())", "cache.kept = [k, v]", "out"),
    "its own, matrices given": ("", "self.past", "self.past = (k, v)", "out", "(*wo.shape)", "wq, wk, wv, wo"),
    "a flag": (", cache=None, use_cache=False", "cache", "pass", "(out, (k, v) if use_cache else None)"),
    "a dict called kv": (", kv=None", "None if kv is None else (kv['k'], kv['v'])", "pass", "out, {'k': k, 'v': v}"),
}


@pytest.mark.parametrize("state", STATES)
def test_steps(tmp_path: Path, state: str) -> None:
    text = CACHED.replace("CachedAttention", "Attention" if "kv" in state else "CachedAttention")  # whose name says nothing
    for word, value in zip(("TAKES", "PAST", "KEEP", "GIVES", "(embed_dim, embed_dim)", "embed_dim"), STATES[state]):
        text = text.replace(word, value)
    subject = subject_of(tmp_path, text)
    assert subject.task == "cache"
    assert right(subject)


def test_two_functions_of_one_task(tmp_path: Path) -> None:
    backward = """
def attention_backward(q, k, v, dout, causal=False):
    return {"dq": q, "dk": k, "dv": v + causal}

def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    raise NotImplementedError("fill in: the layer")
"""
    subject = subject_of(tmp_path, backward)
    assert "layer_backward is not filled in yet" in subject.notes
    tensors = {"q": Q, "k": K, "v": V, "dout": Q, "x": np.ones((2, 5, 18)), "dout_layer": np.ones((2, 5, 18))}
    found, notes = answered(subject, tensors, causal="1")
    assert not notes and set(found) == {"dq", "dk", "dv"} and np.array_equal(found["dv"], V + 1)


@pytest.mark.parametrize("gives", ["1.5, {name: 2 * value for name, value in params.items()}", "1.5"])
def test_training_steps_of_a_function(tmp_path: Path, gives: str) -> None:
    changes = "" if "," in gives else "    for value in params.values():\n        value *= 2\n"
    subject = subject_of(tmp_path, f"def train_step(params, tokens, lr):\n{changes}    return {gives}\n")
    tensors = trial_tensors()
    found, notes = answered(subject, tensors, call="train-steps", repeat="3", lr="0.5")
    assert not notes and np.array_equal(found["loss"], [1.5, 1.5, 1.5]) and np.array_equal(found["after_W_q"], 8 * tensors["W_q"])


def test_a_training_starts_anew_in_each_probe(tmp_path: Path) -> None:
    text = "seen = {}\ndef train_step(params, tokens, lr):\n    seen['calls'] = seen.get('calls', 0) + 1\n    return float(seen['calls']), params\n"
    subject = subject_of(tmp_path, text)
    for _ in range(2):
        found, _notes = answered(subject, trial_tensors(), call="train-steps", repeat="3", lr="0.5")
        assert np.array_equal(found["loss"], found["loss"][0] + np.arange(3))
    assert found["loss"][0] <= 2  # the runner's first call


UNFILLED = {
    "a skeleton": 'raise NotImplementedError("fill in: scores, softmax")',
    "its own raise": "raise NotImplementedError",
    "pass": "pass",
    "dots": "...",
    "nothing returned": "scores = q @ k.swapaxes(-1, -2)",
    "only the mask": "if mask is not None:\n        raise NotImplementedError('fill in: the mask')\n    return q",
    "a constructor": "class V1:\n  def __init__(self, dim):\n    raise NotImplementedError('fill in')\n  def forward(self, x):\n    return x\n",
}


FAILING = {
    "at import": ("1 / 0\ndef sdpa(q, k, v): return q", "loading mine.py: ZeroDivisionError: division by zero", "line 1, in <module>"),
    "not Python": ("def sdpa(q, k, v)\n    return q", "loading mine.py: SyntaxError: expected ':' (mine.py, line 1)", 'File "mine.py", line 1'),
    "exit": ("import sys\nsys.exit(0)", "loading mine.py: the code called sys.exit(0)", "line 2"),
    "in the call": ("def sdpa(q, k, v):\n    return q @ k", "calling sdpa: ValueError: matmul", "line 2, in sdpa\n    return q @ k"),
    "no array": ("def sdpa(q, k, v):\n    return 'text'", "sdpa must return an array: it returned str", ""),
    "a module that is missing": (
        "import no_such_library.part\ndef sdpa(q, k, v): return q",
        f"loading mine.py: this Python ({sys.executable}) has no no_such_library: name another with --python",
        "line 1, in <module>",
    ),
    "an argument of a call": (
        "def masked_attention(q, k, v, masked): return q",
        "argument masked of masked_attention is not understood: give it a default, or --map mask=masked", "",
    ),
    "in making it": (
        "class SelfAttention:\n    def __init__(self, dim):\n        self.x = dim.y\n    def forward(self, x): return x",
        "making SelfAttention(dim=18): AttributeError: 'int' object has no attribute 'y'",
        "line 3, in __init__",
    ),
    "an unknown argument": (
        "class SelfAttention:\n    def __init__(self, dim, flavour):\n        pass\n    def forward(self, x): return x",
        "cannot tell what the argument flavour of SelfAttention(...) is: --init flavour=VALUE",
        "",
    ),
}


SKELETON = 'import numpy as np\ndef sdpa(q, k, v, mask=None):\n    """What is asked."""\n    {}\n'
FAILING |= {name: (body if body.startswith("class") else SKELETON.format(body), "not filled in yet", "") for name, body in UNFILLED.items()}


@pytest.mark.parametrize("case", FAILING)
def test_failing(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, says, traceback = FAILING[case]
    with pytest.raises(Stop) as stop:
        subject_of(tmp_path, text)
    assert stop.value.verdict == ("unfilled" if case in UNFILLED else "failed") and stop.value.says.startswith(says)
    assert "<frozen" not in stop.value.traceback and ("calling" not in says or stop.value.as_json()["task"] == "sdpa")
    assert traceback in stop.value.traceback and str(tmp_path) not in stop.value.traceback and "runner" not in stop.value.traceback


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="no such file"):
        subject_of_file({"file": str(tmp_path / "none.py")})


def test_a_call_that_fails_is_its_answers_error(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, "def sdpa(q, k, v):\n    assert q.shape[2] > 1, 'too short'\n    return q\n")
    found, notes = answered(subject, dict.fromkeys("qkv", np.ones((2, 3, 1, 6))))
    assert not found and notes["error"] == "AssertionError: too short" and 'File "mine.py", line 2, in sdpa' in notes["traceback"]
    assert answered(subject, {"q": Q, "k": K, "v": V}, call="dance")[1] == {"skipped": "this runner knows no call dance"}


def test_settings_of_a_constructor(tmp_path: Path) -> None:
    text = layer("MultiHeadAttention", "num_heads, dropout=0.1", "num_heads", "num_heads")
    settings = "embed_dim = config['emb_dim']; num_heads = config.n_heads; dropout = getattr(config, 'p_drop', 0.1)"
    subject = subject_of(tmp_path, text.replace("embed_dim, num_heads, dropout=0.1", "config").replace("        super", f"        {settings}\n        super"))
    assert subject.sizes[:4] == (18, 3, 3, 6)
    assert right(subject)
    subject = subject_of(tmp_path, text, init={"embed_dim": "20", "heads": 4, "dropout": 0.5})
    assert subject.sizes[:4] == (20, 4, 4, 5) and subject.has["dropout"] == 0.5
    with pytest.raises(Stop, match="--init: embed 20 must be a multiple of heads 3"):
        subject_of(tmp_path, text, init={"dim": 20})
    with pytest.raises(Stop, match="the size embed must be an integer from 1 to 4096: got 8192 .build it smaller"):
        subject_of(tmp_path, text, init={"dim": 8192})  # before anything of that size is made


def test_causal_code_for_as_many_queries_as_keys(tmp_path: Path) -> None:
    text = SOFTMAX + """
def causal_attention(q, k, v):
    return softmax(np.where(np.tri(len(q[0, 0]), dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)) @ v
"""
    subject = subject_of(tmp_path, text)
    _, notes = answered(subject, {"q": Q, "k": K, "v": V}, causal="1")
    assert notes["skipped"].startswith("it takes as many queries as keys only: ValueError: ") and notes["unrun"] == "len(k) > len(q)"
    found = exchanged(subject)[0]
    assert found["verdict"] == "right" and found["untried"] == ["len(k) > len(q)"]
    flagged = text.replace("causal_attention(q, k, v)", "flash_attention(q, k, v, block_size=4, causal=False)").replace("np.where(", "np.where(not causal or ")
    assert exchanged(subject_of(tmp_path, flagged))[0]["verdict"] == "failed"  # with more keys it runs without the flag alone
    refused = flagged.replace("    return softmax(np.where", "    assert not causal or q.shape == k.shape\n    return softmax(np.where")
    assert exchanged(subject_of(tmp_path, refused))[0]["untried"] == ["block_size", "len(k) > len(q)"]


@pytest.mark.parametrize(("check", "asked"), [("mask.any(-1).all()", False), ("mask.all()", True), ("(mask.sum(-1) > 1).all()", True)])
def test_a_query_that_sees_nothing_may_be_refused(tmp_path: Path, check: str, asked: bool) -> None:
    found = exchanged(subject_of(tmp_path, SOFTMAX + f"""
def sdpa(q, k, v, mask=None):
    if mask is not None and not {check}:
        raise ValueError("a row of the mask is empty")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v
"""))[0]  # fmt: skip
    assert found["verdict"] == ("failed" if asked else "right")
    assert found["untried"] == ["a query that sees nothing"] * (not asked)


def test_an_argument_that_the_task_has_not(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="the argument qkv of sdpa was taken for W_qkv, which the task sdpa has not: it has q, k, v, mask"):
        subject_of(tmp_path, "def sdpa(qkv, mask=None):\n    q, k, v = qkv\n    return q\n")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("out + 1j", "an array of complex128"),
        ("(out, weights * 1j)", "an array of complex128"),
        ("np.ma.masked_array(out, mask=True)", "a masked array"),
        ("out.astype(str)", "an array of <U32"),
    ],
)
def test_results_are_real_numbers(tmp_path: Path, returned: str, says: str) -> None:
    subject = subject_of(tmp_path, f"""
        import numpy as np
        def sdpa(q, k, v):
            weights = np.exp(q @ k.swapaxes(-1, -2)); out = weights @ v
            return {returned}
    """)  # fmt: skip
    found, notes = answered(subject, {"q": Q, "k": K, "v": V})
    assert not found and notes["error"] == f"the code must return arrays of real numbers: it returned {says}"


RAISED = {
    "class E(Exception):\n    def __str__(self): raise RuntimeError('no')": "E",
    "class E(BaseException): pass": "E: x",
    "E = GeneratorExit": "GeneratorExit: x",
}


@pytest.mark.parametrize("error", RAISED)
def test_any_error_of_the_code_is_a_failure(tmp_path: Path, error: str) -> None:
    for place, doing in [("def sdpa(q, k, v, mask=None):\n    raise E('x')\n", "calling sdpa"), ("raise E('x')\n", "loading mine.py")]:
        with pytest.raises(Stop, match=f"^{doing}: {RAISED[error]}$"):
            subject_of(tmp_path, f"{error}\n{place}")


def test_compiled_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert right(subject_of(tmp_path, "import torch\nfrom torch.nn import functional as F\nsdpa = F.scaled_dot_product_attention"))
    finding = qkv.judge(torch.jit.script(torch.nn.Linear(3, 3)))
    assert (finding.verdict, finding.checks[-1].detail) == ("failed", "RecursiveScriptModule was compiled by torch.jit: judge what it was made of")
