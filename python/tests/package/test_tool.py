"""`python -m qkv` and the command `qkv`: the tool of the package, its output and exit codes; docs/practice.md names exercises and mistakes
that there are. What pages show of the tool's output: tests/judge/sessions.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import qkv
from qkv import __main__ as tool
from qkv import _nn

ROOT = Path(__file__).resolve().parents[3]
needs_tool = pytest.mark.skipif(not tool.TOOL.is_file(), reason="the tool is not in the package")


def run(*arguments: str, program: tuple[str, ...] = ("-m", "qkv")) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *program, *arguments], capture_output=True, text=True, check=False, timeout=60)


@needs_tool
def test_runs() -> None:
    done = run("info", "--json")
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(done.stdout)
    assert told["version"] == qkv.__version__
    told = run("--help")
    assert told.returncode == 0 and re.search(r"\n  info .*\n  explore .*\n\n", told.stdout)


@needs_tool
def test_exit_codes() -> None:
    done = run("no-such-command")
    assert done.returncode == 2 and done.stderr.endswith("info, explore\n")
    done = run("map", "nowhere.safetensors", "--out", "map.svg")
    assert done.returncode == 2 and "nowhere.safetensors" in done.stderr and len(done.stderr.splitlines()) == 1


@needs_tool
def test_pictures_without_pango(tmp_path: Path) -> None:
    """The package's tool draws what needs no fonts, and says in one line what draws the others."""
    np.save(tmp_path / "w.npy", np.eye(3, dtype=np.float32))
    assert run("map", str(tmp_path / "w.npy"), "--out", str(tmp_path / "map.svg")).returncode == 0
    if _nn.draws_text():
        pytest.skip("this package has Pango")
    for ending in ("png", "pdf"):
        done = run("map", str(tmp_path / "w.npy"), "--out", str(tmp_path / f"map.{ending}"))
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "without Pango" in done.stderr and "pip install matplotlib" in done.stderr and ".svg" in done.stderr


@needs_tool
@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor")
def test_without_standard_output() -> None:
    done = subprocess.run(["sh", "-c", f"'{sys.executable}' -m qkv --version >&-"], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1 and "could not be written" in done.stderr and "Traceback" not in done.stderr


def test_from_python() -> None:
    """The console script's function; with arguments it comes back."""
    assert tool.main(["mask", "causal", "--draw"]) == 0
    assert tool.main(["no-such-command"]) == 2
    done = run(
        "causal",
        "--draw",
        program=("-c", "import sys; sys.argv.insert(1, 'mask'); from qkv.__main__ import main; sys.exit(main())"),
    )
    assert done.returncode == 0 and "1 0 0" in done.stdout


@needs_tool
def test_numpy_of_explain_backward() -> None:
    """The lines of NumPy that `qkv explain --backward` prints give the numbers that it prints."""
    told = json.loads(run("explain", "--backward", "--json").stdout)
    back, layer = told["backward"], told["layer"]
    found: dict[str, object] = {}
    exec(back["numpy"], found)
    for name in ("dout", "dO", "P", "dV", "dP", "delta", "J", "dS", "dQ", "dK", "dW_q", "dW_k", "dW_v", "dW_o", "dx"):
        np.testing.assert_allclose(found[name], back[name], rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(found["out"], layer["out"][0], rtol=0, atol=1e-5)


@needs_tool
def test_numpy_example_of_explain() -> None:
    """Five tokens of NumPy's legacy generator, seed 0, bit for bit; weights and outputs by NumPy."""
    told, state = json.loads(run("explain", "--json").stdout)["numpy"], np.random.RandomState(0)
    q, k, v = (state.randn(5, 8) for _ in range(3))
    assert all(np.array_equal(told[name], x) for name, x in zip("qkv", (q, k, v)))
    for before, kept in (("", np.ones((5, 5))), ("causal_", np.tri(5))):
        weights = kept * np.exp(q @ k.T / np.sqrt(8))
        weights /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(told[before + "weights"], weights, rtol=0, atol=1e-12)
        np.testing.assert_allclose(told[before + "out"], weights @ v, rtol=0, atol=1e-12)


def test_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(tool, "TOOL", tmp_path / "qkv")
    assert tool.main(["info"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and str(tmp_path) in said.err and "pip install" in said.err


@needs_tool
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


@needs_tool
def test_exercises_and_mistakes_are_real() -> None:
    page = (ROOT / "docs/practice.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w-]+)` \|.*\|([^|]*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == [task["name"] for task in json.loads(run("practice", "--json").stdout)]
    named = {mistake for _, mistakes in rows for mistake in re.findall(r"`([\w-]+)`", mistakes)}
    assert named <= {entry["id"] for entry in json.loads(run("judge", "--catalogue", "--json").stdout) if entry["kind"] == "mistake"}
