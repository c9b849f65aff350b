"""Every script in examples/python runs to its end; those that import a library that is not there are skipped."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from support import run_program

SCRIPTS = sorted((Path(__file__).resolve().parents[3] / "examples" / "python").glob("*.py"))
LIBRARIES = ("torch", "jax", "transformers", "peft")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_runs(script: Path, tmp_path: Path) -> None:
    text = script.read_text(encoding="utf-8")
    for name in LIBRARIES:
        if re.search(rf"^(import|from) (qkv\.)?{name}\b", text, re.MULTILINE) and importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    assert run_program(script, tmp_path)
