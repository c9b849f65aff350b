"""Public headers compile alone, with the warnings of the house as errors. Usage: headers.py COMPILER [FLAG...]

A header that a source of the library includes first was compiled so by the build: those are compiled here in one file, for their
warnings; each of the others in one of its own.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import tree

WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror".split()


def first_included():
    """What the sources of the library include before anything else."""
    found = (re.search(r'^#include [<"](.*)[>"]', path.read_text(encoding="utf-8"), re.MULTILINE) for path in sources())
    return {match[1] for match in found if match}


def sources():
    """Those that are compiled by themselves (QKV_UNITY joins the judge's)."""
    return [path for path in tree.cpp_files(("src",)) if path.suffix == ".cc" and "judge" not in path.parts]


def compile_alone(command, headers):
    """The compiler's complaint about a file that includes these headers and nothing else, or ''."""
    text = "".join(f'#include "{header}"\n' for header in headers)
    run = subprocess.run(command, input=text, capture_output=True, text=True)
    return "" if run.returncode == 0 else f"{', '.join(headers)}: not compiled alone:\n{run.stderr}"


def older_language(command):
    """The first error of C++17 must say what is wanted."""
    run = subprocess.run(command, input="#include <qkv/qkv.h>\n", capture_output=True, text=True)
    first = next((line for line in run.stderr.splitlines() if ": error: " in line), "nothing")
    return [] if "qkv needs C++20" in first else [f"C++17: the first error is {first}"]


def main():
    root = tree.ROOT / "include"
    headers = {path.relative_to(root).as_posix() for path in tree.cpp_files(("include",))}
    built = headers & first_included()
    files = [sorted(built), *([header] for header in sorted(headers - built))]
    command = [*sys.argv[1:], "-std=c++20", *WARNINGS, f"-I{root}", "-fsyntax-only", "-x", "c++", "-"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(lambda each: compile_alone(command, each), files) if text]
    problems += older_language([*sys.argv[1:], "-std=c++17", f"-I{root}", "-fsyntax-only", "-x", "c++", "-"])
    if not built or len(files) == 1:
        problems.append("no headers found: the test looks in the wrong place")
    tree.finish(problems, f"{len(files) - 1} headers compiled alone, {len(built)} by the build")


if __name__ == "__main__":
    main()
