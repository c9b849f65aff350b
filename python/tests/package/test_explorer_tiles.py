"""The explorer's page in Chromium: the weights that it computes from q, k and lse equal the library's, whatever the form and the sizes. Not:
controls (test_explorer.py), pictures (test_explorer_pictures.py).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from support import numbers
from support_explorer import Browser, page_of, settled, small, tile

TILE = 256

#: name: (heads, kv heads, Tq, Tk, metadata, options of qkv.attention_weights)
FORMS: dict[str, tuple[int, int, int, int, dict[str, str], dict[str, Any]]] = {
    "plain": (2, 2, 300, 700, {}, {}),
    "grouped causal": (4, 2, 600, 600, {"causal": "true"}, {"causal": True}),
    "cached": (2, 1, 40, 700, {"causal": "true", "scale": "0.3"}, {"causal": True, "scale": 0.3}),
    "soft cap": (2, 2, 300, 300, {"softcap": "5"}, {"softcap": 5.0}),
    "window": (2, 2, 600, 600, {"causal": "true", "window": "37,0"}, {"mask": lambda: qkv.Mask.causal() & qkv.Mask.window(37, 0)}),
    "two-sided window": (2, 2, 600, 600, {"window": "20,-1"}, {"mask": lambda: qkv.Mask.window(20, -1)}),
    "sinks": (2, 1, 300, 300, {"causal": "true"}, {"causal": True}),
    "alibi": (2, 2, 300, 520, {"causal": "true"}, {"causal": True}),
    "relative": (2, 2, 300, 300, {}, {}),
}


def form(name: str) -> tuple[dict[str, np.ndarray], dict[str, str], np.ndarray]:
    """Tensors and metadata of the small form, and the library's weights [H, Tq, Tk]."""
    heads, kv_heads, q_len, kv_len, metadata, options = FORMS[name]
    q, k = small(len(name), heads, kv_heads, q_len, kv_len)
    tensors, options = {"q": q, "k": k}, {n: x() if callable(x) else x for n, x in options.items()}
    if q_len != kv_len and "causal" in options:
        options["mask"] = qkv.Mask.causal("bottom_right")
        del options["causal"]
    if name == "sinks":
        tensors["sinks"] = options["sinks"] = numbers(3, heads)
    if name == "alibi":
        tensors["alibi"] = np.array([0.5, 0.02], np.float32)
        options["position_bias"] = qkv.PositionBias.alibi(tensors["alibi"], align="bottom_right")
    if name == "relative":
        tensors["relative"] = numbers(4, heads, 2 * 9 + 1)
        options["position_bias"] = qkv.PositionBias.relative(np.ascontiguousarray(tensors["relative"].T))
    return tensors, metadata, qkv.attention_weights(q[None], k[None], **options)[0]


@pytest.mark.parametrize("name", FORMS)
def test_tiles_equal_the_library(name: str, tmp_path: Path, browser: Browser) -> None:
    tensors, metadata, expected = form(name)
    page = browser.open(page_of(tmp_path, tensors, metadata))
    rng, worst, slowest = np.random.default_rng(1), 0.0, 0.0
    for _ in range(6):  # 54 with the nine forms
        head, i, j = (
            int(rng.integers(n)) for n in (len(expected), -(-expected.shape[1] // TILE), -(-expected.shape[2] // TILE))
        )
        got, took = tile(page, 0, head, i, j)
        wanted = expected[head, i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
        assert got.shape == wanted.shape and np.all(got[wanted == 0] < 1e-30)  # hidden, or flushed to zero
        worst = max(worst, float(np.max(np.abs(got - wanted) / np.maximum(wanted, 1e-30), initial=0, where=wanted > 1e-30)))
        slowest = max(slowest, took)
    print(f"{name}: largest relative error {worst:.1e}, slowest tile {slowest:.0f} ms")
    assert worst < 1e-3


def test_chosen_heads_with_every_term_of_the_formula(tmp_path: Path, browser: Browser) -> None:
    """Heads 4 and 1 of 6 on key heads 2 and 0 of 3: each tensor is read at the offset of its head."""
    heads, kv_heads, length, width, exact, exact_kv = 6, 3, 70, 12, [4, 1], [2, 0]
    q, k = small(11, heads, kv_heads, length, length, width)
    alibi, relative, sinks, bias = (
        abs(numbers(1, heads)),
        numbers(2, heads, 11),
        numbers(3, heads),
        numbers(4, 2, length, length),
    )
    at = np.arange(length)
    documents = at // 29
    distance = at[None] - at[:, None]
    sees = ((distance <= 0) | (at < 5)[None]) & (distance >= -40) & (at >= 2)[None] & (documents[:, None] == documents[None])
    wanted, lse = [], []
    for n, head in enumerate(exact):
        score = 3 * np.tanh(0.4 * q[head].astype(np.float64) @ k[head // 2].T / 3)
        score += -alibi[head] * abs(distance) + relative[head, 5 + np.clip(distance, -5, 5)] + bias[n]
        score[~sees] = -np.inf
        lse.append(np.log(np.exp(score).sum(-1) + np.exp(np.float64(sinks[head]))))
        wanted.append(np.exp(score - lse[-1][:, None]))
    tensors = {
        "0/0/q": q[exact],
        "0/0/k": k[exact_kv],
        "0/0/lse": np.array(lse, np.float32),
        "0/0/alibi": alibi,
        "0/0/relative": relative,
        "0/0/sinks": sinks,
        "0/0/bias": bias,
    }
    tensors["0/0/intervals"] = np.stack([sees.argmax(1), length - sees[:, ::-1].argmax(1)], 1).astype(np.float32)
    formula = {"scale": 0.4, "softcap": 3}
    layer = {
        "heads": heads,
        "kv_heads": kv_heads,
        "q_len": length,
        "kv_len": length,
        "exact": exact,
        "exact_kv": exact_kv,
        "formula": formula,
    }
    view = {"name": "v", "kind": "self", "queries": 0, "keys": 0, "layers": [layer]}
    file = {"texts": [{"tokens": None, "length": length}], "views": [view]}
    page = browser.open(page_of(tmp_path, tensors, {"format": "qkv.explorer.1", "explorer": json.dumps(file)}), "head=4")
    for n, head in enumerate(exact):
        assert np.allclose(tile(page, 0, head, 0, 0)[0], wanted[n], rtol=1e-4, atol=1e-30)
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert (
        "into the sink" in settled(page).locator("#pair").inner_text()
        and "sums to 1.0000" in settled(page).locator("#pair").inner_text()
    )
    page.locator(".thumb[data-head='0']").click()
    assert settled(page).locator("#facts").inner_text() == "the file holds nothing of this head"


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3000), (2000, 1), (9, 4), (4, 9)])
def test_odd_sizes_empty_rows_and_nan(sizes: tuple[int, int], tmp_path: Path, browser: Browser) -> None:
    q, k = small(2, 2, 1, *sizes)
    q[1, 0, 0] = np.nan
    page = browser.open(
        page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"})
    )  # with 9 queries on 4 keys the first 5 see none
    expected = qkv.attention_weights(q[None], k[None], mask=qkv.Mask.causal("bottom_right"))[0]
    for head in (0, 1):
        assert np.allclose(tile(page, 0, head, 0, 0)[0], expected[head, :TILE, :TILE], rtol=1e-3, atol=1e-30, equal_nan=True)
        page.locator(f".thumb[data-head='{head}']").click()
        page.locator("#map").focus()
        for key in ("ArrowDown", "ArrowRight", "+", "-", "p", "p"):
            page.keyboard.press(key)
        for tab in ("lines", "why", "text"):
            page.locator("#tab-" + tab).click()
    assert settled(page).locator("#pair").inner_text().startswith("query ")


def test_a_long_text_is_on_the_screen_before_its_heads_are_decoded(tmp_path: Path, browser: Browser) -> None:
    """The map by blocks first; q and k of its heads, 12 MB, behind it."""
    q, k = small(1, 2, 1, 16384, 16384, 64)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"}))
    marks = page.evaluate("performance.getEntriesByType('mark').map(e => [e.name, e.startTime])")
    first = {name: time for name, time in reversed(marks)}
    print(f"map {first['map']:.0f} ms, q and k {first['decode 0/0/q']:.0f} ms")
    assert first["map"] < min(first["decode 0/0/q"], first["decode 0/0/k"])
