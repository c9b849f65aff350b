"""Names that files of one compilation unit (qkv_unity) define twice in anonymous namespaces.

    Argument: BUILD_TREE

The compiler refuses two of one name in one scope. In scopes within each other, such as qkv and qkv::io, the inner hides the outer without a
word, and -Wshadow says nothing. Constants, types and functions of equal parameters count.
"""

import re
from pathlib import Path

import tree

INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
BLOCK = re.compile(r"^namespace (?:\w[\w:]* )?\{|^namespace \{|^\}  // namespace.*$", re.MULTILINE)
CONSTANT = re.compile(
    r"^(?:inline )?(?:static )?(?:constexpr|const|constinit)\b[^;=(){}]*?\b(\w+)(?:\[[^\]]*\])*(?: =|\{|;)([^;{]*)", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class|enum(?: class)?) (\w+)", re.MULTILINE)
FUNCTION = re.compile(
    r"^(?!return|using|typedef|struct|class|enum|namespace|template|else)\w[\w:<>,*& ]*?[ *&](\w+)"
    r"\(([^;{}]*?)\)(?: const)?(?: noexcept)? \{", re.MULTILINE)


def anonymous(text):
    """The text of a file's anonymous namespaces."""
    depth, kept, last, inside = [], [], 0, False
    for match in BLOCK.finditer(text):
        if inside:
            kept.append(text[last : match.start()])
        last = match.end()
        if match.group().startswith("}"):
            if depth:
                depth.pop()
        else:
            depth.append(match.group() == "namespace {")
        inside = any(depth)
    return "\n".join(kept)


def names(text):
    """Each constant, type, and function with the types of its parameters."""
    for match in CONSTANT.finditer(text):
        yield match.group(1)
        yield from re.findall(r", (\w+) =", match.group(2))
    yield from TYPE.findall(text)
    for match in FUNCTION.finditer(text):
        types = (re.sub(r"\s*\b\w+\s*(=.*)?$", "", part.strip()) for part in match.group(2).split(","))
        yield f"{match.group(1)}({', '.join(types)})"


def main(build_tree):
    problems, units, count = [], 0, 0
    for unit in sorted(Path(build_tree).rglob("Unity/unity_*.cxx")):
        units += 1
        first = {}
        for source in map(Path, INCLUDE.findall(unit.read_text(encoding="utf-8"))):
            if not source.is_relative_to(tree.ROOT) or not source.is_file():
                continue  # generated
            for name in set(names(anonymous(source.read_text(encoding="utf-8")))):
                count += 1
                if first.setdefault(name, source) != source:
                    problems.append(f"{unit.parent.parent.name}, {unit.name}: {name} in {tree.name_of(first[name])} "
                                    f"and {tree.name_of(source)}")
    if units and not count:
        problems.append("no names found: the test reads the wrong folders")
    return problems, f"{units} units, {count} names"
