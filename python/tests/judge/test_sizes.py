"""What shows at other sizes and in later calls alone: right only as far as the first call goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from qkv._judge import exchanged
from support_judge import subject_of

LAYER = """
import torch, torch.nn as nn, torch.nn.functional as F

class {}(nn.Module):
    def __init__(self, embed_dim, {}):
        super().__init__()
        self.heads, self.hidden, self.batch = {}, None, None
        self.to_q, self.to_out = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.to_k, self.to_v = (nn.Linear(embed_dim, {} * embed_dim // self.heads) for _ in range(2))

    def forward(self, x):
        B, L, E = x.shape
        q, k, v = (f(x).view(B, L, -1, E // self.heads).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        k, v = (y.repeat_interleave(self.heads // y.size(1), 1) for y in (k, v))
        s = q @ k.mT / q.size(-1) ** 0.5
        {}
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, L, E))
"""


def found(folder: Path, text: str, **request: object) -> list[str]:
    """The verdict, and the ids of mistakes."""
    finding = exchanged(subject_of(folder, text, **request))[0]
    return [finding["verdict"], *(one["id"] for one in finding["mistakes"])]


def layer(name: str, more: str, heads: str, kv_heads: str, mask: str = "pass") -> str:
    pytest.importorskip("torch")
    return LAYER.format(name, more, heads, kv_heads, mask)


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
