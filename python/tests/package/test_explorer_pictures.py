"""The explorer's page as Chromium draws it: colours on a screenshot are those of the weights, wherever the page shows them, light and
dark, wide and narrow, on paper, and under fingers.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from qkv import _nn
from support_explorer import Browser, full_file, page_of, settled, small


def screenshot(page: Any) -> np.ndarray:
    """The whole page as a person sees it, [height, width, 3]."""
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")).astype(int)


#: The boxes [left, top, width, height] on the sheet of what is drawn from data.
BOXES = """() => {
  const box = e => { const r = e.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.width, r.height]; };
  const map = (id, drawn) => {
    const c = typeof id === "string" ? document.getElementById(id) : id, [x, y, width] = box(c), s = width / parseFloat(c.style.width);
    return [x + s * drawn.left, y + s * drawn.top, s * drawn.width, s * drawn.height];
  };
  const first = e => { const [r] = e.getClientRects(); return [r.left + scrollX, r.top + scrollY, r.width, r.height]; };
  return {main: map("map", geometry.main), beside: geometry.beside && map("map2", geometry.beside.main), difference: geometry.difference && map("map3", geometry.difference.main),
    thumbs: [...document.querySelectorAll(".thumb canvas")].map(box), scale: box(document.getElementById("scale")), tokens: [...document.querySelectorAll("#panel .tokens")].map(t => [...t.children].map(first)),
    patches: [...document.querySelectorAll("#panel .patches")].map(box),
    lines: [...document.querySelectorAll("#panel line")].map(e => [...first(e), Number(e.getAttribute("stroke-opacity"))]),
    sections: [...document.querySelectorAll("header, section")].map(box), wide: document.documentElement.scrollWidth <= innerWidth, accent: css("--accent")};
}"""


class Sheet:
    """A screenshot, and where on it what is drawn."""

    def __init__(self, page: Any) -> None:
        self.shot, self.at = screenshot(page), page.evaluate(BOXES)
        table, self.dark, self.zero = page.evaluate("[isDark() ? [...maps.dark] : [...maps.light], isDark(), colour(0, 1)]")
        self.table = np.array(table).reshape(-1, 3)

    def pixels(self, box: list[float], rows: int, columns: int, down: float = 0.5) -> np.ndarray:
        """In the middle of each cell of a box, [rows, columns, 3]; down: above or below its number."""
        x, y = (
            (box[0] + (np.arange(columns) + 0.5) * box[2] / columns).astype(int),
            box[1] + (np.arange(rows) + down) * box[3] / rows,
        )
        return self.shot[y.astype(int)[:, None], x]

    def grounds(self, strip: int) -> np.ndarray:
        """Behind each token of a strip, above its letters [n, 3]."""
        return np.array([self.shot[int(y) + 1, int(x + w / 2)] for x, y, w, _ in self.at["tokens"][strip]])

    def expect(self, got: np.ndarray, values: np.ndarray, top: float, what: str) -> None:
        """Colours of weights on the scale from 0 to top, by square roots. A weight may lie on the edge of two of the map's colours."""
        assert what.startswith("tokens") or (got[values == 0] == self.zero).all(), f"{what}: exactly 0"
        got, values = got[values != 0], values[values != 0]
        colours = np.rint(np.sqrt(np.clip(values / top, 0, 1)) * (len(self.table) - 1)).astype(int)
        near = [abs(self.table[np.clip(colours + by, 0, len(self.table) - 1)] - got).max(-1) for by in (-1, 0, 1)]
        assert (np.min(near, axis=0) == 0).all() and (near[1] == 0).mean() > 0.9, f"{what}: {got[np.min(near, axis=0) > 0][:3]}"

    def expect_difference(self, got: np.ndarray, values: np.ndarray, top: float, what: str) -> None:
        """From blue over the ground to orange; a level of a channel may be rounded either way."""
        ground, below, above = (
            ([28, 28, 34], [90, 170, 255], [255, 150, 60]) if self.dark else ([250, 250, 252], [0, 90, 181], [200, 80, 0])
        )
        share = np.sqrt(np.minimum(abs(values) / top, 1))[..., None]
        want = np.array(ground) + share * (np.where(values[..., None] < 0, below, above) - np.array(ground))
        assert abs(got - want).max() <= 1, f"{what}: {abs(got - want).max()}"


def decoded(tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    return np.float32(tensors[name] / 254.0) ** 2


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (760, True), (400, False)])
def test_a_screenshot_has_the_colours_of_the_data(width: int, dark: bool, tmp_path: Path, browser: Browser) -> None:
    """Maps of two views and their difference, thumbnails, tokens, patches, lines: each cell where it belongs, covered by nothing."""
    tensors, metadata = full_file()
    path = page_of(tmp_path, tensors, metadata)
    q, k, lse = (tensors["0/0/" + name][0].astype(np.float64) for name in ("q", "k", "lse"))
    mine, other = np.exp(0.5 * q @ k.T - lse[:, None]), decoded(tensors, "1/0/weights")[1]
    top = max(mine.max(), other.max())

    def sheet(link: str) -> Sheet:
        return Sheet(browser.open(path, link, dark=dark, width=width))

    both = sheet("head=1&i=12&j=11&beside=1&diff=1")
    for name, weights in (("main", mine), ("beside", other)):
        got, weights = (
            np.delete(np.delete(x, [11, 12, 13], 0), [10, 11, 12], 1) for x in (both.pixels(both.at[name], 24, 24), weights)
        )
        both.expect(got, weights, top, name)  # row 12 and column 11 have outlines, wider than a narrow map's cells
    both.expect_difference(both.pixels(both.at["difference"], *mine.shape), other - mine, abs(other - mine).max(), "difference")
    for n, box in enumerate(both.at["thumbs"]):
        if width > 820 or n < 4:  # below, the heads scroll
            cells = tensors[f"0/{n // 4}/map"][n % 4]
            got = both.pixels([*box[:3], box[3] * 56 / 62], *cells.shape)
            both.expect(got[1:-1, 1:-1], cells[1:-1, 1:-1], min(1, cells.max()), f"thumbnail {n}")  # its corners are round
    x, y = (int(n) for n in both.at["scale"][:2])
    both.expect(both.shot[y + 4, x + 8 : x + 228], np.maximum(1e-30, np.square(np.arange(220) / 219)), 1, "scale")
    lit = [mine[12], other[12]]
    for which, row in enumerate(lit):
        got = both.grounds(which)
        apart = np.arange(len(row)) != 11  # key 11 has an outline, and so has query 12
        apart[12] = False
        both.expect(got[apart], row[apart], max(x.max() for x in lit), f"tokens {which}")
    got = both.grounds(2)
    both.expect_difference(got[apart], (lit[1] - lit[0])[apart], abs(lit[1] - lit[0]).max(), "tokens of the difference")
    assert both.at["wide"]
    for n, (x, y, w, h) in enumerate(both.at["sections"]):
        for u, v, s, t in both.at["sections"][:n]:
            assert x >= u + s or u >= x + w or y >= v + t or v >= y + h, f"section {n} lies on another one"

    image = sheet("view=2&layer=0&head=0&i=7&tab=picture")
    row = decoded(tensors, "2/0/weights")[0][7]
    image.expect(image.pixels(image.at["patches"][1], 3, 4), row[2:].reshape(3, 4), row.max(), "patches")
    pair = sheet("view=2&i=7&tab=picture&beside=2&diff=1&head=1")  # a view beside itself: no difference, one scale
    row = decoded(tensors, "2/0/weights")[1][7]
    for n in (1, 3):
        pair.expect(pair.pixels(pair.at["patches"][n], 3, 4), row[2:].reshape(3, 4), row.max(), f"patches {n}")
    pair.expect_difference(pair.pixels(pair.at["patches"][5], 3, 4), np.zeros((3, 4)), 1, "patches of the difference")

    lines = sheet("head=1&i=12&tab=lines")
    x, y, w, h, _ = max(lines.at["lines"], key=lambda line: line[4])
    middle = lines.shot[int(y + h / 2), int(x + w / 2)]
    accent = np.array([int(lines.at["accent"][n : n + 2], 16) for n in (1, 3, 5)])
    assert abs(middle - accent).max() <= 2, (middle, accent)


def test_colours_are_those_of_the_library(tmp_path: Path, browser: Browser) -> None:
    q, k = small(6, 1, 1, 20, 20)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {}), "range=unit")
    sheet = Sheet(page)
    assert np.array_equal(sheet.table, np.array(_nn.colour_map()))
    above = sheet.pixels(sheet.at["main"], 20, 20, 0.15)
    assert (above != sheet.pixels(sheet.at["main"], 20, 20)).any() and "numbers in percent" in page.locator("#resolution").inner_text()
    sheet.expect(above, qkv.attention_weights(q[None], k[None])[0, 0], 1, "range of 100 %")


def test_a_narrow_window_and_a_sheet_of_paper_lose_nothing(tmp_path: Path, browser: Browser) -> None:
    def named(file: dict[str, Any]) -> None:
        file["views"][0]["name"] = "a text whose first words make a long name " * 2

    tensors, metadata = full_file(named)
    page = browser.open(page_of(tmp_path, tensors, metadata), "head=1&i=12&j=11&beside=1&diff=1", width=400)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.locator("#overview").evaluate("e => e.style.maxHeight = '150px'")  # as with many layers
    page.locator("#before").click()
    page.locator("#before").click()  # to the last head
    settled(page).wait_for_timeout(50)
    inside = """() => { const [a, b] = ["#overview", ".thumb[aria-current]"].map(x => document.querySelector(x).getBoundingClientRect()); return a.top <= b.top && b.bottom <= a.bottom; }"""
    assert page.evaluate("state.layer") == 1 and page.evaluate(inside)
    page.emulate_media(media="print")
    assert not page.locator("#overview").is_visible() and page.locator("#map").is_visible()


CELL = "([i, j]) => { const f = geometry.main, r = f.region, b = document.getElementById('map').getBoundingClientRect(); \
  return [b.left + f.left + (j + .5 - r.k0) * f.width / (r.k1 - r.k0), b.top + f.top + (i + .5 - r.q0) * f.height / (r.q1 - r.q0)]; }"


def test_taps_and_two_fingers(tmp_path: Path, browser: Browser) -> None:
    q, k = small(3, 1, 1, 24, 24)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {}), width=390, touch=True)

    def tap(i: int, j: int) -> list[Any]:
        page.touchscreen.tap(*page.evaluate(CELL, [i, j]))
        return settled(page).evaluate("[state.i, state.j, state.hold]")

    page.locator("#map").scroll_into_view_if_needed()
    for i, j in ((3, 5), (20, 2), (7, 7)):
        assert tap(i, j) == [i, j, True]
    page.wait_for_timeout(600)  # two quick ones would zoom
    assert tap(7, 7) == [7, 7, False]
    page.locator("#panel .tokens span").nth(4).tap()
    assert settled(page).evaluate("state.i") == 4 and settled(page).evaluate("state.hold")
    page.locator("#panel .tokens span").nth(4).tap()
    assert not settled(page).evaluate("state.hold")

    page.locator("#map").scroll_into_view_if_needed()
    (x, y), send = page.evaluate(CELL, [12, 12]), page.context.new_cdp_session(page).send

    def fingers(kind: str, *points: tuple[float, float]) -> None:
        send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x + a, "y": y + b, "id": n} for n, (a, b) in enumerate(points)]})

    fingers("touchStart", (-30, -4))
    fingers("touchStart", (-30, -4), (30, 4))
    for wide in (40, 50, 60):
        fingers("touchMove", (-wide, -8), (wide, 8))
    assert settled(page).evaluate("state.region.k1 - state.region.k0") == settled(page).evaluate("state.region.q1 - state.region.q0") == 12
    assert abs(settled(page).evaluate("state.region.k0") + 6 - 12) <= 1  # what lay between the fingers still does
    for apart in (45, 30, 20):
        fingers("touchMove", (-apart, -4), (apart, 4))
    fingers("touchEnd")
    assert settled(page).evaluate("state.region") is None and settled(page).evaluate("state.i") == 4  # no tap


SMALL = """() => [...document.querySelectorAll('button, select, input, .tokens span')].filter(e => e.offsetParent).map(e => [e, (e.closest('label') || e).getBoundingClientRect()])
  .filter(([, r]) => Math.min(r.width, r.height) < (23.9)).filter(([e, r]) => e.tagName !== 'SPAN' || r.height < 23.9).map(([e]) => e.outerHTML)"""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)])
def test_a_phone_and_a_desk(width: int, dark: bool, tmp_path: Path, browser: Browser) -> None:
    q, k = small(3, 2, 1, 59, 59)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"}, [f"token{n}" for n in range(59)]), "i=7&j=3", dark=dark, width=width)
    top = lambda what: page.locator(what).bounding_box()["y"]  # noqa: E731
    order = [top(what) for what in ("#map", "#pair", "#panel", "#tools", "#overview")]
    assert order == sorted(order) or width > 820
    for tab in ("text", "lines", "why", "does"):
        page.locator("#tab-" + tab).click()
        assert settled(page).evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
        assert page.evaluate(SMALL) == [], tab
    box = page.locator("#map").bounding_box()
    assert box["width"] > (330 if width < 800 else 600)  # the map fills its card
    assert page.locator("#legend").inner_text() == "Grey: keys that the mask hides."
    with page.expect_download() as waiting:
        page.locator("#saveSvg").click()
    saved = Path(waiting.value.path()).read_text()
    hidden = page.evaluate("colour(-0, 1)")
    assert page.evaluate("[...document.querySelector('.thumb canvas').getContext('2d').getImageData(50, 3, 1, 1).data]")[:3] == hidden
    grey = "rgb({},{},{})".format(*hidden)
    assert saved.count(f'fill="{grey}"') == 59 * 58 / 2 and "Grey: keys that the mask hides" in saved
