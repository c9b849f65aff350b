"""The explorer's page in Chromium, what follows a choice: names and numbers of layers and heads, panels.
Not: what each control does (test_explorer.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support_explorer import Browser, full_file, page_of, settled


def text(*tokens: str, **more: Any) -> dict[str, Any]:
    return {"tokens": list(tokens), **more}


def view(name: str, lengths: tuple[int, int], *layers: dict[str, Any], texts: tuple[int, int] = (0, 0), **more: Any) -> dict[str, Any]:
    sizes = {"heads": 2, "kv_heads": 2, "q_len": lengths[0], "kv_len": lengths[1]}
    return {"name": name, "queries": texts[0], "keys": texts[1], "layers": [sizes | layer for layer in layers or ({},)], **more}


def made(folder: Path, texts: list[dict[str, Any]], *views: dict[str, Any], title: str = "t", **tensors: np.ndarray) -> Path:
    """A page on these views with weights of random rows."""
    rng = np.random.default_rng(3)
    for v, one in enumerate(views):
        for n, layer in enumerate(one["layers"]):
            w = rng.random((layer["heads"], layer["q_len"], layer["kv_len"])).astype(np.float32)
            tensors[f"{v}/{n}/weights"] = w / w.sum(-1, keepdims=True)
    return page_of(folder, tensors, {"format": "qkv.explorer.1", "explorer": json.dumps({"title": title, "texts": texts, "views": views})})


def kinds(*names: str) -> dict[str, Any]:
    return {"head_info": [{"kind": name, "share": 0.8} for name in names]}


ABC = text("one", "two", "three"), text("uno", "dos", "tres"), text("alpha", "beta", "gamma")


def test_layers_and_heads_have_their_own_numbers_everywhere(tmp_path: Path, browser: Browser) -> None:
    layers = [{"number": n, "name": f"h.{n}", "head_numbers": [7, 9]} for n in (4, 5, 6)]
    page = browser.open(made(tmp_path, [*ABC], view("big", (3, 3), *layers), view("small", (3, 3), *layers[:2])), "layer=2&head=1&beside=1&i=1&j=1")
    assert page.locator("#name").inner_text() == "layer 6, head 9"
    assert page.locator("#besideName").inner_text() == "small, layer 5, head 9"
    with page.expect_download() as waiting:
        page.locator("#saveJson").click()
    saved = json.loads(Path(waiting.value.path()).read_text())
    assert waiting.value.suggested_filename == "attention-0-6-9.json"
    assert [saved[key] for key in ("layer", "head", "layer_number", "head_number", "head_name")] == [2, 1, 6, 9, "layer 6, head 9"]
    page = browser.open(made(tmp_path, [*ABC], view("big", (3, 3), *({**layer, "formula": {"scale": 1}} for layer in layers))), "layer=1&tab=why")
    assert "with --exact 5:7 stores them" in page.locator("#panel").inner_text()


def test_a_cut_is_named_as_its_own_view_counts(tmp_path: Path, browser: Browser) -> None:
    """Of the cut two of four layers are shown: its layer 1 is the whole view's layer 3."""
    whole, part = ([{"number": n, "name": f"h.{n}", **kinds("self", "self")} for n in numbers] for numbers in (range(4), (2, 3)))
    cut = {"of": 0, "heads": [[1, 0]], "with": "zero", "others": [[0, 1, 0.5]]}
    page = browser.open(made(tmp_path, [*ABC], view("whole", (3, 3), *whole), view("cut", (3, 3), *part, cut=cut)), "tab=does&layer=3")
    assert "without layer 3, head 0: nothing in its stead" in page.locator("#panel").inner_text()
    page.locator("#panel .chips button", has_text="2.1 50 %").click()
    assert settled(page).evaluate("[state.view, state.layer, state.head]") == [0, 2, 1]


def test_effects_that_a_file_lacks_are_said_of_each_view(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], *(view(name, (3, 3), kinds("self", "self")) for name in "ab")), "tab=does&beside=1")
    parts = page.locator("#panel .halves > div").all_inner_texts()
    assert len(parts) == 2 and all("This file says neither what its heads write" in part for part in parts)
    page = browser.open(page_of(tmp_path, *full_file()), "tab=does&beside=1")
    assert "This file says neither" not in page.locator("#panel").inner_text()
