"""The house's rules that a reader of text can check: length, first lines, leftovers, paths of one machine."""

import re

import tree

HARD_LINES, SOFT_LINES = 800, 400
MAX_BYTES = 1 << 20
WIDTH = {".h": 120, ".cc": 120, ".md": 160}
TEXT_SUFFIXES = {".h", ".cc", ".py", ".sh", ".cmake", ".in", ".txt", ".md", ".json", ""}
# Written in pieces, so that this file does not find itself.
LEFTOVERS = re.compile("|".join((r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bX" + r"XX\b", "<<<<" + "<<<")))
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:" + "|".join(("wo" + "rk", "ho" + "me", "ro" + "ot")) + r")/")
# A question may; a sentence that explains names its subject first.
OPENING = re.compile(r"(?:^|[.:] |\*\*)Wh(?:at|ich) [^?]*$")
TEMPORARY = re.compile(r'"/t' + r"mp\b")


def opens_well(path, lines):
    """A comment first; the .cc beside a header of the same name may leave it to the header."""
    first = lines[0] if lines else ""
    own_header = re.match(rf'#include "(.*/)?{path.stem}\.h"', first)
    return first.startswith("//") or (path.suffix == ".cc" and own_header is not None)


def may_be_broken(path, line):
    """Not a table's row, a picture, a link, a command, or Han text, whose paragraph is one line."""
    return path.suffix != ".md" or not re.search(r"^\s*\||^!\[|^    |[\u4e00-\u9fff]|https?://", line)


def text_problems(path, name, text):
    lines = text.splitlines()
    is_code = path.suffix in (".h", ".cc", ".py")
    if is_code and len(lines) > HARD_LINES:
        yield f"{name}: {len(lines)} lines, at most {HARD_LINES}"
    elif is_code and len(lines) > SOFT_LINES:
        print(f"note: {name}: {len(lines)} lines, large above {SOFT_LINES}")
    if path.suffix in (".h", ".cc") and not opens_well(path, lines):
        yield f"{name}:1: a file opens with a comment: what it is, its sources"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield f"{name}: no #pragma once"
    for number, line in enumerate(lines, 1):
        if len(line) > WIDTH.get(path.suffix, 1000) and may_be_broken(path, line):
            yield f"{name}:{number}: {len(line)} characters, at most {WIDTH[path.suffix]}"
        if path.suffix == ".md" and not line.startswith(("#", "    ")) and OPENING.search(line):
            yield f"{name}:{number}: a sentence opens with What or Which: {line[:80]}"
        if LEFTOVERS.search(line):
            yield f"{name}:{number}: leftover: {line.strip()}"
        if MACHINE_PATHS.search(line):
            yield f"{name}:{number}: path of one machine: {line.strip()}"
        if path.suffix in (".h", ".cc") and not name.startswith("tests/") and TEMPORARY.search(line):
            yield f"{name}:{number}: temporary folder by name: {line.strip()}"


def main():
    problems, read = [], 0
    for path in tree.files():
        name = tree.name_of(path)
        if path.stat().st_size > MAX_BYTES:
            problems.append(f"{name}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
        if path.suffix not in TEXT_SUFFIXES or "/data/" in name:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name}: not UTF-8")
            continue
        read += 1
        problems += text_problems(path, name, text)
    return problems, f"{read} text files read"
