"""Every block of Python in the README, in docs/python.md, docs/layers.md and docs/explore.md runs, from the top of its page to the bottom."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ("torch", "jax", "transformers")


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/layers.md", "docs/explore.md"])
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks, f"{page} shows no Python"
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        if any(f"import {name}" in block[1] and importlib.util.find_spec(name) is None for name in LIBRARIES):
            continue
        code = "\n" * line + block[1]  # errors name the page's own lines
        exec(compile(code, str(ROOT / page), "exec"), namespace)
