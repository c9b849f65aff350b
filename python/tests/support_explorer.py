"""Files of the explorer (docs/explorer-file.md), their pages, and a browser that forgives nothing."""

import atexit
import functools
import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv.io
from qkv import __main__ as tool
from support import numbers

#: Labels that a page must survive: markup, script ends, entities, direction marks, control characters, long and astral text.
HOSTILE = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "&lt;b&gt;", "\u202egnirts\u202c", "\x00\x1b[31m", "\n", "\t", "", " ",
    "'\"`${alert(3)}", "]]>", "<!--", "我\U0001f600", "\ufeff\u200b", "=1+1", "x" * 2000,
]  # fmt: skip


def chromium() -> tuple[Path, Any]:
    """The browser of Debian's package, and playwright; where one is missing, CI fails and everything else skips."""
    path = Path(os.environ.get("QKV_CHROMIUM", "/usr/bin/chromium"))
    playwright = importlib.import_module("playwright.sync_api") if importlib.util.find_spec("playwright") else None
    if not path.exists() or playwright is None:
        said = f"no browser for the explorer's page: {path} (apt-get install chromium, or set QKV_CHROMIUM) and pip's playwright are needed"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    return path, playwright


class Browser:
    """Chromium with one page open at a time. ``check()`` asserts that it asked for nothing and complained of nothing."""

    def __init__(self, browser: Any) -> None:
        self._browser, self.page, self.asked, self.said = browser, None, [], []

    def open(self, path: Path | str, fragment: str = "", *, dark: bool = False, width: int = 1400, ready: bool = True, touch: bool = False) -> Any:
        self.close()
        context = self._browser.new_context(
            viewport={"width": width, "height": 950}, color_scheme="dark" if dark else "light", accept_downloads=True, has_touch=touch
        )
        self.page = page = context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append("dialog " + dialog.message), dialog.dismiss()))
        own = path if isinstance(path, str) else path.as_uri()  # a server's address, and what lies below it

        def route(asked: Any) -> None:
            url = asked.request.url
            if url.split("#")[0] in (own, "about:srcdoc") or url.startswith(("data:", own if isinstance(path, str) else "data:")):
                asked.continue_()
            else:
                self.asked.append(url)
                asked.abort()

        page.route("**/*", route)
        page.goto(own + ("#" + fragment if fragment else ""))
        page.wait_for_selector("body[data-ready]" if ready else "#wrong:not([hidden])", timeout=60_000)
        return page

    def check(self) -> None:
        assert not self.asked and not self.said, (self.asked, self.said)

    def close(self) -> None:
        if self.page is not None:
            self.page.context.close()
            self.page = None


@functools.cache
def _running() -> Any:
    """Chromium, one for the process: Playwright starts once in each."""
    path, playwright = chromium()
    started = playwright.sync_playwright().start()
    atexit.register(started.stop)
    return started.chromium.launch(executable_path=str(path), args=["--no-sandbox"] if os.geteuid() == 0 else [])


def browsers() -> Iterator[Browser]:
    """For a fixture: a browser, without a page when it ends."""
    browser = Browser(_running())
    yield browser
    browser.close()


def small(seed: int, heads: int, kv_heads: int, q_len: int, kv_len: int, width: int = 16) -> tuple[np.ndarray, np.ndarray]:
    return 2 * numbers(seed, heads, q_len, width), 2 * numbers(seed + 1, kv_heads, kv_len, width)


TILE = """async ([v, l, h, i, j]) => {
  const head = await openHead(v, l, h), rows = Math.min(TILE, head.Tq - i * TILE), columns = Math.min(TILE, head.Tk - j * TILE);
  const began = performance.now(), data = Array.from(head.tile(i * TILE, j * TILE, rows, columns));
  return {rows, columns, data, milliseconds: performance.now() - began, kind: head.kind};
}"""


def tile(page: Any, layer: int, head: int, i: int, j: int, view: int = 0) -> tuple[np.ndarray, float]:
    """256 x 256 weights as the page computes them from q, k and lse, and its milliseconds."""
    got = page.evaluate(TILE, [view, layer, head, i, j])
    assert got["kind"] == "exact"
    return np.array(got["data"]).reshape(got["rows"], got["columns"]), got["milliseconds"]


def settled(page: Any) -> Any:
    """The page when all that follows from the last action is drawn."""
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    return page


def _drawn(folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str], *options: str) -> tuple[Path, Any]:
    """Where the tool is to write a page of a file, small or full, and what became of it."""
    file, out = folder / "file.safetensors", folder / "page.html"
    qkv.io.save_safetensors(file, tensors, metadata=metadata)
    out.unlink(missing_ok=True)
    command = [str(tool.TOOL), "map", "--qk", str(file), "--out", str(out), *options]
    return out, subprocess.run(command, capture_output=True, text=True, check=False)


def page_of(folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str], tokens: Any = None) -> Path:
    """The page that the tool makes of a file, small or full."""
    (folder / "tokens.json").write_text(json.dumps(tokens))
    out, done = _drawn(folder, tensors, metadata, *([] if tokens is None else ["--tokens", str(folder / "tokens.json")]))
    assert done.returncode == 0, done.stderr
    return out


def refused(folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str], *options: str) -> str:
    """The tool's message for a file that it refuses."""
    out, done = _drawn(folder, tensors, metadata, *options)
    assert done.returncode == 2 and not out.exists(), done
    return done.stderr


def full_file(change: Callable[[dict[str, Any]], None] | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Two models on one text with an answer, and an image that attends to itself and to the text; every optional part once."""
    rng = np.random.default_rng(7)
    length, grid, tensors = 24, 3 * 4 + 2, {}
    kinds = ["previous", "first", "mixed", "induction"]

    def add(at: str, heads: int, queries: int, keys: int) -> np.ndarray:
        w = rng.random((heads, queries, keys)).astype(np.float32) ** 6
        w /= w.sum(-1, keepdims=True)
        tensors[at + "weights"] = np.round(254 * np.sqrt(w)).astype(np.uint8)
        tensors[at + "map"] = w
        tensors[at + "mass"] = w.mean(1)
        tensors[at + "rows/entropy"] = -(w * np.log(w + 1e-30)).sum(-1).astype(np.float32)
        return w

    def answer(loss: float) -> dict[str, Any]:
        losses = [loss + 0.1 * n * (loss - 2) for n in range(length - 1)]
        return {"loss": loss, "losses": losses, "next": [{"token": HOSTILE[n], "p": 0.5 / (n + loss)} for n in range(10)]}

    def layer(name: str, queries: int, keys: int, **more: Any) -> dict[str, Any]:
        info = [{"kind": kinds[h], "share": 0.5 + h / 10, "first": 0.1 * h, "entropy": 2 - h / 4, "cut loss": h / 10 - 0.1} for h in range(4)]
        return {
            "name": name,
            "heads": 4,
            "kv_heads": 2,
            "q_len": queries,
            "kv_len": keys,
            "head_info": info,
            "errors": {"weights": 0.004},
            **more,
        }

    for v in range(2):
        for n in range(2):
            add(f"{v}/{n}/", 4, length, length)
    add("2/0/", 4, grid, grid)
    add("3/0/", 4, grid, length)
    # Layer 0 of the first view has q, k and lse of one head: bf16 in two parts.
    q, k = rng.standard_normal((1, length, 8)).astype(np.float32), rng.standard_normal((1, length, 8)).astype(np.float32)
    tensors["0/0/q"], tensors["0/0/k"], tensors["0/0/lse"] = (
        q,
        k,
        np.log(np.exp(q @ k.transpose(0, 2, 1) * 0.5).sum(-1)).astype(np.float32),
    )
    # What its heads write: norms, and of the last three queries (keys) the words that each raises and lowers.
    tensors["0/0/norms"] = (1 + rng.random((4, length))).astype(np.float32)
    tensors["0/0/push"], tensors["0/0/ov"] = (np.resize(np.arange(24), (4, 3, n)).astype(np.float32) for n in (4, 2))
    tensors["0/0/push_by"] = np.resize(np.array([2, 1, -1, -3], np.float32), (4, 3, 4))
    tokens = (HOSTILE + [f" word{n}" for n in range(length)])[:length]
    self_layers = [
        layer("h.0", length, length),
        layer("h.1", length, length, formula={"refused": "this layer drops weights below 1 %"}),
    ]
    file = {
        "title": "two models <b>",
        "notes": ["made by a test"],
        "words": tokens,
        "texts": [{"name": "text", "tokens": tokens, "answer": 20}, {"name": "image", "tokens": None, "length": grid, "image": {"start": 2, "height": 3, "width": 4}}],
        "views": [
            {"name": "one", "group": "model", "kind": "self", "queries": 0, "keys": 0, **answer(2.0),
             "layers": [layer("h.0", length, length, formula={"scale": 0.5}, exact=[1], exact_kv=[0]), self_layers[1]]},
            {"name": "two", "kind": "self", "queries": 0, "keys": 0, "layers": self_layers, **answer(2.5),
             "cut": {"of": 0, "heads": [[0, 1], [1, 2]], "with": "mean", "tokens": 0.25, "others": [[1, 0, 0.125]]}},
            {"name": "image", "kind": "self", "queries": 1, "keys": 1, "layers": [layer("i.0", grid, grid)]},
            {"name": "cross", "kind": "cross", "queries": 1, "keys": 0, "layers": [layer("c.0", grid, length)]},
        ],
    }  # fmt: skip
    if change is not None:
        change(file)
    return tensors, {"format": "qkv.explorer.1", "explorer": json.dumps(file)}
