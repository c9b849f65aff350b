"""Drives an attention page in Chromium: hover, head choice, arrow keys, and that nothing is requested.

Run by hand: python3 tests/view/page_test.py PAGE.html (a page with at least two heads and two tokens, for instance what
`qkv map` writes). Needs playwright and Chromium; without them it says so and exits with 77, which test runners read as skipped.
"""

import pathlib
import shutil
import sys

SKIPPED = 77


def check(page, url):
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    heads = page.locator("#heads button")
    assert heads.count() >= 2, "the page must have two heads"

    def weight(head, row, column):
        return page.evaluate("([h, i, j]) => percent(weights(0, h)[i * M.k + j])", [head, row, column])

    def point_at(row, column):
        at, box = page.evaluate("geometry"), page.locator("#over").bounding_box()
        page.mouse.move(box["x"] + at["left"] + at["cell"] * (column + 0.5), box["y"] + at["top"] + at["cell"] * (row + 0.5))

    point_at(1, 0)
    assert page.locator("#seen .value").inner_text() == weight(0, 1, 0)
    heads.nth(1).click()
    assert page.evaluate("head") == 1 and heads.nth(1).get_attribute("aria-pressed") == "true"
    point_at(1, 1)
    assert page.locator("#seen .value").inner_text() == weight(1, 1, 1)
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("head") == 0
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("head") == heads.count() - 1, "the heads form a ring"

    page.locator(".tokens span").nth(1).hover()
    wanted = page.evaluate("`rgb(${Array.from(colour(weights(layer, head)[M.k])).join(', ')})`")
    lit = page.locator(".tokens").last.locator("span").first.evaluate("span => span.style.background")
    assert lit == wanted, f"token 0 must be lit by what token 1 gives it: {lit}, wanted {wanted}"
    assert requests == [url], f"the page must ask for nothing: {requests}"
    assert problems == [], f"the page must not complain: {problems}"


def main():
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("skipped: playwright is not installed")
        return SKIPPED
    if browser_path is None:
        print("skipped: Chromium is not installed")
        return SKIPPED
    if len(sys.argv) != 2:
        print("usage: page_test.py PAGE.html")
        return 2
    url = pathlib.Path(sys.argv[1]).resolve().as_uri()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            check(browser.new_page(color_scheme=scheme), url)
        browser.close()
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
