"""docs/concepts/limits.md lists every UnsupportedError that the library throws, by its words; and lists none that is gone.

The table's first column holds the longest piece of text of each error, in backquotes.
"""

import re

import tree

PAGE = tree.ROOT / "docs" / "concepts" / "limits.md"
HEADING = "## Every UnsupportedError"
THROWN = re.compile(r"(?:check<UnsupportedError>|fail<UnsupportedError>|throw UnsupportedError)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
FUNCTION = re.compile(r"^\[\w+\] ")  # of texts that name their function themselves


def call_at(text, begin):
    """The text of a call's arguments: up to the parenthesis that closes the one before `begin`."""
    depth, inside = 1, False
    for at in range(begin, len(text)):
        if text[at] == '"' and text[at - 1] != "\\":
            inside = not inside
        elif not inside and text[at] in "()":
            depth += 1 if text[at] == "(" else -1
            if depth == 0:
                return text[begin:at]
    return text[begin:]


def words_of(call):
    joined = re.sub(r'"\s+"', "", call)  # literals side by side are one
    return max((FUNCTION.sub("", literal).strip() for literal in LITERAL.findall(joined)), key=len, default="")


def main():
    page = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([^`]*)` \|", page.partition(HEADING)[2], re.MULTILINE)
    problems, thrown = [], set()
    for path in tree.cpp_files(("src", "include")):
        text = path.read_text(encoding="utf-8")
        for match in THROWN.finditer(text):
            words = words_of(call_at(text, match.end()))
            thrown.add(words)
            if words not in listed:
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{tree.name_of(path)}:{line}: not in {tree.name_of(PAGE)}: {words!r}")
    problems += [f"{tree.name_of(PAGE)}: nothing throws {words!r}" for words in listed if words not in thrown]
    return problems, f"{len(thrown)} texts of UnsupportedError"
