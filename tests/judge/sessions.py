"""The sessions that documents show, run again: what stands below each `$ COMMAND` is what it prints.

A block of Python is the file that the next `qkv judge FILE` names; one that begins with `def` replaces that file's end from the function on.
--write puts into the document what is printed now. Not: commands that a document names without their output (tests/cli/pages_test.cc).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "README.zh-CN.md", "docs/practice.md", "docs/practice.zh-CN.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def save(code, file):
    name = re.match(r"def \w+\(", code)
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text((before[: before.index(name[0])] if name and before else "") + code, encoding="utf-8")


def run(page, options, folder):
    """The page as it would be with what is printed now."""
    environment = {"HOME": folder, "LANG": "C.UTF-8", "VIRTUAL_ENV": str(Path(options.python).absolute().parent.parent), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(options.tool).resolve().parent}:{os.environ['PATH']}"
    code = None

    def again(block):
        nonlocal code
        language, text = block.groups()
        if language == "python":
            code = text
        if language not in ("text", "console") or not text.startswith("$ "):
            return block[0]
        first = re.match(r"\$ qkv judge (\S+\.py)", text)
        if first and code is None and not Path(folder, first[1]).exists():  # a session in short, above its program
            return block[0]
        out = ""
        for command in re.findall(r"^\$ (.*)\n", text, re.MULTILINE):
            out += f"$ {command}\n"
            judged = re.search(r"qkv judge (\S+\.py)", command)
            if judged and code:
                save(code, Path(folder, judged[1]))
                code = None
            if exported := re.fullmatch(r"export (\w+)=(.*)", command):
                environment[exported[1]] = exported[2]
            else:
                out += subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True).stdout
        return f"```{language}\n{out}```"

    return BLOCK.sub(again, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    other = 0
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="qkv-session-") as folder:
            new = run(page, options, folder)
        if options.write:
            (ROOT / name).write_text(new, encoding="utf-8")
        for number, (old, now) in enumerate(zip(page.split("\n"), new.split("\n"), strict=False), 1):
            if old != now:
                other += 1
                print(f"{name}:{number}: stands there: {old}\n{name}:{number}: printed now:  {now}")
                break
    print(f"{len(PAGES)} pages, {other} that print something else")
    return other


sys.exit(main())
