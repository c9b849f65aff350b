"""Captures of qkv.transformers.capture_attention, against the weights of transformers' eager attention."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
import qkv.transformers
from support_transformers import inputs_of, model_of, torch


def eager_weights(name: str, inputs: dict[str, Any]) -> list[np.ndarray]:
    model = model_of(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return [w.double().numpy() for w in model(**inputs, output_attentions=True).attentions]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_capture_sees_eagers_weights(name: str) -> None:
    inputs = inputs_of(name)
    weights = eager_weights(name, inputs)
    model = model_of(name)
    model.set_attn_implementation("sdpa")
    model.train()
    maps = qkv.transformers.capture_attention(model, inputs)
    assert model.config._attn_implementation == "sdpa" and all(m.training for m in model.modules())
    assert len(maps) == len(weights) == 2
    rows = {(row["layer"], row["head"]): row for row in maps.statistics()}
    assert len(rows) == 8
    for layer, w in enumerate(weights):
        entropy, at = -(w * np.log(np.maximum(w, 1e-300))).sum(-1), np.arange(w.shape[-1])
        expected = {"entropy_nats": entropy, "self": w[..., at, at], "first": w[..., 0], "max": w.max(-1)}
        for head in range(4):
            # float32 on both sides; the weights' own comparison has its bound in test_attention.py
            np.testing.assert_allclose(maps.map(layer, head, sequence=1), w[1, head], atol=2e-5)
            for what, x in expected.items():
                np.testing.assert_allclose(rows[layer, head][what], x[:, head].mean(), atol=2e-5)
    assert maps.table().count("\n") == 8


def test_capture_of_some_layers_and_heads() -> None:
    inputs = inputs_of("llama", "right")
    weights = eager_weights("llama", inputs)
    maps = qkv.transformers.capture_attention(
        model_of("llama"), inputs, layers=[1], capture=qkv.Capture(heads=[3, 0], rows=[5], statistics=True)
    )
    assert len(maps) == 1 and [one is maps[1] for one in maps] == [True]
    assert maps.layers[0].name == "model.layers.1.self_attn" and maps.layers[0].heads == (3, 0)
    np.testing.assert_allclose(maps[1].rows[:, :, 0], weights[1][:, [3, 0], 5], atol=2e-5)
    coarse = qkv.transformers.capture_attention(model_of("llama"), inputs, capture=qkv.Capture(heads=[2], map=(4, 3)))
    blocks = [weights[0][0, 2][:, columns].sum(-1) for columns in (slice(0, 4), slice(4, 8), slice(8, 11))]
    want_map = [[part[rows].mean() for part in blocks] for rows in (slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11))]
    np.testing.assert_allclose(coarse.map(0, 2), want_map, atol=2e-5)
    assert coarse.plot(layer=0).svg().startswith("<svg")
    live = inputs["attention_mask"].bool().numpy()  # rows of padding do not count
    want = np.concatenate([weights[1][b, 3][live[b]].max(-1) for b in range(2)]).mean()
    np.testing.assert_allclose(maps.statistics()[0]["max"], want, atol=2e-5)
    with pytest.raises(IndexError, match="layer 0"):
        maps[0]
    with pytest.raises(ValueError, match="head 1"):
        qkv.transformers.capture_attention(model_of("llama"), inputs, heads=[2]).map(0, 1)
    with pytest.raises(ValueError, match=r"layers must lie in 0\.\.1"):
        qkv.transformers.capture_attention(model_of("llama"), inputs, layers=[2])


def test_what_is_given_is_neither_cut_short_nor_ignored(tmp_path: Path) -> None:
    model, ids = model_of("gpt2"), inputs_of("gpt2")["input_ids"]
    capture = qkv.transformers.capture_attention
    refused: dict[str, tuple[type[Exception], Any]] = {
        "exact: layers must be captured ones, [1]: got [0]": (ValueError, lambda: capture(model, ids, layers=[1], exact=[(0, 1)])),
        "exact must hold pairs (layer, head)": (TypeError, lambda: capture(model, ids, exact=[(0.5, 1)])),
        "layers must be a sequence of whole": (TypeError, lambda: capture(model, ids, layers=[1.0])),
        "input_ids must be [B, T]: got [3]": (ValueError, lambda: capture(model, ids[0, :3])),
        'return_tensors="pt"': (TypeError, lambda: capture(model, {"input_ids": ids.tolist()})),
    }
    maps = capture(model, ids[:1])
    page = tmp_path / "page.safetensors"
    without = capture(model, ids[:1], whole=False)
    refused |= {
        "tokens: the sides of texts are ['']: got ['decoder']": (ValueError, lambda: maps.save(page, tokens={"decoder": ["a"]})),
        "weights: those of layer 0 were not kept": (ValueError, lambda: without.save(page, weights=[(0, 1)])),
    }
    for said, (kind, call) in refused.items():
        with pytest.raises(kind, match=re.escape(said)):
            call()
    assert len(capture(model, ids, layers=(n for n in (0, 1)))) == 2
    maps.save(page, tokens=np.arange(ids.shape[1]), title=7)  # type: ignore[arg-type]
    made = json.loads(qkv.io.load_safetensors(page).metadata["explorer"])
    assert made["texts"][0]["tokens"] == [str(n) for n in range(ids.shape[1])] and made["title"] == "7"


def test_capture_without_a_console(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert len(qkv.transformers.capture_attention(model_of("gpt2"), inputs_of("gpt2"))) == 2


def test_capture_gives_the_models_own_output() -> None:
    inputs = inputs_of("gemma2", "left")
    model = model_of("gemma2")
    model.set_attn_implementation("qkv")
    with torch.no_grad():
        want = model(**inputs).logits
    assert torch.equal(qkv.transformers.capture_attention(model, inputs).outputs.logits, want)
