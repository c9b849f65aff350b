"""The twelve steps in Chromium: the numbers of their texts, what is computed by hand, every control, the figures' parts under pointer and keys."""

import itertools
import json
import re

import pytest
from test_lab import FRESH, ROOT, browser, fits, lesson, until

__all__ = ["browser", "lesson"]
WORDS = {lang: json.loads((ROOT / f"lesson/text/{lang}.json").read_text(encoding="utf-8")) for lang in ("en", "zh")}
# Of each step the names of the numbers that its text may state (lesson/page/example.js); 0 and 1 are the ends of every weight.
STATED = """v.I v.like v.blue
q.blue k.I k.like k.blue scores.blue
roots d weights.blue weights-unscaled.blue
scaled.blue exp.blue sum.exp.blue
weights.blue v.I v.like v.blue
x.I k-all.I
weights.like causal.like causal-after-softmax.like sum.causal-after-softmax.like
padded-fill-zero.I
p
q-all.blue head-0.blue head-1.blue d moved shape
dp.blue delta.blue dq.blue
symbols parameters"""
TYPE = """numbers => {
  document.querySelectorAll(".cells input").forEach((cell, n) => { cell.value = numbers[n]; cell.dispatchEvent(new Event("input")); });
  document.querySelector(".pencil").requestSubmit();
  const verdict = document.querySelector(".verdict");
  return [verdict.dataset.verdict, verdict.textContent];
}"""
# Gives a control another value, as a person does.
SET = """n => {
  const input = document.querySelectorAll(".control input, .control select")[n], {type} = input;
  if (type === "checkbox") return input.click();
  if (type === "select-one") input.selectedIndex = (input.selectedIndex + 1) % input.options.length;
  else input.value = type === "number" ? -1.5 : type === "range" ? input.min : '<b>we</b> like"red&';
  input.dispatchEvent(new Event("input"));
}"""


def uncovered(page):
    """The page, its figure asked for."""
    page.click(".cover button")
    return page


def drawn(page):
    """The figure and what is said of it, after the next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.inner_html(".picture"), page.inner_text(".said")


def test_texts_state_what_the_engine_computes(lesson, browser):
    """Answers and their hints are apart; the toy is the engine's."""
    page = browser.open(lesson, "lang=en")
    numbers, toy = page.evaluate("async () => [exampleNumbers(engine), (await loadEngine(engineBytes)).start({})]")
    assert numbers["symbols"] == [len(toy["symbols"])] and numbers["parameters"] == [toy["parameters"]]
    stated = 0
    for step, names in zip(WORDS["en"]["steps"], STATED.splitlines(), strict=True):
        known = [0, 1, *(x for name in names.split() for x in numbers[name])]
        text = " ".join([*step["text"], step["question"], step["try"], step["broke"]])
        for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", re.sub(r"`[^`]*`|\b(?:head|step) \d", "", text)):
            digits = len(number.partition(".")[2])
            assert any(f"{x:.{digits}f}" == number for x in known), (step["id"], number)
            stated += 1
        pencil = step["pencil"]
        given = [numbers[name] for name in (pencil["answer"], *(hint["value"] for hint in pencil["hints"]))]
        for one, other in itertools.combinations(given, 2):
            assert max(abs(x - y) for x, y in zip(one, other, strict=True)) > 0.015, (step["id"], one, other)
    assert stated > 90


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("lang", WORDS)
def test_every_step(lesson, browser, lang, width):
    page = browser.open(lesson, f"lang={lang}", width=width, dark=width == 390)
    numbers = page.evaluate("exampleNumbers(engine)")
    for n, step in enumerate(WORDS[lang]["steps"], 1):
        page.evaluate("step => change({step})", n)
        assert page.inner_text("h2").endswith(step["question"])
        files = [(name, name.replace("-", "_") + ".py") for name in step["exercise"]]
        practice = [line for name, file in files for line in (f"qkv practice {name} > {file}", f"qkv judge {file}")]
        assert page.locator(".onward code").all_inner_texts() == [
            f"qkv lesson {n}" + " --lang zh" * (lang == "zh"),
            step["command"],
            *practice,
        ]
        assert page.locator(".covered").count() == (step["id"] not in ("average", "scale", "learn"))
        for label in page.locator(".cells label").all():
            assert label.inner_text() in label.locator("input").get_attribute("aria-label"), "what is seen is said"
        pencil, right = step["pencil"], numbers[step["pencil"]["answer"]]
        for cell, x in zip(page.locator(".cells input").all(), right, strict=True):
            cell.fill(f" {x:.2f}".replace("-", "\u2212"))
        page.keyboard.press("Enter")
        assert page.get_attribute(".verdict", "data-verdict") == "right" and not page.locator(".covered").count(), n
        for hint in pencil["hints"]:
            assert page.evaluate(TYPE, numbers[hint["value"]]) == ["hint", hint["say"]], (n, hint)
        assert page.evaluate(TYPE, [*right[1:], 77.7])[0] == "some" and page.evaluate(TYPE, ["", *right[1:]])[0] == "missing"
        before = first = drawn(page)
        for control in range(page.locator(".control").count()):
            page.evaluate(SET, control)
            now = drawn(page)
            assert n == 12 or (now[0] != before[0] and now[1]), (n, control)
            before = now
            fits(page)
            assert not page.locator(".picture b").count(), "a token is markup"
        page.locator(".controls button").last.click()
        assert drawn(page) == first, n


@pytest.mark.parametrize("width", [390, 1440])
def test_keys_move_by_pointer_and_by_arrows(lesson, browser, width):
    page = uncovered(browser.open(lesson, "step-2&lang=en", width=width))
    assert drawn(page)[1] == "Scores of blue: I 2, like 1, blue 4."
    page.locator(".picture").scroll_into_view_if_needed()
    box, unit = page.locator('[data-part="k:1"] circle').bounding_box(), float(page.get_attribute("[data-plane]", "data-plane"))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 3 * unit, y - unit, steps=4)
    page.mouse.up()
    assert drawn(page)[1] == "Scores of blue: I 2, like 0, blue 4."  # (1 2) . (-2 1)
    page.locator('[data-part="k:1"]').focus()
    for key in ["ArrowUp"] * 4 + ["ArrowLeft"]:
        page.keyboard.press(key)
        drawn(page)
    assert drawn(page)[1] == "Scores of blue: I 2, like 1.75, blue 4." and page.evaluate("state.step") == 2
    assert page.evaluate("document.activeElement.dataset.part") == "k:1"


def test_a_token_follows_from_its_letters(lesson, browser):
    """Tokens that stand together differ in the first head's query, which is never 0; the picture of the docs is the page's."""
    page, h = uncovered(browser.open(lesson, "step=6&lang=en")), 9
    for letter in "red":
        h = (31 * h + ord(letter)) % 65521
    x = [part for n in (1 + h % 15, 1 + h // 15 % 15) for part in (n % 4, n // 4)]
    page.fill(".sentence", "  red like   we extraordinary things")
    page.select_option(".control select", label="red")
    assert drawn(page)[1].startswith(f"red: x ({', '.join(map(str, x))}) makes q ({', '.join(map(str, x))}), ")
    assert page.locator(".control option").all_inner_texts() == ["red", "like", "we", "extrao"]
    rows = page.evaluate("embedded('green yellow grey pink dog big clear night dark cat a z'.split(' ')).join(' ')").split()
    queries = {(rows[n], rows[n + 1]) for n in range(0, 48, 4)}
    assert len(queries) == 12 and not queries & {("0", "0"), ("1", "0"), ("0", "1"), ("1", "2")}
    page.evaluate("change({step: 1})")
    picture = (ROOT / "docs/images/average.svg").read_text(encoding="utf-8")
    assert re.findall(r"\d+%", drawn(page)[0]) == re.findall(r">(\d+%)<", picture)


def test_numbers_that_are_typed_are_used_or_corrected(lesson, browser):
    page = uncovered(browser.open(lesson, "step=2&lang=en"))
    for typed, used, scores in (
        ("0.3", "0.3", "I 2, like 0.30, blue 2.60"),
        ("99", "3", "I 2, like 3, blue 8"),
        ("", "3", "I 2, like 3, blue 8"),
    ):
        page.fill(".control input >> nth=0", typed)
        page.keyboard.press("Tab")
        assert drawn(page)[1] == f"Scores of blue: {scores}." and page.input_value(".control input >> nth=0") == used
    page.evaluate("change({step: 9})")
    for typed, word in (([1.8, 0.9, 0], "another number"), ([0.162, 0.081, 0], "multiplied by 1 - p"), ([0.2, 0.12, 0], "")):
        verdict, said = page.evaluate(TYPE, typed)
        assert (verdict == "hint" and word in said) if word else verdict == "some", typed


def test_back_leads_to_the_step_before(lesson, browser):
    page = browser.open(lesson, "step-2&lang=en")
    page.click("#after")
    page.click("#list a >> nth=4")
    until(page, "state.step === 5")
    for step in (3, 2):
        page.go_back()
        until(page, f"state.step === {step}")
    page.go_forward()
    until(page, "state.step === 3")


def test_masks_heads_and_the_way_back(lesson, browser):
    page = uncovered(browser.open(lesson, "step=7&lang=en"))
    page.check(".control input >> nth=1")
    assert "3 hidden cells keep a weight" in drawn(page)[1] and drawn(page)[0].count('stroke="var(--mark)"') == 3
    page.uncheck(".control input >> nth=1")
    page.check(".control input >> nth=0")
    assert drawn(page)[1] == "Row of like: I 0, like 0, blue 0; sum 0."
    page.evaluate("change({step: 10})")
    assert drawn(uncovered(page))[1].startswith("view alone: 8 of 12 ")
    page.select_option(".control select", "1")
    assert drawn(page)[1].startswith("view alone: 0 of 12 ")
    page.evaluate("change({step: 11})")
    assert drawn(uncovered(page))[1] == "Gradients: ds I −0.26, like −0.13, blue 0.39; dq (0.46, 0.09)."
    assert page.locator(".picture svg").count() == 2 and "dP" in page.inner_text(".picture"), "the row, and the layer of two heads"


def test_a_model_learns_beside_the_text(lesson, browser):
    """The losses are those of a fresh engine; another language does not stop it, another page does, and the panel has the same task."""
    page = browser.open(lesson, "step=12&lang=zh")
    page.click(".controls button >> nth=0")
    page.click("#languages [data-lang=en]")
    page.select_option("#theme", "dark")
    until(page, "stages.learn.losses.length === 800 && !stages.learn.runs")
    assert page.evaluate("stages.learn.losses") == page.evaluate(FRESH, [{"task": "next"}, 800, "abc", []])["losses"]
    blind = page.evaluate("async () => Array.from((await stages.learn.toy).trace('abcxyz', {cut: [[0, 0]]}).next)")
    assert blind == blind[:7] * 6, "without its head it says the same at every position"
    assert page.locator('[data-part^="moment:"]').count() == 6 and "800" in drawn(page)[1]
    page.click(".controls button >> nth=0")
    page.evaluate("change({step: 11})")
    until(page, "!stages.learn.runs")
    page.evaluate("change({step: 12})")
    page.click(".controls button >> nth=1")
    assert page.evaluate("[state.step, state.task, state.heads, state.layers]") == ["lab", "next", 1, 1]


def test_the_contents_of_a_phone_and_paper(lesson, browser):
    """A line that unfolds to all titles; on paper every step, with its figure where that is not covered."""
    page = browser.open(lesson, "step=11&lang=en", width=390)
    assert page.inner_text("#here") == "11 · How does the loss reach q?" and not page.is_visible("#list")
    page.click("#here")
    page.click("#list a >> nth=5")
    until(page, "state.step === 6")
    assert not page.is_visible("#list") and page.locator(".onward a").get_attribute("href") == "http://www.dtcms.com/a/329258.html"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#paper h2").count() == 12 and page.locator("#paper .stage:not(.covered) .picture svg").count() == 2
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.locator("#paper *").count() and page.is_visible("#step h2")
    page.set_viewport_size({"width": 320, "height": 950})
    for step in range(1, 13):
        page.evaluate("step => change({step})", step)
        fits(page)
