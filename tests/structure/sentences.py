"""What the tool (zh/*.txt) and the lesson's page (lesson/text/zh.json) say in Chinese: every sentence and hint of the judge, every text of a
task and of a step has its Chinese, which holds each number, word of code and formula of the English and each of its marks; words of the
glossary; Chinese punctuation.
"""

import itertools
import json
import re

import tree

JUDGE, TOOL = tree.ROOT / "src/judge/text", tree.ROOT / "cli/support/zh"
TASKS = tree.ROOT / "python/qkv/_judge/runner/contracts/tasks.txt"
EXERCISES = tree.ROOT / "cli/practice/exercises"
LESSON = tree.ROOT / "lesson/text"
HAN = r"[\u3400-\u9fff]"
# Other words than the glossary's; 看 for attend, 注意力看 and the like.
AVOID = re.compile(r"看|目录|反问|编号|宽度|教科书|阶梯|令牌|标记|遮罩|蒙版|得分|隐藏|嵌入向量|激活(?!函数)")
PUNCTUATION = re.compile(rf"{HAN}\s*[,;:?!]|[,;:?!]\s*{HAN}|{HAN}\.(?!\w)|\({HAN}|{HAN}\)|[\uff0c\u3002\uff1b\uff1a\u3001] ")
MARK = re.compile(r"\{[^{}\"]*\}")
# English words that are code too, or stay as they are.
CODE = {
    "softmax", "dropout", "transpose", "exp", "tanh", "relu", "argmax", "detach", "numpy", "cos", "sin", "elu", "phi", "inf", "mod", "top-left",
    "bottom-right",
}  # fmt: skip
NOT_CODE = {"Jacobian", "NO", "OPTIONS", "REQUIRED", "s", "docs/lesson.md"}


def lines_of(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        line = re.sub(r"  # .*", "", line).rstrip()
        if line and not line.startswith("#"):
            yield line


def texts_of(path, known):
    """{key: texts}: sentences of an id, what a task teaches, its probes' names, inline hints, those of a hint's name; none twice."""
    texts, key = {}, ""
    for line in lines_of(path):
        if entry := re.match(r"(\[[\w-]+\]) (.*)", line):
            key = entry[1]
            name, text = entry.groups()
        elif line.startswith("or ") and "|" not in line:
            name, text = key, line[3:]
        elif entry := re.match(r"(\?|teaches|probe) ([^|]*[^| ])", line):
            name, text = f"{entry[1]} {key}", entry[2]
        elif entry := re.match(r"(?:.*; )?(hint [^:;]*): (.*)", line):
            name, text = entry.groups()
        else:
            continue
        if text not in known:
            texts.setdefault(name, []).append(text)
            known.add(text)
    return texts


def pairs(path):
    """(line number, English, Chinese) of `= ENGLISH` and the line below it."""
    english = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("= "):
            if english is not None:
                yield number, english, ""
            english = line[2:]
        elif line and not line.startswith("#"):
            yield number, english or "", line
            english = None


def code_words(english):
    """Numbers, formulas and words of code: what a translation keeps as it is."""
    text = MARK.sub(" ", english).replace("'s ", " ")
    for quoted in re.findall(r'"[^" ]+"|`[^` ]+`|--[\w-]+', text):
        yield quoted.strip('"')
        text = text.replace(quoted, " ")
    begins = True  # a capital there is only a sentence's
    for word in text.split():
        ends, bare = word[-1] in ".:;?!", word.strip(",.:;?!'\"").removesuffix("-th")
        if bare.startswith("(") and bare.endswith(")"):
            bare = bare[1:-1]
        while bare.count("(") < bare.count(")") and bare.endswith(")"):
            bare = bare[:-1]
        while bare.count("(") > bare.count(")") and bare.startswith("("):
            bare = bare[1:]
        plain = re.fullmatch(r"[A-Za-z]+(?:-[a-z]+)*(?:/[a-z]+)?", bare)
        capital = plain and any(c.isupper() for c in (bare[1:] if begins else bare))
        single = plain and len(bare) == 1 and bare not in "aAI"
        if bare and bare not in NOT_CODE and bare not in "-=*/+" and (not plain or capital or single or bare in CODE):
            yield bare
        begins = ends


def marks(text):
    """Names in braces; those without one are numbered. A name of one letter may be left out: a plural's."""
    names = [mark[1:-1] for mark in MARK.findall(text)]
    return {name or str(names[:n].count("")) for n, name in enumerate(names)}


def problems_of_pair(english, chinese):
    for word in set(code_words(english)):
        bounded = rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"
        if not re.search(bounded if word.isalnum() else re.escape(word), chinese):
            yield f"{word!r} of the English is missing: {english} / {chinese}"
    ours, theirs = marks(english), marks(chinese)
    if (theirs - ours) or any(len(mark) > 1 or mark.isdigit() for mark in ours - theirs):
        yield f"other marks: {english} / {chinese}"
    if found := AVOID.search(chinese):
        yield f"{found[0]} is no word of the glossary: {chinese}"
    if found := PUNCTUATION.search(chinese):
        yield f"punctuation {found[0]!r}: {chinese}"
    if re.search("[A-Za-z]", MARK.sub("", english)) and not re.search(HAN, chinese):
        yield f"no Chinese: {english} / {chinese}"


def problems_of_texts(english, chinese):
    for key in english.keys() | chinese.keys():
        ours, theirs = english.get(key, []), chinese.get(key, [])
        if len(ours) != len(theirs):
            yield f"{key}: {len(ours)} in English, {len(theirs)} in Chinese"
        for one, other in zip(ours, theirs, strict=False):
            for problem in problems_of_pair(one, other):
                yield f"{key}: {problem}"


def contracts(path):
    return {name: text for name, text in re.findall(r"(?m)^\[([\w-]+)\]\n((?:(?!\[\w[\w-]*\]$).*\n)*)", path.read_text(encoding="utf-8"))}


def problems_of_contracts():
    english, chinese = contracts(EXERCISES / "contracts.txt"), contracts(EXERCISES / "contracts.zh.txt")
    if english.keys() != chinese.keys():
        yield "contracts.zh.txt: other exercises than contracts.txt"
    table = re.compile(r"(?m)^((?:[ntc]+\|)?    \S.*?\]) {3,}\S")  # arguments with their shapes
    for name in english.keys() & chinese.keys():
        if table.findall(english[name]) != table.findall(chinese[name]):
            yield f"contracts.zh.txt, {name}: other arguments or shapes"
        for word in set(re.findall(r"\d+(?:\.\d+)?|\w+\([^)]*\)|\w+_\w+", english[name])):
            if word not in chinese[name]:
                yield f"contracts.zh.txt, {name}: {word!r} is missing"
        if found := AVOID.search(chinese[name]) or PUNCTUATION.search(chinese[name]):
            yield f"contracts.zh.txt, {name}: {found[0]!r}"


def problems_of_lesson(english, chinese, at="lesson"):
    """Both files have one form; what nobody reads as a sentence (names, commands, formulas) is the same in both."""
    if type(english) is not type(chinese):
        yield f"{at}: another form in Chinese"
    elif isinstance(english, dict):
        for key in english.keys() | chinese.keys():
            yield from problems_of_lesson(english.get(key), chinese.get(key), f"{at}/{key}")
    elif isinstance(english, list):
        for n, (one, other) in enumerate(itertools.zip_longest(english, chinese), 1):
            yield from problems_of_lesson(one, other, f"{at}/{n}")
    elif english != chinese:
        yield from (f"{at}: {problem}" for problem in problems_of_pair(str(english), str(chinese)))
    elif re.search("/(question|ask|try|broke|say)$", at):
        yield f"{at}: not in Chinese: {english}"


def main():
    problems, known, read = [], {}, set()
    for name in re.findall(r'"(mistakes-\w+.txt)"', (JUDGE.parent / "entry.h").read_text()) + [TASKS.name]:
        english = texts_of(TASKS if name == TASKS.name else JUDGE / name, read)
        chinese = texts_of(JUDGE / "zh" / name, set())
        problems += [f"zh/{name}: {problem}" for problem in problems_of_texts(english, chinese)]
        known.update({text: other for key, texts in english.items() for text, other in zip(texts, chinese.get(key, []), strict=False)})
    count = len(read)
    for path in (JUDGE / "zh/report.txt", *sorted(TOOL.glob("*.txt"))):
        for number, english, chinese in pairs(path):
            count += 1
            if english.endswith((".txt", ".json")):
                continue
            problems += [f"{tree.name_of(path)}:{number}: {problem}" for problem in problems_of_pair(english, chinese)]
            if english != english.strip():
                problems.append(f"{tree.name_of(path)}:{number}: never found: blanks around a sentence are cut before it is sought")
            if known.setdefault(english, chinese) != chinese:
                problems.append(f"{tree.name_of(path)}:{number}: two translations of: {english}")
    wanted = [text for path in EXERCISES.rglob("*.*") for text in re.findall(r"(?m)^ *(?:#|//) solution: (.+)", path.read_text(encoding="utf-8"))]
    wanted += [text for path in (JUDGE.parent / "probes").glob("*.cc") for text in re.findall(r'"(\w\w+ [\w ,]+)"', path.read_text())]
    problems += [f"not in Chinese: {text}" for text in sorted(set(wanted)) if text not in known]
    problems += problems_of_contracts()
    problems += problems_of_lesson(*(json.loads((LESSON / name).read_text(encoding="utf-8")) for name in ("en.json", "zh.json")))
    if count < 900:
        problems.append("few sentences found: the test looks in the wrong place")
    return problems, f"{count} sentences"
