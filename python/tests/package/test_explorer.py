"""The explorer's page in Chromium: what it computes equals the library, every control does what it says, nothing is asked of a
network, hostile tokens stay text. Its pure functions are tested without a browser by tests/view/explorer_test.js.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
import qkv.io
from qkv import _nn
from support import numbers
from support_explorer import HOSTILE, Browser, browsers, full_file, page_of, refused, settled

TILE = 256


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.asked.clear()
    started.said.clear()
    yield started
    started.check()


def small(seed: int, heads: int, kv_heads: int, q_len: int, kv_len: int, width: int = 16) -> tuple[np.ndarray, np.ndarray]:
    return 2 * numbers(seed, heads, q_len, width), 2 * numbers(seed + 1, kv_heads, kv_len, width)


#: name: (heads, kv heads, Tq, Tk, metadata, options of qkv.attention_weights, tensors beside q and k)
FORMS: dict[str, tuple[int, int, int, int, dict[str, str], dict[str, Any], list[str]]] = {
    "plain": (2, 2, 300, 700, {}, {}, []),
    "grouped causal": (4, 2, 600, 600, {"causal": "true"}, {"causal": True}, []),
    "cached": (2, 1, 40, 700, {"causal": "true", "scale": "0.3"}, {"causal": True, "scale": 0.3}, []),
    "soft cap": (2, 2, 300, 300, {"softcap": "5"}, {"softcap": 5.0}, []),
    "window": (
        2,
        2,
        600,
        600,
        {"causal": "true", "window": "37,0"},
        {"mask": lambda: qkv.Mask.causal() & qkv.Mask.window(37, 0)},
        [],
    ),
    "two-sided window": (2, 2, 600, 600, {"window": "20,-1"}, {"mask": lambda: qkv.Mask.window(20, -1)}, []),
    "sinks": (2, 1, 300, 300, {"causal": "true"}, {"causal": True}, ["sinks"]),
    "alibi": (2, 2, 300, 520, {"causal": "true"}, {"causal": True}, ["alibi"]),
    "relative": (2, 2, 300, 300, {}, {}, ["relative"]),
}


def form(name: str) -> tuple[dict[str, np.ndarray], dict[str, str], np.ndarray]:
    """Tensors and metadata of the small form, and the library's weights [H, Tq, Tk]."""
    heads, kv_heads, q_len, kv_len, metadata, options, extra = FORMS[name]
    q, k = small(len(name), heads, kv_heads, q_len, kv_len)
    tensors, options = {"q": q, "k": k}, {n: x() if callable(x) else x for n, x in options.items()}
    if q_len != kv_len and "causal" in options:
        options["mask"] = qkv.Mask.causal("bottom_right")
        del options["causal"]
    if "sinks" in extra:
        tensors["sinks"] = options["sinks"] = numbers(3, heads)
    if "alibi" in extra:
        tensors["alibi"] = np.array([0.5, 0.02], np.float32)
        options["position_bias"] = qkv.PositionBias.alibi(tensors["alibi"], align="bottom_right")
    if "relative" in extra:
        tensors["relative"] = numbers(4, heads, 2 * 9 + 1)
        options["position_bias"] = qkv.PositionBias.relative(np.ascontiguousarray(tensors["relative"].T))
    return tensors, metadata, qkv.attention_weights(q[None], k[None], **options)[0]


def tile(page: Any, layer: int, head: int, i: int, j: int) -> tuple[np.ndarray, float]:
    got = page.evaluate("([l, h, i, j]) => qkv.tile(l, h, i, j)", [layer, head, i, j])
    return np.array(got["data"]).reshape(got["rows"], got["columns"]), got["milliseconds"]


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


def test_chosen_heads_in_two_parts_with_every_term_of_the_formula(tmp_path: Path, browser: Browser) -> None:
    """Heads 4 and 1 of 6 on key heads 2 and 0 of 3: each tensor is read at the place of its head."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    heads, kv_heads, length, width, exact, exact_kv = 6, 3, 70, 12, [4, 1], [2, 0]
    q, k = small(11, heads, kv_heads, length, length, width)
    alibi, relative, sinks, bias = (
        abs(numbers(1, heads)),
        numbers(2, heads, 11),
        numbers(3, heads),
        numbers(4, 2, length, length),
    )
    documents, at = (np.arange(length) // 29).astype(np.int32), np.arange(length)
    distance = at[None] - at[:, None]
    sees = ((distance <= 0) | (at < 5)[None]) & (distance >= -40) & (at >= 2)[None] & (documents[:, None] == documents[None])
    parts: dict[str, np.ndarray] = {}
    wanted, lse = [], []
    for name, whole, which in (("q", q, exact), ("k", k, exact_kv)):
        high = whole[which].astype(bfloat16)
        parts["0/0/" + name], parts[f"0/0/{name}_lo"] = high, (whole[which] - high.astype(np.float32)).astype(bfloat16)
    for n, head in enumerate(exact):
        both = [parts["0/0/" + x].astype(np.float64) + parts[f"0/0/{x}_lo"].astype(np.float64) for x in "qk"]
        score = 3 * np.tanh(0.4 * both[0][n] @ both[1][exact_kv.index(head // 2)].T / 3)
        score += -alibi[head] * abs(distance) + relative[head, 5 + np.clip(distance, -5, 5)] + bias[n]
        score[~sees] = -np.inf
        lse.append(np.log(np.exp(score).sum(-1) + np.exp(np.float64(sinks[head]))))
        wanted.append(np.exp(score - lse[-1][:, None]))
    tensors = parts | {
        "0/0/lse": np.array(lse, np.float32),
        "0/0/alibi": alibi,
        "0/0/relative": relative,
        "0/0/sinks": sinks,
        "0/0/bias": bias,
    }
    tensors |= {"0/0/documents_q": documents, "0/0/documents_k": documents}
    formula = {"scale": 0.4, "softcap": 3, "causal": True, "prefix": 5, "window": [40, None], "keys": [2, length]}
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


def test_a_map_sharpens_down_to_single_weights(tmp_path: Path, browser: Browser) -> None:
    q, k = small(5, 2, 1, 2000, 2000)
    expected = qkv.attention_weights(q[None], k[None], causal=True)[0]
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"}))
    page.wait_for_selector("#resolution:text('cells of 3.9')", timeout=30_000)  # refined from blocks while nobody waits
    page.locator("#map").click(position={"x": 200, "y": 400})
    page.locator("#zoomHere").click()
    assert settled(page).locator("#resolution").inner_text() == "every weight, exact."
    cells = page.evaluate("() => { const n = shownNumbers(); return [n.region, n.cells]; }")
    region, values = cells[0], np.array(cells[1])
    wanted = expected[0, region["q0"] : region["q1"], region["k0"] : region["k1"]]
    assert wanted.shape == (64, 64) and np.allclose(values.reshape(64, 64), wanted, rtol=1e-3, atol=1e-12)
    page.locator("#zoomOut").click()
    assert settled(page).evaluate("state.region.q1 - state.region.q0") == 128
    page.keyboard.press("0")
    assert settled(page).evaluate("state.region") is None
    page.locator("#map").hover(position={"x": 200, "y": 400})
    page.mouse.wheel(0, -200)  # the map is not chosen: the page scrolls
    assert settled(page).evaluate("state.region") is None
    page.locator("#map").focus()
    page.locator("#map").hover(position={"x": 200, "y": 300})
    page.mouse.wheel(0, -200)
    assert settled(page).evaluate("state.region.q1 - state.region.q0") == 1400
    before = settled(page).evaluate("state.region.k0")
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 300, steps=4)
    page.mouse.up()
    assert settled(page).evaluate("state.region.k0") > before
    page.locator("#map").dblclick(position={"x": 300, "y": 200})
    assert settled(page).evaluate("state.region.q1 - state.region.q0") < 700


def colours_of(page: Any) -> np.ndarray:
    """[Tq, Tk, 3]: the colour in the middle of each cell of the map that is shown whole."""
    data, width, at, rows, columns = page.evaluate("""() => {
      const c = document.querySelector("#map"), {left, top, width, height, region: r} = geometry.main, s = devicePixelRatio;
      const pixels = [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data];
      return [pixels, c.width, [left * s, top * s, width * s, height * s], r.q1 - r.q0, r.k1 - r.k0];
    }""")
    pixels = np.array(data).reshape(-1, width, 4)
    y = (at[1] + (np.arange(rows) + 0.5) * at[3] / rows).astype(int)
    x = (at[0] + (np.arange(columns) + 0.5) * at[2] / columns).astype(int)
    return pixels[y[:, None], x, :3].reshape(-1, 3)


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_has_the_colours_of_the_weights(dark: bool, tmp_path: Path, browser: Browser) -> None:
    q, k = small(6, 1, 1, 20, 20)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {}), "range=unit", dark=dark)
    table = np.array(page.evaluate("isDark() ? [...maps.dark] : [...maps.light]")).reshape(-1, 3)
    assert dark or np.array_equal(table, np.array(_nn.colour_map()))
    places = (
        np.rint(np.sqrt(np.minimum(qkv.attention_weights(q[None], k[None])[0, 0], 1)) * (len(table) - 1)).astype(int).ravel()
    )
    shown = colours_of(page)
    near = [table[np.clip(places + by, 0, len(table) - 1)] for by in (-1, 0, 1)]  # a weight may lie on the edge of two colours
    assert np.all(np.any([(shown == one).all(-1) for one in near], axis=0))
    assert np.mean((shown == near[1]).all(-1)) > 0.9


def test_every_control_does_what_it_says(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata))
    used: set[str] = set()

    def state(name: str) -> Any:
        return settled(page).evaluate(f"state.{name}")

    def use(control: str, value: Any = None) -> None:
        used.add(control)
        locator = page.locator("#" + control)
        if value is None:
            locator.click()
        else:
            locator.select_option(value)
        settled(page)

    use("after")
    assert state("head") == 1 and "layer 0, head 1" in settled(page).locator("#name").inner_text()
    use("before")
    use("before")
    assert (state("layer"), state("head")) == (1, 3)
    page.locator(".thumb[data-layer='0'][data-head='1']").click()
    assert (state("layer"), state("head")) == (0, 1)
    page.locator(".thumb[data-layer='0'][data-head='1']").press("ArrowRight")
    assert state("head") == 2
    page.keyboard.press("ArrowDown")
    assert (state("layer"), state("head")) == (1, 2)
    use("sort", "entropy")
    labels = page.locator(".thumb span").all_inner_texts()
    assert labels[:2] == ["0.3", "1.3"]  # the smallest entropy first
    page.locator("#kinds button", has_text="induction").click()
    assert page.locator(".thumb").all_inner_texts() == ["0.3\n1.25", "1.3\n1.25"]
    page.locator("#kinds button", has_text="induction").click()
    use("sort", "layer")
    page.locator(".thumb[data-layer='0'][data-head='1']").click()
    for control, value in (
        ("range", "unit"),
        ("place", "linear"),
        ("theme", "dark"),
        ("statistic", "mass"),
        ("theme", "light"),
    ):
        use(control, value)
        assert state(control) == value
    use("zoomIn")
    assert state("region.q1 - state.region.q0") == 12
    use("zoomOut")
    assert state("region") is None
    use("zoomHere")
    use("zoomIn")
    use("zoomAll")
    assert state("region") is None

    page.locator("#panel .tokens span").nth(18).hover()
    assert state("i") == 18 and "query 18" in settled(page).locator("#pair").inner_text()
    use("pin")
    page.locator("#panel .tokens span").nth(5).hover()
    assert state("i") == 18  # pointing changes nothing while a token is pinned
    page.locator("#panel .tokens span").nth(21).click()
    use("pin")
    assert state("pins") == [18, 21] and page.locator(".pinned-row").count() == 2
    assert "on the answer; this query is part of the answer" in settled(page).locator("#pair").inner_text()
    page.locator(".pinned-row button").first.click()
    assert state("pins") == [21]
    use("unpin")
    assert state("pins") == []
    page.locator("#panel .tokens span").nth(3).click()
    page.locator("#panel").focus()
    page.keyboard.press("ArrowRight")
    assert state("i") == 4
    page.keyboard.press("/")
    page.keyboard.type("WORD3")
    page.keyboard.press("Enter")
    assert state("i") == HOSTILE.index("x" * 2000) + 4 and settled(page).locator("#count").inner_text() == "1 found"
    used.add("search")
    use("found")
    use("from")
    page.locator("#panel .tokens span").nth(2).click()
    assert state("way") == "from" and state("j") == 2 and "on key 2" in page.locator("#panel").inner_text()
    use("to")
    use("tab-lines")
    assert page.locator(".lines line").count() > 0
    use("tab-why")
    expected = tensors["0/0/q"][0, state("i")] * tensors["0/0/k"][0, state("j")] * 0.5
    assert page.locator(".bars rect").count() == len(expected)
    titles = page.locator(".bars title").all_text_contents()
    assert np.allclose([float(t.split(": ")[1]) for t in titles], expected, rtol=1e-3)
    page.locator("#tab-why").press("ArrowRight")
    assert state("tab") == "picture"
    use("tab-relevance")
    page.wait_for_selector("#panel figure:nth-child(3) canvas")
    assert page.locator("#panel canvas").count() == 3 and "does not say what caused" in page.locator("#panel").inner_text()
    use("tab-picture")
    assert "Neither" in page.locator("#panel").inner_text()
    use("view", "2")
    page.locator(".patches").first.click(position={"x": 30, "y": 30})
    assert state("i") == 2 + 4 + 1 and page.locator(".patches").count() == 2
    assert page.locator("#panel .tokens span").count() == 4  # two tokens before the patches, on either side
    use("view", "3")
    use("tab-text")
    assert page.locator("#panel .tokens").count() == 2
    use("view", "0")
    use("beside", "1")
    used.add("diff")
    page.locator("#diff").check()
    page.wait_for_selector("#diffMap:not([hidden])")
    assert "at most" in settled(page).locator("#diffName").inner_text()
    mine, other = page.evaluate("shownNumbers().cells"), (tensors["1/0/weights"][state("head")] / 254.0) ** 2
    assert f"at most {100 * np.abs(other.ravel() - mine).max():.3g} %" in settled(page).locator(
        "#diffName"
    ).inner_text().replace("\u00a0", " ")
    use("tab-text")
    assert page.locator("#panel .tokens").count() == 2
    page.locator("#panel .tokens").nth(1).locator("span").nth(19).click()
    assert state("i") == 19 and page.locator("#panel .tokens .from").count() == 2
    use("beside", "-1")
    assert page.locator("#panel .tokens").count() == 1

    saved = {}
    for kind in ("Png", "Svg", "Csv", "Json"):
        used.add("save" + kind)
        with page.expect_download() as waiting:
            page.locator("#save" + kind).click()
        saved[kind] = Path(waiting.value.path()).read_bytes()
    assert saved["Png"].startswith(b"\x89PNG") and saved["Svg"].startswith(b"<svg") and b"<image" not in saved["Svg"]
    rows, all_of_it = list(csv.reader(io.StringIO(saved["Csv"].decode()))), json.loads(saved["Json"])
    assert len(rows) == 25 and len(rows[1]) == 26 and np.allclose(np.array(rows[1][2:], float), all_of_it["cells"][:24])
    use("copy")
    page.keyboard.press("p")
    controls = page.evaluate("[...document.querySelectorAll('button[id], select, input')].map(e => e.id)")
    assert set(controls) <= used, set(controls) - used
    unnamed = page.evaluate("""[...document.querySelectorAll('button, select, input, canvas:not(.thumb canvas)')]
        .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.closest('[hidden]'))).map(e => e.outerHTML)""")
    assert unnamed == []


def test_a_link_leads_to_the_same_view(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    path = page_of(tmp_path, tensors, metadata)
    page = browser.open(
        path, "layer=1&head=3&i=7&j=2&pins=7,9&region=4,20,0,16&tab=lines&way=from&range=unit&place=linear&theme=dark"
    )
    state = settled(page).evaluate("formatLink(state)")
    page.locator("#after").click()
    page.locator("#before").click()
    page.wait_for_timeout(300)
    page = browser.open(path, page.evaluate("location.hash.slice(1)"))
    assert settled(page).evaluate("formatLink(state)") == state and settled(page).evaluate("state.region.k1") == 16
    page.evaluate("location.hash = '#layer=0&head=2&tab=why'")  # as a person edits the address
    page.wait_for_selector("#tab-why[aria-selected=true]")
    assert settled(page).evaluate("formatLink(state)") == "head=2&tab=why"
    page = browser.open(
        path, "layer=99&head=-2&i=1e9&j=%E0%A4&region=9,3,0,0&tab=__proto__&kinds=x&view=<b>&sort=%00&theme=javascript:1"
    )
    assert settled(page).evaluate("formatLink(state)") == ""


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


def test_a_frame_of_a_notebook_shows_it_too(tmp_path: Path, browser: Browser) -> None:
    frame = html.escape(page_of(tmp_path, *full_file()).read_text())
    (tmp_path / "notebook.html").write_text(
        f'<body data-ready><iframe width=1200 height=900 sandbox="allow-scripts" srcdoc="{frame}"></iframe>'
    )
    inside = browser.open(tmp_path / "notebook.html").frame_locator("iframe")
    inside.locator("#after").click()
    inside.locator("#panel .tokens span").nth(18).hover()
    browser.page.wait_for_timeout(300)  # by then a page of its own has its address
    assert "layer 0, head 1" in inside.locator("#name").inner_text() and "query 18" in inside.locator("#pair").inner_text()


def test_a_narrow_window_and_a_sheet_of_paper_lose_nothing(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata), "head=1&i=12&j=11&beside=1&diff=1", width=400)
    for tab in ("text", "lines", "why", "relevance"):
        page.locator("#tab-" + tab).click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
    page.emulate_media(media="print")
    assert not page.locator("#overview").is_visible() and page.locator("#map").is_visible()


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, browser: Browser) -> None:
    def unknown(file: dict[str, Any]) -> None:
        file["views"][0]["layers"][0]["formula"]["temperature"] = 2

    def long(file: dict[str, Any]) -> None:
        file["views"][0]["layers"][0]["q_len"] = 25

    for change, said in (
        (unknown, 'formula holds "temperature", which this page cannot compute'),
        (long, "must begin with sizes"),
    ):
        page = browser.open(page_of(tmp_path, *full_file(change)), ready=False)
        assert said in page.locator("#wrong").inner_text()
    page = browser.open(page_of(tmp_path, *full_file()))
    assert "drops weights below 1 %" in page.evaluate("qkv.tile(1, 0, 0, 0).catch(error => error.message)")
    assert "not in the file" in page.evaluate("qkv.tile(0, 0, 0, 0).catch(error => error.message)")
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
    assert "one for each of 5" in refused(tmp_path, {"q": q, "k": k}, {}, "--tokens", write(tmp_path, ["a"]))
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
