"""The explorer's page in Chromium, what follows a choice: the panel, names of layers and heads, tabs and filters, whatever was chosen before.
Not: what each control does (test_explorer.py).
"""

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


def test_a_filter_that_a_view_lacks_can_be_let_go(tmp_path: Path, browser: Browser) -> None:
    path = made(tmp_path, [*ABC], view("a", (3, 3), kinds("previous", "induction")), view("b", (3, 3), kinds("previous", "self"), texts=(1, 1)))
    page = browser.open(path)
    page.locator("#kinds button", has_text="induction").click()
    page.locator("#view").select_option("1")
    assert settled(page).locator("#heads").inner_text() == "no head is of these kinds"
    page.locator("#kinds button[aria-pressed=true]", has_text="induction 0").click()
    assert settled(page).locator(".thumb").count() == 2 and page.locator("#kinds button").count() == 2
    page = browser.open(path, "kinds=duplicate")
    page.locator("#kinds button", has_text="duplicate 0").click()
    assert settled(page).locator(".thumb").count() == 2


def test_views_of_one_name_show_their_own_tokens(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], *(view(name, (3, 3), texts=(n, n)) for n, name in enumerate(("first", "same", "same")))))
    for n, token in ((1, "dos"), (2, "beta"), (1, "dos")):
        page.locator("#beside").select_option(str(n))
        assert settled(page).locator("#panel .tokens").nth(1).locator("span").nth(1).inner_text() == token


def test_arrows_move_what_is_looked_from(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], view("self", (3, 3)), view("cross", (3, 3), texts=(0, 1))))

    def moved(key: str) -> list[int]:
        page.keyboard.press(key)
        return settled(page).evaluate("[state.i, state.j]")

    page.locator("#from").check()
    page.locator("#panel .tokens span").nth(0).click()
    page.locator("#tab-text").focus()
    page.keyboard.press("Tab")  # by find, its button and so on
    while page.evaluate("document.activeElement.id") != "panel":
        assert page.evaluate("document.activeElement !== document.body"), "Tab does not reach the tokens"
        page.keyboard.press("Tab")
    assert moved("ArrowRight") == [1, 1] and "on key 1" in page.locator("#lit").inner_text()
    assert moved("ArrowRight") == moved("ArrowRight") == [2, 2]
    page.locator("#view").select_option("1")
    settled(page).locator("#panel .tokens").nth(1).locator("span").nth(2).click()
    assert moved("ArrowLeft") == [2, 1] and "on key 1" in page.locator("#lit").inner_text()
    page.locator("#tab-lines").click()  # where queries are looked from
    page.locator("#panel").focus()
    assert moved("ArrowLeft") == [1, 1]


def test_pages_of_queries_and_of_keys_turn_to_the_choice(tmp_path: Path, browser: Browser) -> None:
    long = text(*(f"k{n}" for n in range(4000)))
    page = browser.open(made(tmp_path, [text("q0", "q1"), long], view("cross", (2, 4000), texts=(0, 1))))
    shown = page.locator("#panel .bar .note")
    assert shown.inner_text() == "positions 0 to 1499 of 4000"
    page.evaluate("follow(Promise.resolve(change({i: 1, j: 3500}, 'light')))")
    assert settled(page).locator("#panel .tokens .to").inner_text() == "k3500" and shown.inner_text() == "positions 2500 to 3999 of 4000"
    page.locator("#panel button", has_text="earlier").click()
    assert settled(page).locator("#panel .bar .note").inner_text() == "positions 1000 to 2499 of 4000"  # the choice stays
    page.keyboard.press("Escape")
    assert shown.inner_text() == "positions 1000 to 2499 of 4000"
    page.locator("#from").check()
    page.locator("#search").fill("k3999")
    page.locator("#search").press("Enter")
    assert settled(page).locator("#panel .tokens .to").inner_text() == "k3999"


def test_a_patch_is_the_one_under_the_pointer(tmp_path: Path, browser: Browser) -> None:
    image = {"tokens": None, "length": 577, "image": {"start": 1, "height": 24, "width": 24}}
    page = browser.open(made(tmp_path, [image], view("vit", (577, 577), {"heads": 1, "kv_heads": 1})), "tab=picture", width=390)
    patches = page.locator(".patches").first
    box = patches.bounding_box()
    assert box["width"] < 24 * 22 and abs(box["width"] - box["height"]) < 1
    for r, c in ((12, 23), (0, 0), (23, 11)):
        patches.click(position={"x": (c + 0.5) * box["width"] / 24, "y": (r + 0.5) * box["height"] / 24})
        assert settled(page).evaluate("state.i") == 1 + 24 * r + c


def test_shares_of_blocks_are_not_added_up(tmp_path: Path, browser: Browser) -> None:
    """A block's share stands at each of its keys: 9 times too much on the patches."""
    image = {"tokens": None, "length": 577, "image": {"start": 1, "height": 24, "width": 24}}
    file = {"title": "t", "texts": [image], "views": [view("vit", (577, 577), {"heads": 1, "kv_heads": 1})]}
    blocks = np.full((1, 64, 64), 1 / 64, np.float32)
    page = browser.open(page_of(tmp_path, {"0/0/map": blocks}, {"format": "qkv.explorer.1", "explorer": json.dumps(file)}), "tab=picture&i=300")
    assert page.locator(".patches").count() == 2 and "on patches" not in page.locator("#panel").inner_text()
    page = browser.open(made(tmp_path, [image], view("vit", (577, 577), {"heads": 1, "kv_heads": 1})), "tab=picture&i=300")
    share, said = page.locator("#panel .note").inner_text().split(" ", 1)
    assert 99 < float(share) <= 100 and said == "% on patches."


def test_labels_stand_where_a_token_is_a_number(tmp_path: Path, browser: Browser) -> None:
    below = "parseFloat(el('map').style.height) - geometry.main.top - geometry.main.height"
    page = browser.open(made(tmp_path, [text("0", *["somewhat"] * 39)], view("a", (40, 40))))
    assert page.evaluate(below) > 60
    page = browser.open(made(tmp_path, [{"tokens": None, "length": 40}], view("a", (40, 40), {"q_first": 0})))
    assert page.evaluate(below) == 30


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


def test_weights_stand_beside_weights(tmp_path: Path, browser: Browser) -> None:
    """The run with a head cut has no norms: what a head writes cannot be compared with its weights."""
    tensors, metadata = full_file()
    mine, other = ((tensors[f"{v}/0/weights"][2].astype(np.float32) / 254) ** 2 for v in (0, 1))
    page = browser.open(page_of(tmp_path, tensors, metadata), f"head=2&i=5&j={mine[5].argmax()}&paint=writes&beside=1&diff=1")
    shown = "[geometry.shown, geometry.beside.shown, geometry.difference.shown].map(x => Array.from(x.cells))"
    assert not page.locator("#paint").is_visible() and "%" in page.locator(".value").inner_text()
    assert all(np.allclose(a, b.ravel(), atol=1e-6) for a, b in zip(page.evaluate(shown), (mine, other, other - mine)))
    page.locator("#beside").select_option("-1")
    assert settled(page).locator("#paint").is_visible() and "%" not in page.locator(".value").inner_text()


def test_effects_that_a_file_lacks_are_said_of_each_view(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], *(view(name, (3, 3), kinds("self", "self")) for name in "ab")), "tab=does&beside=1")
    parts = page.locator("#panel .halves > div").all_inner_texts()
    assert len(parts) == 2 and all("This file says neither what its heads write" in part for part in parts)
    page = browser.open(page_of(tmp_path, *full_file()), "tab=does&beside=1")
    assert "This file says neither" not in page.locator("#panel").inner_text()


def test_a_link_opens_no_tab_without_a_button(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], view("weights", (3, 3), {"exact": [], "exact_kv": []})))
    for tab, opened in (("lines", "lines"), ("why", "text"), ("lines", "lines"), ("picture", "text")):
        page.evaluate(f"location.hash = '#tab={tab}'")
        page.wait_for_selector(f"#tab-{opened}[aria-selected=true]", timeout=5000)


def test_the_keyboard_stays_where_it_pressed(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [*ABC], view("a", (3, 3), kinds("previous", "induction"))), "pins=0,1,2")

    def after(where: str) -> str:
        page.locator(where).press("Enter")
        return settled(page).evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")

    assert after("#kinds button >> nth=1") == "induction 1" and page.locator(".thumb").count() == 1
    assert after("#pins button >> nth=1") == "unpin query 2" and after("#pins button >> nth=1") == "unpin query 0"
    assert after("#pins button") == "pin this token"


#: The page's tensors whose names hold a word come late, as those of a large file do.
LATE = """word => {
  const at_once = load;
  load = async name => { if (name.includes(word)) await new Promise(done => setTimeout(done, 150)); return at_once(name); };
}"""


def test_weights_are_not_kept_as_what_a_head_writes(tmp_path: Path, browser: Browser) -> None:
    """The map of weights, 16 tiles of which take a while, is left for the other before it is done."""
    rng, n = np.random.default_rng(5), 1024
    q, k = rng.standard_normal((2, 1, n, 128)).astype(np.float32)
    lse = np.log(np.exp(q @ k.transpose(0, 2, 1) * 0.1).sum(-1))
    tensors = {"0/0/q": q, "0/0/k": k, "0/0/lse": lse, "0/0/norms": np.full((1, n), 7, np.float32)}
    layer = {"heads": 1, "kv_heads": 1, "formula": {"scale": 0.1}, "exact": [0], "exact_kv": [0]}
    file = {"texts": [{"tokens": None, "length": n}], "views": [view("a", (n, n), layer)]}
    page = browser.open(page_of(tmp_path, tensors, {"format": "qkv.explorer.1", "explorer": json.dumps(file)}))
    page.evaluate(LATE, "norms")
    page.evaluate("async () => { tiles.clear(); change({range: 'unit'}); await new Promise(requestAnimationFrame); change({paint: 'writes'}); }")
    page.wait_for_selector("#resolution:text-matches('norm, exact[.]')")
    wrong = """async () => { const weight = await openHead(0, 0, 0, 'weight'), of = {true: await openHead(0, 0, 0, 'writes'), false: weight};
      return [...tiles].filter(([key, t]) => { const [, , , norm, a, b] = key.split('/'); return t.data[0] !== of[norm].tile(a * TILE, b * TILE, 1, 1)[0]; }).length; }"""
    assert page.evaluate("tiles.size") > 16 and page.evaluate(wrong) == 0


def test_a_pointer_moves_while_another_view_is_read(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(made(tmp_path, [text(*"abcdefghij" * 6), *ABC], view("long", (60, 60)), view("short", (3, 3), texts=(1, 1))))
    page.evaluate(LATE, "1/0/")
    page.locator("#map").hover(position={"x": 300, "y": 300})
    page.evaluate("change({view: 1})")
    page.mouse.move(*(page.locator("#map").bounding_box()[side] + 380 for side in "xy"))
    page.evaluate("moveToken(50)")
    assert settled(page).evaluate("[state.view, state.i]") == [1, 2] and not page.locator("#wrong").is_visible()
    page.evaluate("fail(new Error('of another view'))")
    page.locator("#view").select_option("0")
    assert not settled(page).locator("#wrong").is_visible()
    page.evaluate("change({layer: 7})")  # a thumbnail of a view that had more
    assert settled(page).evaluate("state.layer") == 0 and not page.locator("#wrong").is_visible()
    assert page.evaluate("performance.getEntriesByName('map').length") == 1  # not one more for every move


def test_a_head_that_the_file_lacks_is_not_saved_as_another(tmp_path: Path, browser: Browser) -> None:
    file = {"texts": [ABC[0]], "views": [view("a", (3, 3), {"weights": [1]})]}
    weights = np.full((1, 3, 3), 1 / 3, np.float32)
    path = page_of(tmp_path, {"0/0/weights": weights}, {"format": "qkv.explorer.1", "explorer": json.dumps(file)})
    page = browser.open(path, "head=1&pins=2")
    assert page.locator(".pinned-row").count() == 1 and page.locator("#saveJson").is_enabled()
    page.mouse.move(*(page.locator("#map").bounding_box()[side] + 200 for side in "xy"))
    page.mouse.down()
    page.evaluate("step(-1)")
    settled(page).mouse.move(300, 300)
    page.mouse.up()
    assert "nothing of this head" in page.locator("#facts").inner_text() and page.locator(".pinned-row").count() == 0
    assert page.locator("#save button:disabled").count() == 4


def test_blocks_stand_beside_no_weights(tmp_path: Path, browser: Browser) -> None:
    """Zoomed in, both pictures have one size: a weight less the share of a block would look like a difference."""
    file = {"texts": [{"tokens": None, "length": 16}], "views": [view(name, (16, 16), {"heads": 1, "kv_heads": 1}) for name in "abc"]}
    tensors: dict[str, np.ndarray] = {"0/0/weights": np.full((1, 16, 16), 1 / 16, np.float32)}
    tensors |= {f"{v}/0/map": np.full((1, n, n), 1 / n, np.float32) for v, n in ((1, 8), (2, 4))}
    path = page_of(tmp_path, tensors, {"format": "qkv.explorer.1", "explorer": json.dumps(file)})
    for of, beside, shown in (0, 1, False), (1, 2, False), (1, 1, True), (0, 0, True):
        page = browser.open(path, f"view={of}&beside={beside}&diff=1&region=0,4,0,4")
        assert page.locator("#map3").is_visible() == shown
        assert page.locator("#diffName").inner_text().startswith("difference: orange" if shown else "no difference: one is shown by blocks")


def test_what_a_block_is_is_said(tmp_path: Path, browser: Browser) -> None:
    """Of what heads write, and where heads of a long text are sorted by one pair."""
    n = 600
    file = {"texts": [{"tokens": None, "length": n}], "views": [view("a", (n, n), {"heads": 1, "kv_heads": 1})]}
    tensors = {"0/0/map": np.full((1, 6, 6), 1 / 6, np.float32), "0/0/norms": np.ones((1, n), np.float32)}
    path = page_of(tmp_path, tensors, {"format": "qkv.explorer.1", "explorer": json.dumps(file)})
    page = browser.open(path, "paint=writes&sort=pair&anchor=5,7&i=5&j=7")
    assert page.locator("#resolution").inner_text().startswith("blocks of 100 \u00d7 100 \u00d7 norm: this file")
    assert page.locator("#sort option:checked").inner_text().startswith("share of the block of 5 (5) on 7 (7)")
