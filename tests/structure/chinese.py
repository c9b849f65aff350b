"""README.zh-CN.md says what README.md and docs/practice.md say: every line of its commands and programs, every inline code, every number and
picture occurs there, and the exercises are the same. Not: the sentences, which nobody can compare by machine.

Comments in commands and programs are translated, so they are not compared.
"""

import re

import readme
import tree

CHINESE = tree.ROOT / "README.zh-CN.md"
ENGLISH = (tree.ROOT / "README.md", tree.ROOT / "docs/practice.md")
COMMENT = re.compile(r"\s+(#|//)\s.*$")
CODE = re.compile(r"`([^`\n]+)`")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
PICTURE = re.compile(r'<img src="([^"]+)"|!\[[^\]]*\]\(([^)]+)\)')
EXERCISE = re.compile(r"^\| (\d+) \| (`[\w-]+`) \|[^|]*\|([^|]*)\|([^|]*)\|", re.MULTILINE)
LINK = re.compile(r"\]\([^)]*\)")


def split(text):
    """(code, prose): lists of (line number, line); code is what stands in fences or is indented by four spaces."""
    code, prose, fenced = [], [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            code.append((number, line))
        else:
            prose.append((number, line))
    return code, prose


def without_comment(line):
    return COMMENT.sub("", line).rstrip()


def exercises(text):
    """(number, name, articles, languages) of each row; the articles without remarks."""
    return [(number, name, re.findall(r"\d{3}", articles), languages.split()) for number, name, articles, languages in EXERCISE.findall(text)]


def pictures(text):
    return {first or second for first, second in PICTURE.findall(text)}


def problems_of(chinese, english):
    code, prose = split(chinese)
    lines = {without_comment(line) for _, line in split(english)[0]}
    numbers = set(NUMBER.findall(english))
    for number, line in code:
        if without_comment(line) and without_comment(line) not in lines:
            yield f"{number}: not in the English pages: {without_comment(line).strip()}"
    for number, line in prose:
        for inline in CODE.findall(line):
            if inline not in english:
                yield f"{number}: not in the English pages: `{inline}`"
        for figure in NUMBER.findall(LINK.sub("", CODE.sub("", line))):
            if figure not in numbers:
                yield f"{number}: a number that the English pages do not have: {figure}"
    for picture in pictures(chinese) - pictures(english):
        yield f"not in the English pages: the picture {picture}"
    if exercises(chinese) != exercises(english):
        yield "the exercises are not those of the English page: number, name, articles, languages"


def main():
    chinese = CHINESE.read_text(encoding="utf-8")
    english = "\n".join(page.read_text(encoding="utf-8") for page in ENGLISH)
    problems = [f"{tree.name_of(CHINESE)}:{problem}" for problem in problems_of(chinese, english)]
    problems += [f"{tree.name_of(CHINESE)}: broken link {target}" for target in readme.broken_links(CHINESE)]
    for page, other in ((CHINESE, ENGLISH[0]), (ENGLISH[0], CHINESE)):
        if f"]({other.name})" not in "".join(page.read_text(encoding="utf-8").splitlines(keepends=True)[:4]):
            problems.append(f"{tree.name_of(page)}: no link to {other.name} at its top")
    if not exercises(chinese) or not split(chinese)[0]:
        problems.append("no exercises or commands found: the test reads the wrong folders")
    return problems, f"{len(split(chinese)[0])} lines of code, {len(exercises(chinese))} exercises"
