"""`pytest --qkv FOLDER`: each Python file is a test, judged by `qkv judge` in a process of its own. Lies beside the package qkv, since
pytest imports this file whatever it runs."""

import fnmatch
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qkv", "attention written by hand, judged")
    group.addoption("--qkv", action="store_true", help="judge each Python file of the folders that are given: pytest --qkv FOLDER")
    group.addoption("--qkv-task", metavar="NAME", help="what each is to compute (default: found by qkv judge)")
    group.addoption("--qkv-hint", action="store_true", help="a question instead of the mistake")
    parser.addini("qkv_points", "points of a task, NAME=POINTS (default 1)", type="args")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("qkv"):
        for one in config.getini("qkv_points"):
            try:
                float(one.partition("=")[2])
            except ValueError:
                raise pytest.UsageError(f"qkv_points must be NAME=POINTS, such as sdpa=2: got {one}") from None
        config.pluginmanager.register(Folders(), "qkv-folders")


class Folders:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_collect_file(self, file_path: Any, parent: pytest.Collector) -> Iterator[None]:
        """Files of tests stay tests; no other one is imported."""
        outcome: Any = yield
        tests = ("conftest.py", "__init__.py", *parent.config.getini("python_files"))
        if file_path.suffix == ".py" and not any(fnmatch.fnmatch(file_path.name, one) for one in tests):
            outcome.force_result([Submission.from_parent(parent, path=file_path)])


class Submission(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield Judged.from_parent(self, name="judge")


class Wrong(Exception):
    """Its text is the finding."""


class Judged(pytest.Item):
    def runtest(self) -> None:
        import json
        import subprocess
        import sys
        import tempfile
        from pathlib import Path

        from qkv.__main__ import TOOL

        task, hint = self.config.getoption("qkv_task"), self.config.getoption("qkv_hint")
        with tempfile.TemporaryDirectory() as folder:
            sarif = Path(folder) / "found.sarif"
            command = [str(TOOL), "judge", str(self.path), "--sarif", str(sarif), "--python", sys.executable]
            command += (["--task", task] if task else []) + (["--hint"] if hint else [])
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
            if not sarif.exists():
                raise Wrong(done.stderr)
            found = json.loads(sarif.read_text(encoding="utf-8"))["runs"][0]
        if any(one["ruleId"] == "no-task" for one in found["results"]):
            pytest.skip(f"{self.path.name}: {found['results'][0]['message']['text']}")
        points = dict(one.split("=") for one in self.config.getini("qkv_points")).get(found["properties"]["task"], "1")
        self.user_properties += [*found["properties"].items(), ("points", "0" if found["results"] else points), ("of", points)]
        if found["results"]:
            raise Wrong(done.stdout)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Wrong) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.path.name
