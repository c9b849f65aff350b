"""The pages about `qkv judge` and `qkv practice`: docs/practice.md names exercises and mistakes that there are. What they show of the
tool's output: tests/judge/sessions.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from qkv import __main__ as tool

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not tool.TOOL.is_file(), reason="the tool is not in the package")


def said(*arguments: str) -> list[dict[str, str]]:
    done = subprocess.run([sys.executable, "-m", "qkv", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_the_editor_of_the_page_finds_the_line(tmp_path: Path) -> None:
    """Its task is run as the page says; its pattern finds file, line and sentence in what the tool prints."""
    page = (ROOT / "docs/practice.md").read_text(encoding="utf-8")
    task = json.loads(re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])["tasks"][0]
    file = tmp_path / "mine (2).py"
    file.write_text("\n\ndef causal_attention(q, k, v):\n    return q.nothing\n", encoding="utf-8")
    arguments = [one.replace("${file}", str(file)) for one in task["args"]]
    for language in ("en", "zh"):
        command = [sys.executable, "-m", task["command"], *arguments, "--python", sys.executable, "--lang", language]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.splitlines()
        pattern = task["problemMatcher"]["pattern"]
        (match,) = filter(None, (re.match(pattern["regexp"], line) for line in lines))
        assert [match[pattern[name]] for name in ("file", "line", "severity")] == [str(file), "4", "error"]
        assert "no attribute 'nothing'" in match[pattern["message"]]


def test_exercises_and_mistakes_are_real() -> None:
    page = (ROOT / "docs/practice.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w-]+)` \|.*\|([^|]*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == [task["name"] for task in said("practice", "--json")]
    named = {mistake for _, mistakes in rows for mistake in re.findall(r"`([\w-]+)`", mistakes)}
    assert named <= {entry["id"] for entry in said("judge", "--catalogue", "--json") if entry["kind"] == "mistake"}
