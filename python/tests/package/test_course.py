"""Whole folders: `pytest --qkv FOLDER`, and the example of a course."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from qkv import __main__ as tool

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not tool.TOOL.is_file(), reason="the tool is not in the package")


def solution(task: str) -> str:
    command = [tool.TOOL, "practice", task, "--numpy", "--solution"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that is right, one that is wrong, two that no exercise asks for, and a test that is no submission."""
    (tmp_path / "sdpa.py").write_text(solution("sdpa"), encoding="utf-8")
    wrong = re.sub(r" / np\.sqrt\([^()]*\)", "", solution("causal"))
    assert wrong != solution("causal")
    (tmp_path / "causal.py").write_text(wrong, encoding="utf-8")
    (tmp_path / "helpers.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "other.py").write_text("def softcap_attention(q, k, v, cap=20.0):\n    return q * cap\n")
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nqkv_points = causal=2 sdpa=3\n")
    return tmp_path


def test_each_file_of_a_folder_is_a_test(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-rs", "--qkv", "--junitxml", "junit.xml", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 1 and "1 failed, 2 passed, 2 skipped" in done.stdout, done.stdout
    assert "test_own.py::test_own PASSED" in done.stdout and "wrong: no-scale\n" in done.stdout
    assert "nothing in helpers.py looks like attention" in done.stdout and "no exercise asks for what softcap" in done.stdout and "Traceback" not in done.stdout
    points = {}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if said:
            points[said["task"]] = (said["points"], said["of"], said["verdict"])
    assert points == {"sdpa": ("3", "3", "right"), "causal": ("0", "2", "wrong")}
    hinted = subprocess.run([*command, "--qkv-hint", "--qkv-task", "sdpa", "causal.py"], cwd=folder, capture_output=True, encoding="utf-8")
    assert hinted.returncode == 1 and "no-scale" not in hinted.stdout


@pytest.mark.parametrize("points", ["sdpa", "sdpa=two"])
def test_points_that_are_no_numbers_are_refused(folder: Path, points: str) -> None:
    (folder / "pytest.ini").write_text(f"[pytest]\nqkv_points = causal=2 {points}\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "--qkv", "."], cwd=folder, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 4 and f"qkv_points must be NAME=POINTS, such as sdpa=2: got {points}" in done.stderr and "Traceback" not in done.stderr


def test_without_the_option_it_costs_nothing(folder: Path) -> None:
    code = "import sys, pytest; pytest.main(['-q', '-p', 'no:cacheprovider']); print({'qkv', 'numpy', 'torch'} & set(sys.modules), 'pytest_qkv' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, encoding="utf-8", timeout=120)
    assert "1 passed" in done.stdout and done.stdout.endswith("set() True\n"), done.stdout


def test_files_of_a_course_may_lie_in_folders(folder: Path) -> None:
    (folder / "week1").mkdir()
    (folder / "causal.py").rename(folder / "week1/causal.py")
    (folder / "tasks.txt").write_text("week1/causal.py causal 2\n")
    arguments = [sys.executable, ROOT / "examples/course/points.py", "tasks.txt", "--out", "found"]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, encoding="utf-8", timeout=120)
    assert "| week1/causal.py | causal | 0/2 | wrong | no-scale |" in done.stdout, done.stderr
    assert (folder / "found/week1/causal.py.sarif").is_file() and (folder / "found/points.json").is_file()


def test_the_course_counts_its_points(folder: Path) -> None:
    """The commands of its workflow, but for the installation."""
    shutil.copytree(ROOT / "examples/course", folder / "course")
    commands = re.findall(r"- run: (python .*)", (folder / "course/judge.yml").read_text())
    assert len(commands) == 1
    summary = folder / "summary.md"

    def run() -> tuple[int, str]:
        arguments = [sys.executable, *commands[0].split()[1:]]
        done = subprocess.run(arguments, cwd=folder, capture_output=True, encoding="utf-8", timeout=120, env={"GITHUB_STEP_SUMMARY": str(summary)})
        assert not done.stderr and summary.read_text() + "\n" == done.stdout
        return done.returncode, done.stdout

    code, text = run()
    assert code == 1 and text.endswith("\n1 of 6 points\n") and "| causal.py | causal | 0/2 | wrong | no-scale |" in text
    assert "| mha.py | mha | 0/3 | missing |  |" in text
    found = json.loads((folder / "found/causal.py.sarif").read_text())
    assert found["runs"][0]["results"][0]["ruleId"] == "no-scale"
    for task in ("causal", "mha"):
        (folder / f"{task}.py").write_text(solution(task), encoding="utf-8")
    assert run()[0] == 0
    assert [row["points"] for row in json.loads((folder / "found/points.json").read_text())] == [1, 2, 3]
