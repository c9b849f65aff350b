"""The explorer's file: what the tool and the page refuse and say, hostile tokens stay text, the package makes the same page.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from qkv import _nn
from support_explorer import HOSTILE, Browser, full_file, page_of, refused, settled, small


def test_hostile_tokens_stay_text(tmp_path: Path, browser: Browser) -> None:
    q, k = small(1, 2, 2, len(HOSTILE), len(HOSTILE))
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"title": "</title><script>alert(0)</script>"}, HOSTILE))
    assert page.locator("img").count() == 0 and page.locator("script:not(.data)").count() == 1
    shown = page.locator("#panel .tokens span").all_inner_texts()
    assert shown[0] == HOSTILE[0] and shown[1] == HOSTILE[1] and "U+202E" in shown[3] and "U+0000" in shown[4]
    assert len(shown[-1]) <= 201 and page.title().startswith("</title>")
    page.locator("#tab-lines").click()
    assert HOSTILE[0][:4] in "".join(page.locator(".lines text").all_text_contents())
    for i in range(len(HOSTILE)):
        page.locator("#map").press("ArrowDown")
    with page.expect_download() as waiting:
        page.locator("#saveCsv").click()
    rows = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text())))
    assert rows[1 + HOSTILE.index("=1+1")][1] == "'=1+1"  # no formula in a spreadsheet


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, browser: Browser) -> None:
    def unknown(file: dict[str, Any]) -> None:
        file["views"][0]["layers"][0]["formula"]["temperature"] = 2

    page = browser.open(page_of(tmp_path, *full_file(unknown)), ready=False)  # other rules: tests/view/explorer_test.js
    assert 'formula holds "temperature", which this page cannot compute' in page.locator("#wrong").inner_text()

    def named(file: dict[str, Any]) -> None:
        file["views"][1]["layers"][0]["head_names"] = ["only one"]

    page = browser.open(page_of(tmp_path, *full_file(named)), ready=False)
    assert "view 1, layer 0: head_names must have one string per head" in page.locator("#wrong").inner_text()

    def none_exact(file: dict[str, Any]) -> None:
        file["views"][0]["layers"][1] |= {"exact": [], "exact_kv": [], "formula": {"scale": 1}}

    page = browser.open(page_of(tmp_path, *full_file(none_exact)), "layer=1")
    assert "Exact heads" not in page.locator("#about").inner_text()

    page = browser.open(page_of(tmp_path, *full_file()))
    page.locator(".thumb[data-layer='1'][data-head='0']").click()
    assert "No exact weights in this layer: this layer drops weights below 1 %" in settled(page).locator("#about").inner_text()


def test_the_tool_refuses_what_it_would_have_to_ignore(tmp_path: Path) -> None:
    q, k = small(1, 2, 2, 5, 5)
    lse = np.zeros((2, 5), np.float32)
    for tensors, metadata, said in (
        ({"q": q, "k": k, "v": k}, {}, "must be q, k, lse"),
        ({"q": q}, {}, "must hold a tensor k"),
        ({"q": q, "k": k}, {"temperature": "2"}, "temperature"),
        ({"q": q, "k": k}, {"causal": "yes"}, "must be true or false"),
        ({"q": q, "k": k}, {"window": "3"}, "LEFT,RIGHT"),
        ({"q": q, "k": k}, {"scale": "nan"}, "finite"),
        ({"q": q, "k": k, "lse": lse}, {}, "lse must follow from q, k and the metadata"),
        ({"q": q[:1], "k": k}, {}, "multiple"),
        ({"q": q, "k": k[:, :, :3].copy()}, {}, "one width"),
        ({"q": q.astype(np.float64), "k": k}, {}, "F32, F16 or BF16"),
        ({"0/0/q": q}, {"format": "qkv.explorer.2", "explorer": "{}"}, "qkv.explorer.1"),
        ({"0/0/surprise": q}, {"format": "qkv.explorer.1", "explorer": "{}"}, "0/0/surprise"),
        ({"0/0/map": q[0].copy()}, {"format": "qkv.explorer.1", "explorer": "{}"}, "must have 3 axes"),
    ):  # fmt: skip
        assert said in refused(tmp_path, tensors, metadata), said
    assert "one for each of the 5" in refused(tmp_path, {"q": q, "k": k}, {}, "--tokens", write(tmp_path, ["a"]))
    assert "list of strings" in refused(tmp_path, {"q": q, "k": k}, {}, "--tokens", write(tmp_path, [1]))
    assert "--tokens" in refused(tmp_path, {"q": q, "k": k}, {}, "--text", "abc")


def write(folder: Path, tokens: Any) -> str:
    (folder / "t.json").write_text(json.dumps(tokens))
    return str(folder / "t.json")


def test_the_package_makes_the_same_page(tmp_path: Path) -> None:
    tensors, metadata = full_file()
    path = page_of(tmp_path, tensors, metadata)
    file = tmp_path / "file.safetensors"
    assert _nn.explorer_page(str(file)) == _nn.explorer_page(file.read_bytes()) == path.read_text()
