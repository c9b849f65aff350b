"""The programs in a markdown file: every ```cpp block that holds `int main` becomes a file, compiled and run by the tests.

A block without main is no program and would be skipped in silence, so it must say so itself: ```cpp fragment.
Usage: readme.py MARKDOWN OUTPUT_FOLDER    writes <stem>_<number>.cc, prints their paths separated by semicolons
       readme.py --check MARKDOWN...       fails on a block that is neither a program nor marked as a fragment, and on a link
                                           to a file or heading that is not there
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(cpp|c\+\+|cc|cxx)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path):
    """(line number, is a program, is marked as a fragment, text) of each C++ block."""
    text = path.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield line, "int main" in match.group(3), "fragment" in match.group(2), match.group(3)


def write_if_changed(path, text):
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def extract(markdown, folder):
    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for line, is_program, _, text in blocks(markdown):
        if is_program:
            path = folder / f"{markdown.stem.lower()}_{len(programs) + 1}.cc"
            write_if_changed(path, f"// {markdown.name}, line {line}.\n{text}")
            programs.append(str(path))
    print(";".join(programs), end="")


def anchors(path):
    """The names under which GitHub links to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(markdown):
    """The targets inside the repository that are not there."""
    for target in LINK.findall(BLOCK.sub("", markdown.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = markdown.parent / name if name else markdown
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield target


def check(markdowns):
    bad, programs = 0, 0
    for markdown in markdowns:
        for line, is_program, is_fragment, _ in blocks(markdown):
            programs += is_program
            if not is_program and not is_fragment:
                print(f"{markdown}:{line}: neither a program nor marked ```cpp fragment")
                bad += 1
        for target in broken_links(markdown):
            print(f"{markdown}: broken link {target}")
            bad += 1
    print(f"{programs} programs in {len(markdowns)} files; {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        sys.exit(check([Path(argument) for argument in sys.argv[2:]]))
    extract(Path(sys.argv[1]), Path(sys.argv[2]))
