"""Options of the formula that no probe gives, two of them at once, and what a function returns beside its output and weights."""

from pathlib import Path

import pytest
from qkv._judge import exchanged
from support_judge import SOFTMAX, right, subject_of

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
    for name in ("sdpa", "scaled_dot_product_attention"):
        found, _ = exchanged(subject_of(tmp_path, OPTION.replace("sdpa", name).replace("OPTION", option).replace("USED", used)))
        assert not found["mistakes"] and found["untried"] == untried


#: With the name and the options of PyTorch's.
TORCHS = """
import torch

def scaled_dot_product_attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = torch.einsum("...id,...jd->...ij", query, key) * factor
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return scores.softmax(-1) @ value
"""


@pytest.mark.parametrize(("old", "new", "seen"), [
    ("", "", None),
    (" if scale is None else scale", "", "scale=0.37: it gives what it gives without"),
    ("None else scale", "None else scale**2", "scale=0.37: the scores are not q.k times 0.37"),
    ("value.repeat_interleave(shared, dim=1)", "value.repeat(1, shared, 1, 1)", "head 1 of q gives other numbers"),
    ("scores + attn_mask", "scores + attn_mask * factor", "attn_mask as numbers and -inf"),
    ("scores + attn_mask", "scores - attn_mask", "attn_mask as numbers and -inf"),
    ("scores + attn_mask", "scores.masked_fill(attn_mask == 0, -torch.inf)", None),  # 1 and 0: its author's to say
])  # fmt: skip
def test_options_of_pytorchs_name_are_pytorchs(tmp_path: Path, old: str, new: str, seen: str | None) -> None:
    pytest.importorskip("torch")
    found, text = exchanged(subject_of(tmp_path, TORCHS.replace(old, new) if old else TORCHS))
    assert not found["untried"] and [one["id"] for one in found["mistakes"]] == ["option-not-followed"] * (seen is not None)
    assert seen is None or seen in text


@pytest.mark.parametrize("option", ["scale=None", "scale=True", "softmax_scale=1.0"])
def test_a_scale_that_nobody_reads_is_named(tmp_path: Path, option: str) -> None:
    found, text = exchanged(subject_of(tmp_path, OPTION.replace("OPTION", option).replace("USED", "q.shape[-1] ** -0.5")))
    assert [one["id"] for one in found["mistakes"]] == ["option-not-followed"] and "it gives what it gives without" in text
    said = OPTION.replace("v, OPTION):", f'v, {option}):\n    "The scale is ignored."').replace("USED", "q.shape[-1] ** -0.5")
    assert right(subject_of(tmp_path, said))


@pytest.mark.parametrize("says", ["hidden scores become -inf", "1 = visible, additive inside", "掩码 1 = 可见，相当于加 -inf"])
def test_masks_of_1_and_0_are_not_accused(tmp_path: Path, says: str) -> None:
    pytest.importorskip("torch")
    masked = TORCHS.replace("scores.masked_fill(~attn_mask, -torch.inf)", "scores.masked_fill(attn_mask.to(dtype=torch.bool) == 0, -torch.inf)")
    masked = masked.replace("scores + attn_mask", "scores.masked_fill(attn_mask == 0, -torch.inf)").replace("    factor", f"    # {says}\n    factor")
    assert right(subject_of(tmp_path, masked)) and right(subject_of(tmp_path, masked.replace("scaled_dot_product_attention", "attention")))


@pytest.mark.parametrize(("says", "returned"), [("Returns out and the scores.", "s"), ("Returns out, k, v: the present.", "k, v"),
    ("", "(e / l).swapaxes(-1, -2)")])  # fmt: skip
def test_arrays_that_are_no_weights(tmp_path: Path, says: str, returned: str) -> None:
    found, _ = exchanged(subject_of(tmp_path, f'''
import numpy as np
def sdpa(q, k, v):
    """{says}"""
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    e = np.exp(s - s.max(-1, keepdims=True))
    l = e.sum(-1, keepdims=True)
    return e @ v / l, {returned}
'''))
    assert found["verdict"] == "right" and "returned[1]" in found["untried"]


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


@pytest.mark.parametrize(("old", "new", "pair"), [
    ("    if is_causal:\n", "    if is_causal:\n        scores = scores / factor * query.shape[-1] ** -0.5\n", "scale=0.37 and is_causal=True"),
    ("scores = scores.masked_fill(~attn_mask", "scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~attn_mask", "scale=0.37 and attn_mask"),
    ("        shared =", "        factor = query.shape[-1] ** -0.5\n        shared =", "scale=0.37 and enable_gqa=True"),
    ("key, value = key.repeat", "is_causal = False\n        key, value = key.repeat", "enable_gqa=True and is_causal=True"),
])  # fmt: skip
def test_two_options_are_given_at_once(tmp_path: Path, old: str, new: str, pair: str) -> None:
    pytest.importorskip("torch")
    assert TORCHS.count(old) == 1
    found, text = exchanged(subject_of(tmp_path, TORCHS.replace(old, new)))
    assert [one["id"] for one in found["mistakes"]] == ["option-not-followed"] and f"{pair}: each gives the formula" in text


STATISTICS = """
import numpy as np
from dataclasses import dataclass
from typing import NamedTuple
@dataclass
class Answer:
    out: np.ndarray
    lse: np.ndarray
@dataclass(slots=True)
class Slots:
    out: np.ndarray
    lse: np.ndarray
class Pair(NamedTuple):
    out: np.ndarray
    logsumexp: np.ndarray
def sdpa(q, k, v, scale=None):
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    m = s.max(-1, keepdims=True)
    e = np.exp(s - m)
    l = e.sum(-1, keepdims=True)
    out, L, lse2 = e @ v / l, (m + np.log(l))[..., 0], ((m + np.log(l)) / np.log(2))[..., 0]
    RETURNED
"""


@pytest.mark.parametrize(("returned", "seen"), [
    ("return out, m, l", ""), ("return out, L", ""), ("lse = lse2; return out, lse", ""), ("return {'out': out, 'lse': L}", ""),
    ("return Answer(out, L)", ""), ("return Pair(out, L)", ""), ("return Slots(out, L)", ""), ("return out, L.swapaxes(1, 2)", None), ("l = np.exp(s).sum(-1); return out, l", ""),
    ("return {'output': out, 'weights': e / l, 'row_max': m, 'denominator': l}", ""),
    ("lse = m; return out, lse", "returned[1], lse, is not the logarithm of the sum of each row: it is the largest score"),
    ("lse = np.log(l); return out, lse", "returned[1], lse, is not the logarithm of the sum of each row: it is the logarithm of the sum of exp"),
    # Right, or nobody's business: letters, names of functions inside, half precision, what is returned by another name.
    ("m = L; return out, m", ""), ("l = 1 / l; return out, m, l", None), ("m, l = l, m; return out, m, l", ""), ("lse = L / 3; return out, lse", None),
    ("def stats(): return m, l\n    both = out, m\n    return both", ""), ("lse = L.astype(np.float16); return out, lse", ""),
    ("denominator = L; return out, denominator", ""), ("return {'out': out, 'lse': L, 'of': np.full(q.shape[:-1], 'row')}", None),
    ("row_max = l; return out, row_max[..., 0]", "returned[1], row_max, is not the largest score of each row: it is the sum"),
    ("return {'out': out, 'lse': l[..., 0]}", 'returned["lse"], lse, is not the logarithm'),
    ("return Answer(out, m[..., 0])", "returned.lse, lse, is not the logarithm"), ("return Pair(out, l)", "returned[1], logsumexp, is not"),
])  # fmt: skip
def test_statistics_are_what_their_names_say(tmp_path: Path, returned: str, seen: str) -> None:
    found, text = exchanged(subject_of(tmp_path, STATISTICS.replace("RETURNED", returned)))
    assert [one["id"] for one in found["mistakes"]] == ["statistic-mislabelled"] * bool(seen) and (seen or "") in text
    assert found["verdict"] == ("wrong" if seen else "right") and len(found["untried"]) == (seen is None)


def test_causal_functions_are_held_too(tmp_path: Path) -> None:
    text = STATISTICS.replace("def sdpa(", "def causal_attention(").replace("    m = s", "    s = np.where(np.tri(s.shape[-1], dtype=bool), s, -np.inf)\n    m = s")
    for returned, used, seen in (
        ("return out, L", "scale", ""), ("return out, L", "q.shape[-1] ** -0.5", None), ("lse = l; return out, lse", "scale", "statistic-mislabelled"),
        ("return out, L - m[..., 0]", "scale", None),
    ):  # fmt: skip
        found, _ = exchanged(subject_of(tmp_path, text.replace("RETURNED", returned).replace("else scale)", f"else {used})")))
        assert [one["id"] for one in found["mistakes"]] == [seen] * bool(seen)
        assert len(found["untried"]) == (seen is None) + 1 and found["untried"][-1] == "len(k) > len(q)"  # its triangle is square


@pytest.mark.parametrize(("lse", "seen"), [
    ("s.logsumexp(-1)", ""), ("s.logsumexp(-1) / math.log(2)", ""), ("plain.logsumexp(-1)", "scale=0.37: the output follows it, returned[1] does not"),
    ("(plain * factor).logsumexp(-1)", "causal=True: the output follows it, returned[1] does not"),
])  # fmt: skip
def test_the_logarithm_follows_what_the_output_follows(tmp_path: Path, lse: str, seen: str) -> None:
    pytest.importorskip("torch")
    found, text = exchanged(subject_of(tmp_path, f"""
import math, torch
def attention(q, k, v, causal=False, scale=None):
    factor = 1 if scale is None else scale * q.shape[-1] ** 0.5
    plain = q @ k.mT / q.shape[-1] ** 0.5
    s = plain * factor
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2]), -torch.inf)
    return s.softmax(-1) @ v, {lse}
"""))
    assert [one["id"] for one in found["mistakes"]] == ["option-not-followed"] * bool(seen) and seen in text


@pytest.mark.parametrize(("returned", "untried"), [
    ("{'out': out, 'scores': s}", ['returned["scores"]']), ("{'output': out, 'steps': 3}", ['returned["steps"]']),
])  # fmt: skip
def test_what_is_returned_by_a_name_of_its_own(tmp_path: Path, returned: str, untried: list[str]) -> None:
    found, _ = exchanged(subject_of(tmp_path, STATISTICS.replace("RETURNED", f"return {returned}")))
    assert found["verdict"] == "right" and found["untried"] == untried


@pytest.mark.parametrize(("lse", "verdict"), [("L", "right"), ("L.swapaxes(1, 2)", "right"), ("m[..., 0]", "unknown")])
def test_an_lse_whose_axes_are_other_ones_is_not_held_to_the_formula(tmp_path: Path, lse: str, verdict: str) -> None:
    """Not even where there are as many tokens as heads."""
    text = STATISTICS.replace("def sdpa(q, k, v, scale=None):", 'def flash_attention(q, k, v):\n    """out and its lse"""\n    scale = None')
    found, _ = exchanged(subject_of(tmp_path, text.replace("RETURNED", f"return out, {lse}")))
    assert found["verdict"] == verdict and found["untried"] == ["returned[1]"] * ("swap" in lse)
