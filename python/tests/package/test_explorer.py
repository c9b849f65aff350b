"""The explorer's page in Chromium: every control does what it says, a link leads back, nothing is asked of a network. Its pure functions are
tested without a browser by tests/view/explorer_test.js.
"""

import csv
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import qkv
from support_explorer import HOSTILE, Browser, full_file, page_of, settled, small


def test_a_map_sharpens_down_to_single_weights(tmp_path: Path, browser: Browser) -> None:
    q, k = small(5, 2, 1, 2000, 2000)
    expected = qkv.attention_weights(q[None], k[None], causal=True)[0]
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"}))
    page.wait_for_selector("#resolution:text('cells of 3.9')", timeout=30_000)  # refined from blocks while nobody waits
    page.locator("#map").click(position={"x": 200, "y": 400})
    page.locator("#zoomHere").click()
    assert settled(page).locator("#resolution").inner_text() == "every weight, exact."
    cells = page.evaluate("() => { const n = numbersOfMap(geometry); return [n.region, n.cells]; }")
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


def test_every_control_does_what_it_says(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata), "layer=0&head=0&i=-1")
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
    page.locator(".thumb").first.click()
    use("after")
    assert (state("layer"), state("head")) == (1, 3)
    page.locator("#kinds button", has_text="induction").click()
    assert page.locator(".thumb").all_inner_texts() == ["0.3\n1.25", "1.3\n1.25"]
    page.locator("#kinds button", has_text="induction").click()
    use("alike")
    use("thisPair")
    use("sort", "layer")
    page.locator(".thumb[data-layer='0'][data-head='1']").click()
    for control, value in (
        ("paint", "writes"),
        ("paint", "weight"),
        ("range", "unit"),
        ("spacing", "linear"),
        ("theme", "dark"),
        ("statistic", "mass"),
        ("theme", "light"),
    ):
        use(control, value)
        assert state(control) == value
    most = tensors["0/0/mass"][1].max()
    assert page.locator("#rows").get_attribute("aria-label") == f"mass from the first to the last position, at most {100 * most:.3g} %"
    use("zoomIn")
    assert state("region.q1 - state.region.q0") == 12
    use("zoomOut")
    assert state("region") is None
    use("zoomHere")
    use("zoomIn")
    use("zoomAll")
    assert state("region") is None

    page.locator("#panel .tokens span").nth(7).click()
    page.locator("#panel .tokens span").nth(18).hover()
    assert state("i") == 7  # a click holds
    page.keyboard.press("Escape")
    page.locator("#panel .tokens span").nth(19).hover()
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
    use("tab-does")
    use("tab-why")
    expected = tensors["0/0/q"][0, state("i")] * tensors["0/0/k"][0, state("j")] * 0.5
    assert page.locator(".bars rect").count() == len(expected)
    titles = page.locator(".bars title").all_text_contents()
    assert np.allclose([float(t.split(": ")[1]) for t in titles], expected, rtol=1e-3)
    page.locator("#tab-why").press("ArrowRight")
    assert state("tab") == "does"
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
    use("tab-text")
    assert page.locator("#panel .tokens").count() == 3  # the difference too
    page.locator("#panel .tokens").nth(1).locator("span").nth(19).click()
    assert state("i") == 19 and page.locator("#panel .tokens .from").count() == 3
    page.locator("#diff").uncheck()
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
    controls = page.evaluate("[...document.querySelectorAll('button[id], select, input')].filter(e => !e.closest('#live')).map(e => e.id)")
    assert set(controls) <= used, set(controls) - used
    unnamed = page.evaluate("""[...document.querySelectorAll('button, select, input, canvas:not(.thumb canvas)')]
        .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.closest('[hidden]'))).map(e => e.outerHTML)""")
    assert unnamed == []


def test_every_panel_shows_the_second_view_too(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata), "head=1&i=12&j=11&beside=1&diff=1")
    w = (tensors["1/0/weights"][1] / 254.0) ** 2

    def parts(tab: str) -> list[str]:
        page.locator("#tab-" + tab).click()
        return settled(page).locator("#panel .halves > div").all_inner_texts()

    mine, other, delta = parts("lines")
    assert mine.startswith("model: one") and other.startswith("two\n") and delta.startswith("difference")
    strokes = [
        set(page.locator("#panel .halves > div").nth(n).locator("line").evaluate_all("all => all.map(e => e.style.stroke)"))
        for n in range(3)
    ]
    assert strokes[:2] == [{""}, {""}] and strokes[2] == {"rgb(0, 90, 181)", "rgb(200, 80, 0)"}
    why = parts("why")
    assert len(why) == 2 and "scale q\u00b7k" in why[0] and "does not hold" in why[1]  # the second view has no q and k
    parts("text")
    saved = {}
    for kind in ("Svg", "Csv", "Json"):
        with page.expect_download() as waiting:
            page.locator("#save" + kind).click()
        saved[kind] = Path(waiting.value.path()).read_text()
    told, rows = json.loads(saved["Json"]), list(csv.reader(io.StringIO(saved["Csv"])))
    assert [map["name"] for map in told["beside"]] == ["two", "difference"] and saved["Svg"].count("<svg") == 4
    assert np.allclose(told["beside"][0]["cells"], w.ravel()) and np.allclose(
        told["beside"][1]["cells"], w.ravel() - told["cells"]
    )
    assert len(rows) == 3 * 26 and rows[52] == ["difference"]
    page.locator("#view").select_option("2")
    page.locator("#beside").select_option("3")
    settled(page).locator("#tab-picture").click()
    assert (
        settled(page).locator("#panel .patches").count() == 3
    )  # queries and keys of the image; queries of the cross-attention
    page.locator("#beside").select_option("0")  # 24 positions beside 14
    for tab in ("text", "lines", "why", "picture"):
        page.locator("#tab-" + tab).click()
    page.locator("#tab-lines").click()
    settled(page).locator("#panel .halves > div").nth(1).locator("text[data-n='20']").first.click()
    assert settled(page).evaluate("state.i") < 14  # the first view has no such query


#: Until the address is the state's, which is written when nobody has moved for a while.
WRITTEN = """() => new Promise(done => {
  const look = () => location.hash.slice(1) === formatLink(state, file) ? done() : setTimeout(look, 20);
  look();
})"""


def test_a_link_leads_to_the_same_view(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    path = page_of(tmp_path, tensors, metadata)
    page = browser.open(
        path, "layer=1&head=3&i=7&j=2&pins=7,9&region=4,20,0,16&tab=lines&way=from&range=unit&spacing=linear&theme=dark"
    )
    state = settled(page).evaluate("formatLink(state, file)")
    page.locator("#after").click()
    page.locator("#before").click()
    page.evaluate(WRITTEN)
    page = browser.open(path, page.evaluate("location.hash.slice(1)"))
    assert settled(page).evaluate("formatLink(state, file)") == state and settled(page).evaluate("state.region.k1") == 16
    page.evaluate("location.hash = '#layer=0&head=2&tab=why'")  # as a person edits the address
    page.wait_for_selector("#tab-why[aria-selected=true]")
    assert settled(page).evaluate("formatLink(state, file)") == "head=2&tab=why"


def test_a_frame_of_a_notebook_shows_it_too(tmp_path: Path, browser: Browser) -> None:
    frame = html.escape(page_of(tmp_path, *full_file()).read_text())
    (tmp_path / "notebook.html").write_text(
        f'<body data-ready><iframe width=1200 height=900 sandbox="allow-scripts" srcdoc="{frame}"></iframe>'
    )
    inside = browser.open(tmp_path / "notebook.html").frame_locator("iframe")
    inside.locator("#after").click()
    inside.locator("#panel .tokens span").nth(18).hover()
    browser.page.wait_for_timeout(300)  # by then a page of its own has its address
    assert "layer 1, head 0" in inside.locator("#name").inner_text() and "query 18" in inside.locator("#pair").inner_text()
    inside.locator("#copy").click()
    assert "has no link" in inside.locator("#copy:not(:text('copy link'))").inner_text()


def test_what_a_head_writes_and_what_is_cut(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata), "head=3&i=22&j=23&tab=does")
    panel = page.locator("#panel").inner_text()
    assert "loss without it\t+0.2\t1 of 8" in panel and "25 % of the positions" in panel and "loss 2 \u2192 2.5 nats per token, +0.5" in panel
    assert page.locator("img").count() == 0 and HOSTILE[0] in panel  # of the next tokens
    row = 3 * 3 + 1  # head 3, the second of the last three queries
    pushed = [page.locator(".likely").nth(n).locator("tr").all_inner_texts() for n in (0, 1)]
    assert [text.split("\t")[1] for part in pushed for text in part] == ["+2", "+1", "\u22121", "\u22123"]
    assert tensors["0/0/push"].reshape(-1, 4)[row].tolist() == [4 * row % 24 + n for n in range(4)]
    page.locator(".chips button", has_text="1.0 12.5 %").click()
    assert settled(page).evaluate("[state.layer, state.head]") == [1, 0]

    j = int(tensors["0/0/weights"][2, 5].argmax())
    page = browser.open(page_of(tmp_path, tensors, metadata), f"head=2&i=5&j={j}&paint=writes&sort=cut loss")
    assert page.locator(".thumb small").first.inner_text() == "0.2"
    expected = (tensors["0/0/weights"][2] / 254.0) ** 2 * tensors["0/0/norms"][2]
    assert np.allclose(page.evaluate("numbersOfMap(geometry).cells"), expected.ravel(), rtol=1e-5)
    assert page.locator(".value").inner_text() == f"{expected[5, j]:.4g}"
    page.locator("#paint").select_option("weight")
    assert "%" in settled(page).locator(".value").inner_text()


def test_heads_are_found_by_pattern(tmp_path: Path, browser: Browser) -> None:
    tensors, metadata = full_file()
    page = browser.open(page_of(tmp_path, tensors, metadata), "view=1&head=2&i=5&j=9&sort=layer")
    maps = np.concatenate([tensors[f"1/{n}/map"] for n in range(2)]).reshape(8, -1)
    weights = np.concatenate([tensors[f"1/{n}/weights"] for n in range(2)])[:, 5, 9]

    def order() -> list[int]:
        return [4 * int(name[0]) + int(name[2]) for name in settled(page).locator(".thumb span").all_inner_texts()]

    page.locator("#alike").click()
    page.wait_for_selector("#sort option:checked:text('maps like layer 0, head 2')", state="attached")
    alike = maps @ maps[2] / np.linalg.norm(maps, axis=1) / np.linalg.norm(maps[2])
    assert order() == np.argsort(-alike).tolist()
    page.locator("#thisPair").click()
    page.wait_for_selector("#sort option:checked:text('weight of')", state="attached")
    assert [weights[n] for n in order()] == sorted(weights, reverse=True)
