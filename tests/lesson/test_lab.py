"""The lesson's page in Chromium: the model learns, is pulled back and cut; both languages, both themes, by keyboard, on a phone and a desk.

The engine is that of docs/lesson.html, under the page's files as they are now; QKV_LESSON_ENGINE names another one (engine.wasm).
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lesson"), str(ROOT / "python/tests")]
import pack  # noqa: E402
from qkv import __main__ as tool  # noqa: E402
from support_explorer import browsers, page_of  # noqa: E402

browser = pytest.fixture(scope="module")(browsers)
WIDTHS = (390, 1440)
FRESH = """async ([config, steps, prompt, cut]) => {
  const e = await loadEngine(engineBytes), losses = [];
  e.start(config);
  for (let n = 0; n < steps; ++n) losses.push(e.steps(1));
  const trace = e.trace(prompt, {cut});
  return {losses, weights: trace.layers.map(l => Array.from(l.weights)), next: Array.from(trace.next)};
}"""
NOW = """() => ({losses: lab.losses, step: lab.engine.step, prompt: lab.prompt,
  weights: lab.now.layers.map(l => Array.from(l.weights)), next: Array.from(lab.now.next),
  config: labConfig(), softmax: Array.from(lab.rows), row: lab.row, said: el("labSays").textContent, command: el("command").textContent})"""


def engine() -> bytes:
    """The engine's bytes; where there is none, everything here is skipped."""
    path = Path(os.environ.get("QKV_LESSON_ENGINE", ROOT / "docs/lesson.html"))
    if not path.exists():
        pytest.skip(f"no engine: {path} is missing; QKV_LESSON_ENGINE may name an engine.wasm")
    return pack.engine_of(path)


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    path = tmp_path_factory.mktemp("lesson") / "lesson.html"
    path.write_text(pack.page(engine()), encoding="utf-8")
    return path


def fits(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url


def until(page, expression):
    """The page's policy forbids what wait_for_function does."""
    for _ in range(2400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def train(page, goal=None):
    """Presses the button, and waits until the model stands where it should."""
    if goal is not None:
        page.fill("#labGoal", str(goal))
    page.click("#labTrain")
    until(page, "!lab.running")
    return page.evaluate(NOW)


def scrub(page, to):
    """Like a person's hand on the slider."""
    page.evaluate("n => { el('labScrub').value = n; el('labScrub').dispatchEvent(new Event('input')); }", to)
    return page.evaluate(NOW)


@pytest.mark.parametrize("width", WIDTHS)
def test_losses_weights_and_moments_are_the_engines(lesson, browser, width):
    page = browser.open(lesson, "step=lab&lang=en", width=width)
    page.wait_for_selector("#labMaps button")
    page.click("[data-lesson=one]")
    before = page.evaluate(NOW)
    assert before["step"] == 0 and before["losses"] == []
    now = train(page, 90)
    fresh = page.evaluate(FRESH, [now["config"], 90, now["prompt"], []])
    assert now["losses"] == fresh["losses"] and now["weights"] == fresh["weights"] and now["next"] == fresh["next"]
    assert now["said"].endswith(f"Step 90. Loss {fresh['losses'][-1]:.4f}.") and "--steps 90 " in now["command"]
    assert now["softmax"] == pytest.approx(now["weights"][0][-len(now["softmax"]) :], abs=1e-6)
    moments = page.evaluate("lab.moments.map(m => m.step)")
    assert len(moments) <= 40 and moments[0] == 0 and moments[-1] == 90
    shown = {}
    for n in (0, len(moments) // 5, len(moments) - 1):
        then, step = scrub(page, n), moments[n]
        fresh = page.evaluate(FRESH, [then["config"], step, then["prompt"], []])
        assert then["step"] == step and then["weights"] == fresh["weights"] and then["next"] == fresh["next"]
        assert f"Step {step}." in then["said"] and f"--steps {step} " in then["command"]
        shown[n] = page.evaluate(
            "['labBars', 'labRows', 'labLosses', 'labSays', 'command'].map(id => el(id).textContent).concat(el('labMap').toDataURL())"
        )
    assert all(len(set(panel)) == len(shown) for panel in zip(*shown.values(), strict=True)), "every panel follows"
    scrub(page, len(moments) // 2)
    assert train(page, 90)["losses"] == now["losses"], "going on from a kept moment gives the same losses"
    fits(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_cut_head_blinds_the_model(lesson, browser, width):
    page = browser.open(lesson, "step=lab&lang=zh", dark=True, width=width)
    page.wait_for_selector("#labMaps button")
    whole = train(page, 60)
    assert max(whole["next"][-len(page.evaluate("lab.symbols")) :]) > 0.9
    page.check(".labThumb input")
    less = page.evaluate(NOW)
    assert less["next"] == page.evaluate(FRESH, [less["config"], 60, less["prompt"], [[0, 0]]])["next"]
    assert max(less["next"][-len(page.evaluate("lab.symbols")) :]) < 0.5
    assert page.locator("#labBars i.second").count() == page.locator("#labBars button").count() > 0
    assert page.locator("#labBars thead th").count() == 2
    page.click("#labBars button >> nth=1")
    assert page.evaluate("lab.prompt.length") == len(less["prompt"]) + 1
    page.uncheck(".labThumb input")
    for box in ("#labMask", "#labScale", "#labPositions"):
        page.check(box)
        now = page.evaluate(NOW)
        row = now["weights"][0][-len(now["softmax"]) :]
        assert now["next"] != whole["next"] and now["softmax"] == pytest.approx(row, abs=1e-6), (
            "the five rows are of what is shown"
        )
        page.uncheck(box)
    assert page.evaluate("!lab.isCut")
    fits(page)


def test_the_command_gives_the_same_bits(lesson, browser):
    page = browser.open(lesson, "step=lab&lang=en&task=next&seed=3")
    page.wait_for_selector("#labMaps button")
    page.fill("#labPrompt", "abc xyz")
    now = train(page, 25)
    command = [str(tool.TOOL), *shlex.split(page.inner_text("#command"))[1:], "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert told["losses"] == now["losses"]
    assert [[np.float32(x) for row in told["sample"]["weights"] for x in row]] == now["weights"]
    page.check("#labMask")
    assert not page.is_visible("#footer") and page.is_visible("#labNoCommand"), "no command takes the mask away"


def losses_of_cuts(page):
    """(whole, without it) for each head, as the page says them."""
    said = []
    for box in page.locator(".labThumb input").all():
        box.check()
        said.append([float(x) for x in re.findall(r"\d+\.\d+", page.inner_text("#labLosses"))])
        box.uncheck()
    return said


def test_the_order_of_teaching(lesson, browser):
    """Of four heads none is needed; induction needs both of its two; the right guess is the head with the largest share."""
    page = browser.open(lesson, "step=lab&lang=en")
    page.wait_for_selector("#labMaps button")
    for seed in range(8):
        page.evaluate("seed => change({...labLessons.two, seed})", seed)
        train(page)
        losses = losses_of_cuts(page)
        assert len(losses) == 4 and all(whole < 0.05 and less < 0.1 for whole, less in losses), (seed, losses)
        for box in page.locator(".labThumb input").all():
            box.check()
        assert page.evaluate("lab.now.loss") > np.log(7), "without all four it does worse than by guessing"
    page.click("[data-lesson=induction]")
    page.evaluate("change({seed: 0})")
    first, last = map(int, re.search(r"between steps (\d+) and (\d+)", page.inner_text("#labTry")).groups())
    sequence = train(page)["losses"]
    assert sequence[first - 1] > 2.5 > 0.3 > sequence[last - 1]
    losses = losses_of_cuts(page)
    assert len(losses) == 2 and all(whole < 0.1 and less > 3 for whole, less in losses), losses
    for group, pattern in enumerate(("previous", "induction")):
        shares = page.evaluate("pattern => [[0, 0], [1, 0]].map(pair => shareOf(pattern, pair))", pattern)
        assert shares[group] > 0.9 > 0.2 > shares[1 - group], shares
        buttons = page.locator("#labGuess div").nth(group).locator("button")
        buttons.nth(group).click()
        assert page.locator("#labGuess strong").nth(group).inner_text().startswith("Yes: ")
        buttons.nth(1 - group).click()
        assert page.locator("#labGuess strong").nth(group).inner_text().startswith(f"It is layer {group}, head 0: ")
        assert buttons.nth(1 - group).evaluate("b => b === document.activeElement"), "the focus stays in its question"
    page.fill("#labPrompt", "abc")
    assert page.locator("#labGuess div").count() == 1 and page.inner_text("#labLosses") == "", "nothing repeats: neither question nor loss"


def test_by_keyboard_alone(lesson, browser):
    page = browser.open(lesson, "step=12&lang=en")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#labMaps button")
    assert page.evaluate("document.activeElement.id") == "main"

    def tab_to(selector):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("#labTrain")
    page.keyboard.press("Enter")
    until(page, "!lab.running && lab.engine.step === 60")
    tab_to("#labScrub")
    page.keyboard.press("Home")
    assert page.evaluate("lab.engine.step") == 0
    page.keyboard.press("End")
    tab_to(".labThumb input")
    page.keyboard.press("Space")
    assert page.evaluate("lab.isCut")
    tab_to("#labMap")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("lab.row") == len(page.evaluate("lab.prompt")) - 2


def test_language_and_theme_keep_the_model(lesson, browser):
    page = browser.open(lesson, "step=lab&lang=en")
    page.wait_for_selector("#labMaps button")
    before = train(page, 30)
    page.click("#languages [data-lang=zh]")
    assert page.evaluate("document.documentElement.lang") == "zh-CN" and "lang=zh" in page.url
    for theme in ("dark", "light"):
        page.select_option("#theme", theme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.search(r"\d+", ground).group()) < 128) == (theme == "dark") and f"theme={theme}" in page.url
    page.focus("#labPrompt")
    page.evaluate("change({step: 3})")
    assert not page.is_visible("#footer"), "the command is the lab's"
    page.evaluate("change({step: 'lab'})")
    now = page.evaluate(NOW)
    assert now["weights"] == before["weights"] and "30" in now["said"] and now["said"] != before["said"]
    page.fill("#labGoal", "9000")
    page.click("#labTrain")
    page.evaluate("change({step: 3})")
    until(page, "!lab.running")
    assert not page.is_visible("#footer")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_text_of_ones_own_is_refused_by_its_cause_kept_and_saved(lesson, browser, lang):
    page = browser.open(lesson, f"step=lab&lang={lang}&task=own")
    page.wait_for_selector("#labWrong:not([hidden])")
    letters = "".join(chr(0x4E00 + n) for n in range(65))
    for text, cause in [(letters[1:], ""), ("abc", "short"), ("a" * 30, "one"), (letters, "many"), (letters[1:], "")]:
        page.fill("#labOwn", text)
        page.evaluate("el('labOwn').blur()")
        for button in ("#labOne", "#labTrain") if cause else ():
            page.click(button)
            assert page.evaluate("[lab.engine.step, lab.running]") == [0, False], "there is nothing to train"
        values = {"n": len(text), "kinds": len(set(text)), "least": 18, "most": 64}
        said = page.evaluate("([cause, values]) => cause && say('lab.own.' + cause, values)", [cause, values])
        assert (page.inner_text("#labWrong") if page.is_visible("#labWrong") else "") == said
    train(page, 5)
    shown = page.locator("#labBars tbody tr")
    assert shown.count() == 13 and "52" in shown.last.inner_text()
    assert sum(map(float, re.findall(r"[\d.]+(?= %)", page.inner_text("#labBars")))) == pytest.approx(100, abs=1)
    with page.expect_download() as saved:
        page.click("#labOwnSave")
    assert saved.value.suggested_filename == "text.txt" and Path(saved.value.path()).read_text(encoding="utf-8") == letters[1:]
    page.reload()
    page.wait_for_selector("#labMaps button")
    assert page.input_value("#labOwn") == letters[1:]
    page.evaluate("labTry(() => lab.engine.trace('?'))")
    assert page.inner_text("#labWrong").startswith(page.evaluate("say('lab.refused', {error: ''})"))


def test_a_number_or_character_that_does_not_serve_is_said(lesson, browser):
    page = browser.open(lesson, "step=lab&lang=en")
    page.click("#labSettings summary")
    for field, low, high in [("Seed", 0, 999999999), ("Goal", 1, 100000)]:
        for text in ("-1", "1.5", "", "1000000000", "7"):
            page.fill(f"#lab{field}", text)
            page.click("#labTrain" if field == "Goal" else "#labTry")
            said = "" if text == "7" else f"A whole number from {low} to {high}, please."
            assert [page.inner_text(f"#lab{field}Wrong"), page.input_value(f"#lab{field}")] == [said, text]
        until(page, "!lab.running")
    assert page.evaluate("[state.seed, lab.engine.step]") == [7, 7]
    unknown, long = "The model does not know: Q ?", "Only the first 16 of 18 characters are used."
    for text, said in [
        ("aQ?", unknown),
        ("abc" * 6, long),
        ("", "At least one character that the model knows, please."),
        ("ab", ""),
    ]:
        page.fill("#labPrompt", text)
        assert page.inner_text("#labPromptWrong") == said
    page.evaluate("lab.engine = Object.create(lab.engine, {step: {value: 100000}})")
    for goal, said in [("7", "A whole number from 100000 to 100000, please."), ("100000", "")]:
        page.fill("#labGoal", goal)
        page.click("#labTrain")
        assert page.inner_text("#labGoalWrong") == said and page.evaluate("[lab.running, lab.losses.length]") == [False, 7]
    page.check("#labMask")
    assert "With mask off: " in page.inner_text("#labLosses") and page.locator("#labBars thead th").last.inner_text() == "with mask off"


def test_without_webassembly_the_text_is_named(lesson, browser, tmp_path):
    path = tmp_path / "lesson.html"
    path.write_text(lesson.read_text(encoding="utf-8").replace("<script>\n", "<script>\ndelete globalThis.WebAssembly;\n"), encoding="utf-8")
    page = browser.open(path, "step=lab&lang=zh")
    assert page.inner_text("#wrong").endswith("docs/lesson.zh-CN.md。") and not page.is_visible("#lab")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(lesson, browser, lang, dark):
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None:
        pytest.skip("axe is not here: pip install axe-playwright-python")
    page = browser.open(lesson, f"step=1&lang={lang}", dark=dark, width=390 if dark else 1440)
    page.evaluate((Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8"))
    steps = page.evaluate("turns")
    for step in steps:
        page.evaluate("step => change({step})", step)
        if step == "lab":
            page.wait_for_selector("#labMaps button")
            page.click("[data-lesson=two]")
            train(page, 20)
            page.click("#labGuess button")
            page.check(".labThumb input")
            page.click("#labSettings summary")
        fits(page)
        found = page.evaluate("axe.run()")["violations"]
        assert not found, [(step, v["id"], v["nodes"][0]["html"][:150], v["nodes"][0]["failureSummary"]) for v in found]
    assert len(steps) == 13


def test_colours_are_the_explorers(tmp_path):
    q = np.zeros((1, 3, 4), np.float32)
    explorer = page_of(tmp_path, {"q": q, "k": q}, {}).read_text(encoding="utf-8")
    ours = (ROOT / "lesson/page/palette.js").read_text(encoding="utf-8")
    assert re.findall(r"[0-9A-F]{100,}", ours) == re.findall(r'(?:light|dark): "([0-9A-F]{100,})"', explorer)


def test_names_are_unique_and_words_are_there():
    """All scripts in one scope, as the page has them; every key that they or the markup name is a text in both languages."""
    text = "".join(path.read_text(encoding="utf-8") for path in pack.scripts())
    if shutil.which("node") is None:
        pytest.skip("node is not here")
    node = subprocess.run(["node", "--check", "-"], input=text, capture_output=True, text=True, check=False)
    assert node.returncode == 0, node.stderr
    markup = (ROOT / "lesson/page/page.html").read_text(encoding="utf-8")
    keys = set(re.findall(r'\bsay\("(\w+\.[\w.]+)"[,)]', text) + re.findall(r'data-say(?:-label)?="([\w.]+)"', markup))
    for language in ("en", "zh"):
        missing = keys - set(json.loads((ROOT / f"lesson/text/{language}.json").read_text(encoding="utf-8")))
        assert len(keys) > 50 and not missing, (language, sorted(missing))
