"""Programs whose mistake is known: each row of mistakes/*.txt changes a statement or two of a right program.

    [mha exercise.v2 numpy]          the programs that are changed, in NumPy; no language: in both
    id id2   scores = scaled         one of these ids is expected, or `right`; the statement that sets `scores` becomes this one
        return joined                a row's further changes are indented
        + joined = 2 * joined        a new statement behind the one changed last
        old text => new text         text that occurs once; `...` at the end of the old text is the rest of its line

Right programs are bases/NAME.py (`xp` is the language's module; a function of LAYERS is a class in PyTorch), the solutions of `qkv practice`
(exercise.NAME), and others/NAME.py, in the spellings of people who did not know the judge. Not: spellings in which the whole program is a
person's own (wrong/).
"""

import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXERCISES = HERE.parent.parent / "cli/practice/exercises"
LANGUAGES = ("numpy", "torch")
HEADER = {
    "numpy": "import numpy as np\n\n\ndef softmax(x, axis):\n    e = np.exp(x - x.max(axis=axis, keepdims=True))\n"
    "    return e / e.sum(axis=axis, keepdims=True)\n",
    "torch": "import torch\nfrom torch import nn, softmax\n",
}
LAYERS = ("mha", "cache")
LAYER = """class Layer(nn.Module):
    def __init__(self, width, heads=1):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width, bias={}) for _ in range(4))

    def forward(self, {}):
"""
TASKS = {"plain": "sdpa", "gated_block": "block", "merge_lse": "merge", "layer_backward": "backward"}


@dataclass(frozen=True)
class Program:
    where: str  # table and line
    base: str
    language: str
    ids: tuple  # none: right
    text: str
    lines: frozenset = frozenset()  # that differ from the right program's

    @property
    def task(self):
        """None: the judge finds it by itself."""
        if (HERE / "others" / f"{self.base}.py").exists():
            return None
        name = self.base.removeprefix("exercise.")
        return TASKS.get(name, name).replace("_", "-")

    @property
    def name(self):
        """The last function or class, which is judged. None: an exercise or a program of others/, which the judge finds by itself."""
        return None if self.task is None or self.base.startswith("exercise.") else re.findall(r"^(?:def|class) (\w+)", self.text, re.MULTILINE)[-1]

    @property
    def file(self):
        return f"{self.language}/{self.base}_{self.where.replace(':', '_')}_{(self.ids or ('right',))[0]}.py".replace("-", "_")


@functools.cache
def right(base, language):
    """The right program's text, before it is a class."""
    if base.startswith("exercise."):
        code = {}
        for file in ("parts", f"{language}_decoder", language):
            head, *sections = re.split(r"^# \[(.*)\]\n", (EXERCISES / f"{file}_exercises.py").read_text(encoding="utf-8"), flags=re.MULTILINE)
            code |= dict(zip(sections[::2], sections[1::2]))
        code = spelled(code[base.removeprefix("exercise.").replace("_", "-")], language)
        imports = head.split('"""\n', 2)[-1].lstrip("\n")
        return imports + re.sub(r"  +#.*", "", re.sub(r"^ *#.*\n", "", code, flags=re.MULTILINE)).rstrip("\n") + "\n"
    path = next(path for path in (HERE / f"bases/{base}.py", HERE / f"others/{base}.py") if path.exists())
    return spelled(re.sub(r"^from header import .*\n", HEADER[language], path.read_text(encoding="utf-8")), language)


def finished(text, base, language):
    """A function of LAYERS in PyTorch as a class: its matrices and biases are those of layers."""
    if base not in LAYERS or language != "torch":
        return text
    begin, arguments, body = re.fullmatch(r"(.*)def \w+\((.*)\):\n(.*)", text, re.DOTALL).groups()
    bias = "b_q" in arguments
    layer = r"(\w+|\(.*?\)) @ W_(\w)" + (r" \+ b_\2" if bias else "") + r"(?![.\w])"
    names = ((layer, r"self.to_\2(\1)"), (r"\bW_(\w)\b", r"self.to_\1.weight.T"), (r"\bb_(\w)\b", r"self.to_\1.bias"))
    for old, new in (*names, (r"\.T\.T", ""), (r"\bto_o\b", "to_out"), (r"\bnum_heads\b", "self.heads")):
        body = re.sub(old, new, body)
    arguments = [one for one in arguments.split(", ") if one == "x" or "=" in one]
    return begin + LAYER.format(bias, ", ".join(arguments)) + re.sub("^(?=.)", "    ", body, flags=re.MULTILINE)


def spelled(text, language):
    return re.sub(r"\bxp\.", {"numpy": "np.", "torch": "torch."}[language], text)


def changed(lines, change, last):
    """Makes one change in the program's lines; the number of the line that was changed."""
    if change.startswith("+ "):
        lines.insert(last + 1, indent(lines[last]) + change[2:])
        return last + 1
    old, arrow, new = (part.strip() for part in change.partition("=>"))
    if arrow:
        rest = old.endswith("...")
        old = old.removesuffix("...").strip() if rest else old
        found = [n for n, line in enumerate(lines) if old in line]
    else:
        target = "return " if old.startswith("return ") else old.split(" = ")[0] + " = "
        found = [n for n, line in enumerate(lines) if line.strip().startswith(target)]
    if len(found) > 1:  # helpers stand above
        begin = max(n for n, line in enumerate(lines) if re.match("def|class", line))
        found = [n for n in found if n > begin]
    if len(found) != 1:
        raise ValueError(f"`{change}`: its statement occurs {len(found)} times")
    at = found[0]
    if not arrow:
        lines[at] = indent(lines[at]) + old
    elif rest:
        before, _, after = lines[at].partition(old)
        lines[at] = before + (new.removesuffix("...") + after.lstrip() if new.endswith("...") else new)
    else:
        lines[at] = lines[at].replace(old, new).rstrip()
    return at


def differing(before, now):
    """The numbers of lines; of a line that is missing, that of the one that stands there now."""
    codes = difflib.SequenceMatcher(None, before.split("\n"), now.split("\n"), False).get_opcodes()
    return frozenset(n + 1 for kind, _, _, begin, end in codes if kind != "equal" for n in range(begin, max(end, begin + 1)))


def indent(line):
    return line[: len(line) - len(line.lstrip())]


def rows(path):
    """(line number, bases, languages, ids, changes) of a table."""
    bases, languages, row = (), (), None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if row and not line.startswith("    "):
            yield row
            row = None
        if line.startswith("["):
            words = line.strip("[]").split()
            bases = [word for word in words if word not in LANGUAGES]
            languages = [word for word in words if word in LANGUAGES] or LANGUAGES
        elif line.startswith("    "):
            row[-1].append(line.strip())
        elif line and not line.startswith("#"):
            ids, change = re.match(r"((?:[a-z0-9-]+ )+) +(.*)", line).groups()
            row = (number, bases, languages, tuple(ids.split()), [change])
    if row:
        yield row


def programs(every):
    """The right programs that rows change, then each row in each language: in all of its programs, or in one, taken in turn."""
    bases, wrong = {}, []
    for path in sorted((HERE / "mistakes").glob("*.txt")):
        for number, names, languages, ids, changes in rows(path):
            for turn, language in enumerate(languages, number):
                for base in names if every else [names[turn % len(names)]]:
                    where, text = f"{path.stem}:{number}", right(base, language)
                    itself = bases[base, language] = Program("itself", base, language, (), finished(text, base, language))
                    lines, last = text.split("\n"), None
                    try:
                        for change in changes:
                            last = changed(lines, spelled(change, language), last)
                    except ValueError as error:
                        raise SystemExit(f"{path.name}:{number}, {base} in {language}: {error}") from None
                    now = finished("\n".join(lines), base, language)
                    told = frozenset() if '"""' in "".join(changes) else differing(itself.text, now)  # what a docstring promises is in no line
                    wrong.append(Program(where, base, language, () if ids == ("right",) else ids, now, told))
    return [*bases.values(), *wrong]
