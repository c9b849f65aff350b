"""A Chinese page says what the English pages say: every line of its commands and programs, every inline code, every number and picture
occurs there, and the exercises are the same. Not: the sentences, which nobody can compare by machine; sessions, which are run again
(tests/judge/sessions.py); comments in commands and programs, which are translated.
"""

import re

import readme
import tree

README, PRACTICE = tree.ROOT / "README.md", tree.ROOT / "docs/practice.md"
PAGES = {tree.ROOT / "README.zh-CN.md": (README,), tree.ROOT / "docs/practice.zh-CN.md": (PRACTICE, README)}
SESSION = re.compile(r"^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
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
    return {(first or second).replace(".zh.svg", ".svg") for first, second in PICTURE.findall(text)}


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
    problems, lines, rows = [], 0, 0
    for page, english in PAGES.items():
        chinese = SESSION.sub(lambda session: "\n" * session[0].count("\n"), page.read_text(encoding="utf-8"))
        name, texts = tree.name_of(page), "\n".join(one.read_text(encoding="utf-8") for one in english)
        problems += [f"{name}:{problem}" for problem in problems_of(chinese, texts)]
        problems += [f"{name}: broken link {target}" for target in readme.broken_links(page)]
        for one, other in ((page, english[0]), (english[0], page)):
            if f"]({other.name})" not in "".join(one.read_text(encoding="utf-8").splitlines(keepends=True)[:4]):
                problems.append(f"{tree.name_of(one)}: no link to {other.name} at its top")
        lines += len(split(chinese)[0])
        rows += len(exercises(chinese))
    if not rows or not lines:
        problems.append("no exercises or commands found: the test reads the wrong folders")
    return problems, f"{lines} lines of code, {rows} exercises"
