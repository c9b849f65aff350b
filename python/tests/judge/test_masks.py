"""The mask in whatever form the code wants it: shape, type, what True means."""

from __future__ import annotations

from pathlib import Path

import pytest
from qkv._judge.runner import masks
from qkv._judge.runner.describing import as_json
from support_judge import subject_of

FUNCTION = """
import numpy as np
def attention(q, k, v, ARGUMENT=None):
    "DOC"
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if ARGUMENT is not None:
        scores = HIDE
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
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
        ("mask", "np.where(mask, scores, -1e9)", "True means hidden", masks.Form("[B, 1, L, L]", "bool")),  # it is not so
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
