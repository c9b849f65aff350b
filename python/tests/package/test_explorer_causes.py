"""What heads do, on the explorer's page: weight x norm, tokens that they raise, runs without them, search by pattern."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support_explorer import HOSTILE, Browser, full_file, page_of, settled


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
