"""How large pages of short texts are, and how much memory a capture of a long one takes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("support_transformers")
import qkv.transformers
from support import run_program
from support_transformers import tf, torch


@pytest.mark.parametrize("sharp", [1.0, 6.0])
def test_pages_of_short_texts_are_small(sharp: float, tmp_path: Path) -> None:
    """Two of BERT base's twelve layers at 512 tokens, with attention spread and pointed: a sixth of 12 MB for maps of all heads and every
    weight of one in twelve, a sixth of 40 MB for every weight."""
    torch.manual_seed(0)
    model = tf.BertModel(tf.BertConfig(num_hidden_layers=2)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter *= sharp
    maps = qkv.transformers.capture_attention(model, torch.randint(0, 30000, (1, 512)))
    maps.save(tmp_path / "some.html", weights=[(0, 3), (1, 5)])
    maps.save(tmp_path / "all.html")
    assert (tmp_path / "some.html").stat().st_size < 12e6 / 6
    assert (tmp_path / "all.html").stat().st_size < 40e6 / 6
    print(*(f"{(tmp_path / name).stat().st_size / 1e6:.2f} MB" for name in ("some.html", "all.html")))


def test_capture_of_a_long_text_takes_little_memory(tmp_path: Path) -> None:
    """Above the same forward without a capture: far less than one head's weights."""
    script = """
    import resource, sys, torch, transformers, qkv.transformers
    config = transformers.Qwen2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=50)
    model = transformers.Qwen2Model(config).eval()
    qkv.transformers.register()
    model.set_attn_implementation("qkv")
    tokens = torch.randint(0, 50, (1, 8192))
    capture = lambda ids: qkv.transformers.capture_attention(model, ids, exact=[(1, 2)])
    capture(tokens[:, :600])
    with torch.no_grad():
        model(input_ids=tokens)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = peak()
    maps = capture(tokens)
    assert maps.layers[1].kinds is not None and maps.layers[1].map.shape == (1, 4, 128, 128)
    print(peak() - before)
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(script))
    assert int(run_program(program, tmp_path)) * 1024 < 8192 * 8192 * 4 / 4
