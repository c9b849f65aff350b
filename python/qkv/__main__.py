"""``python -m qkv`` and the command ``qkv``: both run the C++ tool that is part of the package. One command is Python's, since it runs
PyTorch's models: ``explore`` (_explore/command.py)."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOL = Path(__file__).parent / "bin" / ("qkv.exe" if os.name == "nt" else "qkv")
NAME = "python -m qkv"  # the tool's argv[0]: it lists ``explore`` too (cli/main.cc)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool with this process's arguments; returns its exit code: 0 done, 1 the work failed, 2 wrong usage or input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["explore"]:
        from ._explore.command import main as explore

        return explore(given[1:])
    if not TOOL.is_file():
        print(
            f"qkv: the tool is missing: {TOOL}. Wheels carry it; `pip install .` from the sources builds it "
            "(needs CLI11, fmt and nlohmann_json).",
            file=sys.stderr,
        )
        return 1
    if os.name == "posix" and arguments is None:
        if sys.stdout is not None:
            sys.stdout.flush()
        os.execv(TOOL, [NAME, *given])  # this process becomes the tool: terminal, signals and exit code are its own
    return subprocess.run([NAME, *given], executable=TOOL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
