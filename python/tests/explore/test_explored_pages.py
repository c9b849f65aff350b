"""Pages of real architectures in Chromium: they open without a complaint, and the weights that they compute from q, k and lse are those of
eager attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("support_transformers")
import qkv
import qkv.transformers
from explored_models import IMAGES, MODELS, T, eager_weights, inputs_of, model_of
from support_explorer import Browser, browsers, tile
from support_transformers import torch


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from browsers()


@pytest.mark.parametrize("name", MODELS)
def test_the_page_computes_eagers_weights(name: str, tmp_path: Path, browser: Browser) -> None:
    padded = name not in IMAGES and name not in ("t5", "whisper")
    inputs = inputs_of(name, padded=padded)
    crossing = name in ("t5", "whisper")
    calls = 6 if crossing else 2
    heads = range(4)
    maps = qkv.transformers.capture_attention(model_of(name), inputs, exact=[(layer, head) for layer in range(calls) for head in heads])
    maps.save(tmp_path / "page.html")
    exact, naive = eager_weights(name, inputs), eager_weights(name, inputs, torch.float32)
    page = browser.open(tmp_path / "page.html")
    parts = ["self", "decoder", "cross"] if crossing else ["self"]
    for view, (b, part) in enumerate((b, part) for b in range(2) for part in parts):
        rows = inputs["attention_mask"][b].bool().numpy() if padded else slice(None)
        for layer, head in ((layer, head) for layer in range(2) for head in heads):
            true, rough = (w[part][layer][b, head] for w in (exact, naive))
            got, _ = tile(page, layer, head, 0, 0, view)
            # A page may be off by 1e-3 of a weight, on top of the rounding of float32 in the layers before.
            bound = 1e-3 * true + 2 * max(abs(a - b).max() for a, b in zip(exact[part], naive[part]))
            assert got.shape == true.shape and (abs(got - true) <= bound)[rows].all(), f"{name} {part} {layer}"
            assert abs(rough - true).max() < 1e-3
    browser.check()


def test_prompt_and_answer(tmp_path: Path, browser: Browser) -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    model.generation_config.eos_token_id = None
    generate = {"max_new_tokens": 5, "do_sample": False}
    maps = qkv.transformers.capture_attention(model, inputs, generate=generate, exact=[(1, 2)])
    maps.save(tmp_path / "page.html")
    want = eager_weights("llama", {"input_ids": torch.from_numpy(maps.runs[0].ids[""])})["self"][1][0, 2]
    page = browser.open(tmp_path / "page.html")
    got, _ = tile(page, 1, 2, 0, 0)
    assert got.shape == want.shape == (T + 4, T + 4) and (abs(got - want) <= 1e-3 * want + 1e-5).all()
    page.locator("#panel .tokens span").nth(T + 2).click()
    assert "this query is part of the answer" in page.locator("#pair").inner_text()
    browser.check()
