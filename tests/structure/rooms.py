"""The folder tree is the architecture: each folder is a room with one sentence in docs/dev/house.md, small enough to see at a glance.

Reads the lines `path/  sentence` of that page's indented blocks.
"""

import re

import tree

PAGE = tree.ROOT / "docs/dev/house.md"
HOUSE = ("include", "src", "cli", "lesson", "python", "tests")
MOST_FILES = 25
# Data lies beside the tests that read it; each file of it is a case, none is code.
DATA = re.compile(r"(^|/)(data|corpus)(/|$)")
OUTPUTS = {".pdf", ".png", ".svg", ".html", ".npy", ".safetensors"}
ROOM = re.compile(r"^ {4}([\w./-]+)/ {1,}(\S.*)$")


def rooms_of_page():
    """The folders of the page, in its order."""
    matches = map(ROOM.match, PAGE.read_text(encoding="utf-8").splitlines())
    return [match.group(1) for match in matches if match]


def files_by_folder():
    """{folder: how many files lie directly in it}, data apart."""
    counts = {}
    for path in tree.files(HOUSE):
        folder = tree.name_of(path.parent)
        if not DATA.search(folder):
            counts[folder] = counts.get(folder, 0) + 1
    return counts


def is_output(file):
    """A file in the root as a run writes it, which .gitignore does not know."""
    return file.suffix in OUTPUTS and f"/{file.name}" not in (tree.ROOT / ".gitignore").read_text(encoding="utf-8").split()


def main():
    page, counts = rooms_of_page(), files_by_folder()
    problems = [f"{folder}/: {count} files, at most {MOST_FILES}" for folder, count in counts.items() if count > MOST_FILES]
    problems += [f"{folder}/: has no sentence in docs/dev/house.md" for folder in sorted(set(counts) - set(page))]
    problems += [f"docs/dev/house.md: no folder {room}/ with files" for room in page if room not in counts]
    problems += [f"docs/dev/house.md: {room}/ is there twice" for room in sorted(set(page)) if page.count(room) > 1]
    problems += [f"{file.name}: what a run wrote does not belong in the root" for file in tree.ROOT.iterdir() if is_output(file)]
    problems += [f"{file.name}: no program belongs in the root" for file in tree.ROOT.glob("*.py")]
    if not counts:
        problems.append("no folders found: the test reads the wrong folders")
    return problems, f"{len(counts)} rooms, the fullest of {max(counts.values(), default=0)} files"
