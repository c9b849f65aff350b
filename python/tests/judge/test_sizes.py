"""What shows at other sizes, in other calls, in training, and by what the file says: right only as far as the first call goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from qkv._judge import exchanged
from support_judge import SOFTMAX, layer, subject_of

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
