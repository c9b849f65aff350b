"""Every block of Python in the README, in docs/python.md, docs/layers.md and docs/explore.md runs, from the top of its page to the bottom,
and every script in examples/python; what imports a library that is not there is skipped."""

import importlib.util
import re
from pathlib import Path

import pytest
from support import run_program

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ("torch", "jax", "transformers", "peft")
SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))


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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    text = script.read_text(encoding="utf-8")
    for name in LIBRARIES:
        if re.search(rf"^(import|from) (qkv\.)?{name}\b", text, re.MULTILINE) and importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    assert run_program(script, tmp_path)
