"""The explorer's page under fingers, on a phone and on a wide screen: taps move and let go, two fingers zoom, names stand on the axes, what
the mask hides is grey, nothing is too small to hit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_explorer import Browser, page_of, settled, small

CELL = "([i, j]) => { const f = geometry.main, r = f.region, b = document.getElementById('map').getBoundingClientRect(); \
  return [b.left + f.left + (j + .5 - r.k0) * f.width / (r.k1 - r.k0), b.top + f.top + (i + .5 - r.q0) * f.height / (r.q1 - r.q0)]; }"


def state(page: Any, name: str) -> Any:
    return settled(page).evaluate(f"state.{name}")


def test_taps_and_two_fingers(tmp_path: Path, browser: Browser) -> None:
    q, k = small(3, 1, 1, 24, 24)
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {}), width=390, touch=True)

    def tap(i: int, j: int) -> list[Any]:
        page.touchscreen.tap(*page.evaluate(CELL, [i, j]))
        return [state(page, name) for name in ("i", "j", "hold")]

    page.locator("#map").scroll_into_view_if_needed()
    for i, j in ((3, 5), (20, 2), (7, 7)):
        assert tap(i, j) == [i, j, True]
    page.wait_for_timeout(600)  # two quick ones would zoom
    assert tap(7, 7) == [7, 7, False]
    page.locator("#panel .tokens span").nth(4).tap()
    assert state(page, "i") == 4 and state(page, "hold")
    page.locator("#panel .tokens span").nth(4).tap()
    assert not state(page, "hold")

    page.locator("#map").scroll_into_view_if_needed()
    (x, y), send = page.evaluate(CELL, [12, 12]), page.context.new_cdp_session(page).send

    def fingers(kind: str, *points: tuple[float, float]) -> None:
        send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x + a, "y": y + b, "id": n} for n, (a, b) in enumerate(points)]})

    fingers("touchStart", (-30, -4))
    fingers("touchStart", (-30, -4), (30, 4))
    for wide in (40, 50, 60):
        fingers("touchMove", (-wide, -8), (wide, 8))
    assert state(page, "region.k1 - state.region.k0") == state(page, "region.q1 - state.region.q0") == 12
    assert abs(state(page, "region.k0") + 6 - 12) <= 1  # what lay between the fingers still does
    for apart in (45, 30, 20):
        fingers("touchMove", (-apart, -4), (apart, 4))
    fingers("touchEnd")
    assert state(page, "region") is None and state(page, "i") == 4  # no tap
    page.locator("#zoomIn").tap()
    before = state(page, "region.k0")
    page.locator("#map").scroll_into_view_if_needed()
    x, y = page.evaluate(CELL, [12, 12])
    fingers("touchStart", (0, 0))
    for by in (10, 30, 50):
        fingers("touchMove", (-by, 0))
    fingers("touchEnd")
    assert state(page, "region.k0") > before


SMALL = """() => [...document.querySelectorAll('button, select, input, .tokens span')].filter(e => e.offsetParent).map(e => [e, (e.closest('label') || e).getBoundingClientRect()])
  .filter(([, r]) => Math.min(r.width, r.height) < (23.9)).filter(([e, r]) => e.tagName !== 'SPAN' || r.height < 23.9).map(([e]) => e.outerHTML)"""
DRAWN = """async () => {
  const all = [], own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { if (this.canvas.id === 'map') all.push(text); return own.call(this, text, ...at); };
  await render();
  CanvasRenderingContext2D.prototype.fillText = own;
  return all;
}"""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)])
def test_a_phone_and_a_desk(width: int, dark: bool, tmp_path: Path, browser: Browser) -> None:
    q, k = small(3, 2, 1, 59, 59)
    tokens = [f"token{n}" for n in range(59)]
    page = browser.open(page_of(tmp_path, {"q": q, "k": k}, {"causal": "true"}, tokens), "i=7&j=3", dark=dark, width=width)
    names = [text for text in page.evaluate(DRAWN) if text.startswith("token") or text.split(" ")[-1].startswith("token")]
    assert len(names) == 2 * 59 if width > 1000 else len(names) >= 2 * 12
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
    grey = "rgb({},{},{})".format(*page.evaluate("colour(-0, 1)"))
    assert saved.count(f'fill="{grey}"') == 59 * 58 / 2 and "Grey: keys that the mask hides" in saved
