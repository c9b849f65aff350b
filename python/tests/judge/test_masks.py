"""The mask in whatever form the code wants it: shape, type, what True means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner import masks
from support_judge import answered, close, subject_of, tensors_for, truth

RNG = np.random.default_rng(3)
PADDING = np.arange(5) < np.array([4, 3])[:, None, None]  # [B, 1, L]
PADDING = np.broadcast_to(PADDING, (2, 5, 5)).copy()
PAIRS = (RNG.random((2, 5, 5)) < 0.6) | np.eye(5, dtype=bool)
ONE = np.broadcast_to(np.tri(5, dtype=bool), (2, 5, 5)).copy()

MHA = """
import numpy as np

class MultiHeadAttention:
    def __init__(self, embed_dim, num_heads):
        self.h = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (np.random.randn(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, ARGUMENT=None):
        B, L, E = x.shape
        q, k, v = (y.reshape(B, L, self.h, -1).swapaxes(1, 2) for y in (x @ self.W_q, x @ self.W_k, x @ self.W_v))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(E // self.h)
        if ARGUMENT is not None:
            scores = HIDE
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(B, L, E) @ self.W_o
"""
WANTS = {
    # code: (shape, type, True hides, masks that it can take)
    "np.where(mask, scores, -1e9)": ("[B, 1, L, L]", "bool", (PADDING, PAIRS, ONE)),
    "np.where(mask[:, None], scores, -1e9)": ("[B, L, L]", "bool", (PADDING, PAIRS, ONE)),
    "np.where(mask[:, None, None, :], scores, -1e9)": ("[B, L]", "bool", (PADDING,)),
    "np.where(mask.reshape(L, L), scores, -1e9)": ("[L, L]", "bool", (ONE,)),
    "np.where(mask.reshape(B, 3, L, L), scores, -1e9)": ("[B, H, L, L]", "bool", (PADDING, PAIRS, ONE)),
    "np.where(mask.reshape(B, 1, 1, L), scores, -1e9)": ("[B, L]", "bool", (PADDING,)),
    "scores + -1e9 * (1 - mask)": ("[B, 1, L, L]", "bool", (PADDING, PAIRS)),
    "scores + (-mask + 1) * -1e9": ("[B, 1, L, L]", "int64", (PADDING, PAIRS)),  # NumPy has no minus of bool
}


@pytest.mark.parametrize("code", WANTS)
def test_shapes_and_types(tmp_path: Path, code: str) -> None:
    shape, dtype, takes = WANTS[code]
    subject = subject_of(tmp_path, MHA.replace("ARGUMENT", "mask").replace("HIDE", code))
    assert subject.mask_form == masks.Form(shape, dtype)
    for number, mask in enumerate((PADDING, PAIRS, ONE)):
        tensors = {**tensors_for(subject, number), "mask": mask[:, None]}
        found, notes = answered(subject, tensors)
        if any(mask is one for one in takes):
            assert not notes
            close(found["out"], truth(tensors, subject.sizes))
        elif shape in ("[B, L]", "[L, L]"):
            assert not found and notes["skipped"] == f"its mask has the shape {shape}: this one cannot be said in it"


def test_a_name_whose_convention_is_the_opposite(tmp_path: Path) -> None:
    code = "np.where(key_padding_mask[:, None, None, :], -np.inf, scores)"
    subject = subject_of(tmp_path, MHA.replace("ARGUMENT", "key_padding_mask").replace("HIDE", code))
    assert subject.mask_form == masks.Form("[B, L]", "bool", hides=True)
    assert any("True was taken for hidden" in note for note in subject.notes)
    from runner.describing import as_json

    assert as_json(subject)["conventions"] == ["mask-true-hides"]
    tensors = {**tensors_for(subject), "mask": PADDING[:, None]}
    close(answered(subject, tensors)[0]["out"], truth(tensors, subject.sizes))


@pytest.mark.parametrize("code", ["scores + mask", "scores + mask[:, None, None, :]", "scores + mask[:L, :L]"])
def test_a_mask_that_only_hides_when_it_is_added(tmp_path: Path, code: str) -> None:
    subject = subject_of(tmp_path, MHA.replace("ARGUMENT", "mask").replace("HIDE", code))
    assert subject.mask_form is not None and subject.mask_form.convention == "mask-added"
    assert any(note.startswith("mask was taken for 0 and -inf") for note in subject.notes)
    tensors = {**tensors_for(subject), "mask": PADDING[:, None]}
    close(answered(subject, tensors)[0]["out"], truth(tensors, subject.sizes))


@pytest.mark.parametrize("code", ["np.where(mask, -1e9, scores)", "scores + mask * -1e9", "scores", "scores * mask"])
def test_what_leaks_either_way_keeps_its_mask(tmp_path: Path, code: str) -> None:
    subject = subject_of(tmp_path, MHA.replace("ARGUMENT", "mask").replace("HIDE", code))
    assert subject.mask_form == masks.Form("[B, 1, L, L]", "bool")


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


@pytest.mark.parametrize("code", ["gizmo", "scores * gizmo"])
def test_what_hides_nothing_is_no_mask(tmp_path: Path, code: str) -> None:
    subject = subject_of(tmp_path, FUNCTION.replace("ARGUMENT", "gizmo").replace("HIDE", code))
    assert subject.mask_form is None and not subject.bindings["sdpa"].takes("mask")
    assert subject.bindings["sdpa"].untried(True) == ["gizmo"]


def test_an_added_mask_that_the_contract_has_as_bool_is_said(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, FUNCTION.replace("ARGUMENT", "mask").replace("HIDE", "scores + mask"))
    assert subject.notes == ["right if mask holds 0 and -inf, to be added to the scores: the task's is bool"]


def test_a_mask_that_a_task_has_not_is_never_given(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, FUNCTION.replace("ARGUMENT", "mask").replace("HIDE", "scores + mask"), task="causal")
    assert subject.mask_form is None and subject.bindings["causal_attention"].untried(False) == ["mask"] and not subject.notes
