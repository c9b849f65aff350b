"""qkv.judge, with the engine of the package, and its finding as text and in a notebook. Which line it finds: tests/judge/corpus.py."""

import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

qkv = pytest.importorskip("qkv")
pytest.importorskip("qkv._engine")
from qkv._judge.runner.trace.match import layouts
from qkv._judge.runner.trace.where import _row
from support_explorer import HOSTILE


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sdpa(q, k, v, mask=None):
    print("dropped")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e20)
    weights = softmax(scores)
    return weights @ v, weights


def unscaled(q, k, v, mask=None):
    return sdpa(q * np.sqrt(q.shape[-1]), k, v, mask)[0]


def test_chinese() -> None:
    english, chinese = qkv.judge(unscaled), qkv.judge(unscaled, lang="zh")
    assert (english.verdict, english.mistakes[0].id) == (chinese.verdict, chinese.mistakes[0].id) == ("wrong", "no-scale")
    assert chinese.mistakes[0].says == "分数没有除以 sqrt(d)。" and "错误：no-scale" in str(chinese)
    assert "错误" not in str(qkv.judge(unscaled))
    assert str(qkv.judge(sdpa, lang="zh")).startswith("正确")
    with pytest.raises(ValueError, match="lang"):
        qkv.judge(sdpa, lang="fr")


def test_what_was_never_tried_is_in_the_first_line() -> None:
    pytest.importorskip("torch")
    block = qkv.judge(Path(__file__).parents[3] / "tests/judge/others/gpt_block.py")
    assert str(block).split("\n")[0] == "right, as far as asked: train() was never tried" and block.untried == ("train()",)


def sided(q, k, v, mask=None, valid=None):
    if q.ndim == 2:  # half of the scale: nobody asks for it
        return sdpa(q / 2, k, v, mask)
    else:
        if k.shape != v.shape[-2:]:
            out = sdpa(q, k, v, mask)
        else:
            out = 0
    if q.ndim < 2:
        raise ValueError("q is [.., Tq, d]")
    if valid is not None:
        out = out * valid
    return out


def test_branches_that_no_probe_went_through_are_in_the_first_line() -> None:
    finding = qkv.judge(sided, task="sdpa")
    assert finding.untried == ("valid", "`if q.ndim == 2`", "`if not (k.shape != v.shape[-2:])`")
    assert "as far as asked: valid, `if q.ndim == 2`, `if not (k.shape != v.shape[-2:])` were never tried" in str(finding).split("\n")[0]
    assert str(qkv.judge(sided, task="sdpa", lang="zh")).startswith("正确")
    assert qkv.judge(sdpa).untried == ()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions say where they stand since Python 3.11")
def test_branches_on_the_line_of_their_condition(tmp_path: Path) -> None:
    text = inspect.getsource(softmax) + """
def attend(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if q.shape[2] > 64: return q
    if mask is not None: scores = np.where(mask, scores, -1e30)
    for step in range(3):
        if step > 1: continue
        if step > 7: break
    return softmax(scores) @ v
"""
    (tmp_path / "mine.py").write_text("import numpy as np\n" + text)
    finding = qkv.judge(tmp_path / "mine.py", task="sdpa")
    assert finding and finding.untried == ("`if q.shape[2] > 64`", "`if step > 7`"), str(finding)


def grouped(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return sdpa(q, *(np.tile(x, (1, groups, 1, 1)) for x in (k, v)))


def test_heads_shared_in_another_order_are_untried() -> None:
    assert "fewer heads of k and v" in qkv.judge(grouped).untried


def odd(q, k, v, mask=None):
    return unscaled(np.cos(q) + 0.3, k, np.tanh(v) ** 3 + 0.2 * k, mask)


def test_nothing_explains_it() -> None:
    finding = qkv.judge(odd, task="sdpa")
    text = str(finding)
    assert finding.verdict == "unknown" and text.startswith("differs from the textbook of sdpa")
    assert text.count("expected") == 2 and 'probe "by hand"' in text  # the line's row and the smallest counter-example
    assert "  not right: " in text and "  right: one token" not in text
    assert "by hand" not in str(qkv.judge(odd, task="sdpa", lang="zh"))


def test_right(capfd) -> None:
    state = np.random.get_state()[1].copy()
    finding = qkv.judge(sdpa)
    assert finding and finding.task == "sdpa" and finding.name == "sdpa" and finding.seconds > 0 and finding.checks
    assert capfd.readouterr() == ("", "")
    assert np.array_equal(np.random.get_state()[1], state)


def test_wrong() -> None:
    finding = qkv.judge(unscaled, task="sdpa")
    assert not finding and finding.verdict == "wrong"
    assert [one.id for one in finding.mistakes] == ["no-scale"]
    assert "no-scale" in str(finding) and "no-scale" in repr(finding) and "expected" in finding.evidence
    assert finding.mistakes[0].hint in " ".join(str(qkv.judge(unscaled, task="sdpa", hint=True)).split())


def test_an_inverted_mask_is_right_by_the_other_reading() -> None:
    def attend(q, k, v, is_pad=None):
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        return softmax(scores if is_pad is None else np.where(is_pad, scores, -1e9)) @ v

    assert str(qkv.judge(attend)).startswith("right if 1 means visible; wrong if 1 means hidden: mask-polarity\n")
    assert str(qkv.judge(lambda q, k, v, mask=None: attend(q, k, v, mask if mask is None else ~mask), task="sdpa")).startswith(
        "right if 1 means hidden; wrong if 1 means visible: mask-polarity\n"
    )


def test_a_docstring_announces_what_is_a_mistake_elsewhere() -> None:
    def merge(m1, l1, o1, m2, l2, o2):
        m = np.maximum(m1, m2)
        f1, f2 = np.exp(m1 - m), np.exp(m2 - m)
        total = f1 * l1 + f2 * l2
        return m, total, (f1[..., None] * o1 + f2[..., None] * o2) / total[..., None]

    assert [one.id for one in qkv.judge(merge).mistakes] == ["merge-divided"]
    merge.__doc__ = "Returns m, l and the normalised output."
    finding = qkv.judge(merge)
    assert finding and [one.id for one in finding.conventions] == ["merge-divided"] and "its docstring says so" in finding.notes


KEPT = """
import numpy as np

def layernorm_forward(x, gamma, beta, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    std = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return centred / std * gamma + beta, (centred / std, std, gamma)

def layernorm_backward(dout, cache):
    y, std, gamma = cache
    g = dout * gamma
    dx = (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True)) / std
    return dx, (dout * y).sum((0, 1)), dout.sum((0, 1))
"""


def test_a_gradient_of_what_its_forward_function_kept(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(KEPT)
    finding = qkv.judge(path)
    assert finding.verdict == "right" and not finding.untried, str(finding)
    path.write_text(KEPT.replace("- g.mean(-1, keepdims=True) ", ""))
    finding = qkv.judge(path)
    assert [one.id for one in finding.mistakes] == ["norm-mean-term-missing"] and finding.line == 12
    flat = KEPT.replace("(0, 1)", "0").replace("cache):", 'cache):\n    """dout (N, D)"""')
    path.write_text(flat)
    assert (finding := qkv.judge(path)).verdict == "right", str(finding)
    path.write_text(KEPT.replace("gamma + beta, (centred / std, std, gamma)", "gamma + beta"))
    assert "returns one array alone" in str(qkv.judge(path))


def test_a_module_keeps_its_parameters() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(18, 3, batch_first=True)
    before = [parameter.clone() for parameter in module.parameters()]
    torch.manual_seed(5)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    finding = qkv.judge(module, task="mha")
    assert finding, str(finding)
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == threads
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters()))
    assert module.training and module.in_proj_weight.dtype == torch.float32


def test_a_file_that_turns_gradients_off(tmp_path: Path) -> None:
    """They are asked for all the same, and are on afterwards; an output that the code cuts off is not right for that."""
    torch = pytest.importorskip("torch")
    text = "import torch\ntorch.set_grad_enabled(False)\ndef attend(q, k, v):\n    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v{}\n"
    for cut, verdict in (("", "right"), (".detach()", "wrong")):
        (tmp_path / "mine.py").write_text(text.format(cut))
        finding = qkv.judge(tmp_path / "mine.py", task="sdpa")
        assert finding.verdict == verdict and torch.is_grad_enabled(), str(finding)
        assert all(one.asked for one in finding.checks if one.name.startswith("gradient"))


def test_a_path(tmp_path: Path) -> None:
    """A file as it is now, with what it imports from its folder; afterwards nothing of it is left in this process."""
    file, beside = tmp_path / "attend_here.py", tmp_path / "beside_it.py"
    file.write_text(
        "from beside_it import SCALE, softmax\n\ndef other(a):\n    return a\n\ndef attend(q, k, v):\n"
        "    return softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** SCALE) @ v\n"
    )
    path = sys.path[:]
    for scale, expected in (("0.0", ["no-scale"]), ("1.0", ["scale-1-over-d"]), ("0.5", [])):
        beside.write_text(f"import numpy as np\nSCALE = {scale}\n{inspect.getsource(softmax)}")
        for code in (file, str(file), f"{file}:attend"):
            finding = qkv.judge(code, task="sdpa")
            assert ([one.id for one in finding.mistakes], finding.name) == (expected, "attend"), str(finding)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["attend_here.py", "beside_it.py"]
    assert finding.file == str(file) and sys.path == path and not {"attend_here", "beside_it"} & set(sys.modules)
    nothing = qkv.judge(f"{file}:nothing")
    assert (nothing.verdict, nothing.name) == ("failed", "nothing") and "has no nothing" in str(nothing)
    for missing in ("attend.py", "attend.py:sdpa", "", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"\[judge\] no such file: "):
            qkv.judge(missing)


def test_misuse() -> None:
    with pytest.raises(TypeError, match=r"\[judge\] code must be a function, a class, a module or a path: got int"):
        qkv.judge(3)
    with pytest.raises(ValueError, match=r"\[judge\] task must be one of one-row, softmax, .*: got 'v9'"):
        qkv.judge(sdpa, task="v9")


def test_views_that_mix_axes_are_none() -> None:
    assert layouts((2, 5, 12), (2, 3, 5, 4), "bgid")[0].order == [0, 2, 1, 3]  # [B, T, H d]
    mixed = [layout for layout in layouts((2, 15, 4), (2, 5, 3, 4), "bgid") if sorted(layout.groups[1]) != [1, 2]]
    assert all(layout.rest for layout in mixed)


def test_the_finding_shows_the_line() -> None:
    def attention(q, k, v, mask=None):
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, -1e20)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        e = e / e.sum(-1, keepdims=True)
        return e @ v[..., ::-1, :]

    code = attention.__code__
    finding = qkv.judge(attention, task="sdpa")
    line = code.co_firstlineno + 6
    assert finding.line == line and f">{line:5} |         return e @ v" in finding.where
    assert f"right up to line {line - 1} (weights); line {line} is the first that is not" in str(finding)
    assert f"{line} is the first" in str(qkv.judge(attention, task="sdpa", hint=True))
    assert f"从第 {line} 行起不正确" in str(qkv.judge(attention, task="sdpa", lang="zh"))
    assert attention.__code__ is code and not [name for name in globals() if "watch__" in name]  # as it was


def test_numbers_stand_apart() -> None:
    assert _row(np.array([-2412.9601, -1052.338, -12345.6])).split() == ["-2412.9601", "-1052.3380", "-1.23e+04"]


CODE = """
import numpy as np

def sdpa(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -1e9)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
"""


@pytest.fixture
def findings(tmp_path: Path):
    """(old, new, **options of judge) -> the finding of CODE with this edit."""

    def found(old: str = "", new: str = "", **options):
        (tmp_path / "mine.py").write_text(CODE.replace(old, new))
        return qkv.judge(tmp_path / "mine.py", **options)

    return found


def tree(finding) -> ElementTree.Element:
    return ElementTree.fromstring(finding._repr_html_())


def marked(page: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in page.iter() if "background:rgba(224" in one.get("style", "")]


def test_the_term_the_line_and_the_numbers(findings) -> None:
    finding = findings(" / np.sqrt(q.shape[-1])")
    page = tree(finding)
    expected, got = (re.search(rf"^ +{label} (.*)", str(finding), re.MULTILINE)[1].split() for label in ("expected", "got"))
    term, line, *wrong = marked(page)
    assert (term, line) == ("/ sqrt(d)", "  >    5 |     s = q @ k.swapaxes(-1, -2)")
    differing = [one for one, other in zip(got, expected) if one != other]
    assert [one.strip() for one in wrong][: len(differing)] == differing
    assert marked(tree(findings(") @ v", ") @ k")))[0] == "V", "of ) V"


def test_it_says_what_the_text_says(findings) -> None:
    maskless = findings(", mask=None):", "):\n    mask = None")
    for options in ({}, {"hint": True}, {"lang": "zh"}):
        for finding in (maskless, *(findings(*edit, **options) for edit in ((), (" / np.sqrt(q.shape[-1])",), ("e.sum", "e.nothing")))):
            shown, said = (re.sub(r"[\s^]", "", one) for one in ("".join(tree(finding).itertext()), f"\u25cf{finding}"))
            assert shown == said


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(findings, name: str) -> None:
    """Of the file, of the object, in notes and tracebacks: text, and no markup."""
    page = tree(replace(findings(" / np.sqrt(q.shape[-1])"), text=f"wrong: {name}\n  {name}\n  >  1 | {name}"))
    assert {one.tag for one in page.iter()} <= {"div", "span", "b"}
    if name.isprintable():
        assert "".join(page.itertext()).count(name) >= 3 or not name.strip()


def test_a_layers_counter_example_is_one_for_a_pencil() -> None:
    torch = pytest.importorskip("torch")

    class Heads(torch.nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            q, k, v = (to(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for to in (self.q, self.k, self.v))
            weights = (q @ k.mT / x.shape[-1] ** 0.5).softmax(-1)
            return self.o((weights @ v).transpose(1, 2).flatten(2))

    evidence = qkv.judge(Heads).evidence
    lines = re.findall(r"^  (\w+) +(\(.*)", evidence, re.MULTILINE)
    given = {name: np.array([row.split() for row in re.findall(r"\(([^)]*)", line)], float) for name, line in lines}
    assert all((array == array.round()).all() and abs(array).max() < 10 for array in given.values()) and len(given) == 9
    q, k, v = (np.stack(np.split(given["x"] @ given[f"W_{one}"] + given[f"b_{one}"], 2, 1)) for one in "qkv")
    for label, scale in (("expected", 2), ("got", 4)):
        out = np.hstack([*(softmax(q @ k.swapaxes(1, 2) / scale**0.5) @ v)]) @ given["W_o"] + given["b_o"]
        row, numbers = int(re.search(r"out\[0, (\d)", evidence)[1]), re.search(f"{label} (.*)", evidence)[1].split()
        np.testing.assert_allclose(out[row], np.array(numbers, float), atol=5e-5)
