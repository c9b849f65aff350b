"""Runs `qkv judge` over the corpus: every wrong program must be named, every right one right, every hostile one ended.

    python tests/judge/corpus.py --tool build/release/qkv --python PY [--filter TEXT] [--seeds N] [--step N] [--every] [--lines]
    ... --in-process          the runner in two processes that live on: PyTorch is imported twice, not once a program
    ... --hostile | --coverage | --exercises

The corpus: rows of mistakes/ (mistakes.py) and of habits (habits.py), written as files beside the tool, and whole files, wrong/
and right/, at whose end stands what is expected: RIGHT, EXPECTED {name: id of a mistake or of a convention}, TASK.
Prints a line for each miss and a summary; exit code 1 where something was missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import habits
import mistakes

HERE = Path(__file__).resolve().parent
#: Of the programs that rows of mistakes/ change: the share whose line is found.
EXACT = 0.9
EXIT = {"right": 0, "convention": 0, "wrong": 1, "unknown": 1, "failed": 2, "unfilled": 2}


class Tool:
    """The tool, run in an empty folder of its own: what a spelling writes or deletes there is nobody's."""

    def __init__(self, options):
        self.tool, self.python, self.slowest = str(Path(options.tool).resolve()), options.python, (0, "")
        self.folder = tempfile.TemporaryDirectory(prefix="qkv-corpus-")

    def __call__(self, *arguments, limit=60):
        """(finding, seconds); the finding holds `says` where it is not JSON."""
        python = [] if "--run" in arguments else ["--python", self.python]
        command = [self.tool, "judge", "--json", "--time-limit", str(limit), *python, *map(str, arguments)]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self.folder.name) as cwd:
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=cwd, timeout=limit + 60)
            except subprocess.TimeoutExpired:
                return {"verdict": "never ended"}, time.monotonic() - started
        seconds = time.monotonic() - started
        try:
            finding = json.loads(done.stdout)
        except ValueError:
            finding = {"verdict": "no JSON", "says": (done.stderr or done.stdout)[-300:].strip()}
        finding = finding[0] if isinstance(finding, list) and finding else finding
        if done.returncode != EXIT.get(finding.get("verdict")):
            finding["verdict"] = f"{finding.get('verdict')} with exit code {done.returncode}"
        self.slowest = max(self.slowest, (finding.get("seconds") or 0, str(arguments[-1])))
        return finding, seconds


def in_process(arguments):
    """The finding of the tool, by its runner and the package's engine in this process. `arguments` as on its command line."""
    from qkv._judge import exchanged
    from qkv._judge.runner.describing import subject_of_file
    from qkv._judge.runner.errors import Stop

    options = dict(zip(arguments[:-1:2], arguments[1:-1:2]))
    path, _, name = str(arguments[-1]).partition(":")
    request = {"file": path, "name": name or None, "task": options.get("--task"), "map": {}, "init": {}, "alternatives": 24}
    output = sys.stdout, sys.stderr
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return exchanged(subject_of_file(request), seed=int(options.get("--seed", 0)))[0]
    except Stop as stop:
        name = stop.about.get("check") or ("filled in" if stop.verdict == "unfilled" else "runs")
        return {"verdict": stop.verdict, "checks": [{"name": name, "ok": False, "detail": stop.says}], "traceback": stop.traceback}
    finally:
        sys.stdout, sys.stderr = output


class InProcess:
    """A Tool whose runner lives on, with PyTorch imported before it becomes two processes."""

    def __init__(self, options):
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.tool, self.slowest = str(Path(options.tool).resolve()), (0, "")
        import torch

        torch.optim.SGD([torch.zeros(1)])  # a step of training: imports more than PyTorch does
        self.pool = ProcessPoolExecutor(2)

    def __call__(self, *arguments):
        started = time.monotonic()
        finding = self.pool.submit(in_process, list(map(str, arguments))).result()
        seconds = time.monotonic() - started
        self.slowest = max(self.slowest, (seconds, str(arguments[-1])))
        return finding, seconds


def table(path):
    """The tables at a file's end; the file itself is not run."""
    text = path.read_text(encoding="utf-8")
    begin = re.search(r"^(?:RIGHT|EXPECTED) = ", text, re.MULTILINE)
    names = {}
    exec(text[begin.start() :], names)
    return names


def told(finding):
    """A line of what the tool found."""
    mistakes = [entry["id"] for entry in finding.get("mistakes") or []]
    conventions = [entry["id"] for entry in finding.get("conventions") or []]
    failed = [f"{check['name']}: {check.get('detail', '')}" for check in finding.get("checks") or [] if not check["ok"]]
    says = finding.get("says") or "".join(failed[:1])
    if finding.get("traceback"):
        says = f"{says} | {finding['traceback'][-200:]}"
    return f"{finding.get('verdict')} {mistakes} {conventions} line {finding.get('line')} {says}".replace("\n", " ")[:300]


def miss_of(finding, expected):
    """None where the one mistake or the convention is named, or nothing is wrong where nothing is expected."""
    mistakes = finding.get("mistakes") or []
    right = finding.get("verdict") in ("right", "convention") and not mistakes
    named = {entry["id"] for entry in finding.get("conventions") or []} if right else set()
    if len(mistakes) == 1:
        named = {mistakes[0]["id"], *mistakes[0].get("same_as", [])}
    if named & set(expected) or right and not expected or expected == ("wrong",) and not right:
        return None
    return f"expected {'|'.join(sorted(expected)) or 'right'}, got {told(finding)}"


def spellings(options):
    """(label, path, name, arguments, ids expected, lines of the mistake where they are known) of every program."""
    for path in sorted([*(HERE / "wrong").rglob("*.py"), *(HERE / "right").rglob("*.py")]):
        names = table(path)
        expected, tasks = names.get("EXPECTED", {}), names.get("TASK", {})
        for name in [*names.get("RIGHT", ()), *expected]:
            arguments = ["--task", tasks[name]] if name in tasks else []
            yield f"{path.relative_to(HERE)}:{name}", path, name, arguments, (expected[name],) if name in expected else (), ()
    folder = Path(options.tool).resolve().parent / "judge-corpus"
    generated = mistakes.programs(options.every)
    wrong = [program for program in generated if program.ids]
    for program in [*(program for program in generated if not program.ids), *wrong[:: options.step], *habits.programs()]:
        path = folder / program.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program.text, encoding="utf-8")
        arguments = ["--task", program.task] if program.task else []
        yield str(path), path, program.name, arguments, program.ids, program.lines


def in_parallel(work, items):
    """At most two at a time, results in order, as they come."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(work, items)


def corpus(tool, options):
    def work(item):
        (label, path, name, arguments, expected, lines), seed = item
        finding, _ = tool("--seed", seed, *arguments, f"{path}:{name}" if name else path)
        by_hand = 'by hand", ' in (finding.get("evidence") or "") if finding.get("verdict") == "wrong" and expected else None
        exact = finding["line"] in lines if lines and finding.get("verdict") in ("wrong", "unknown") else None
        if exact is False and options.lines:
            print(f"{label}: line {finding['line']}, not of {sorted(lines)}", flush=True)
        return label, seed, miss_of(finding, expected), exact, by_hand

    chosen = [spelling for spelling in spellings(options) if options.filter in spelling[0]]
    items = [(spelling, seed) for spelling in chosen for seed in range(options.seeds)]
    missed = 0
    if options.in_process:  # the tool's own way, a child process under limits, finds the same of a few
        for label, path, name, arguments, *_ in chosen[:: len(chosen) // 4 + 1]:
            asked = [*arguments, f"{path}:{name}" if name else path]
            here, there = told(tool("--seed", 0, *asked)[0]), told(Tool(options)("--seed", 0, *asked)[0])
            if re.sub(r"[\d.]+", "", here) != re.sub(r"[\d.]+", "", there):  # dropout draws as it likes
                missed += 1
                print(f"{label}: here {here}, by the tool {there}", flush=True)
    exact, by_hand = [], []
    for name, seed, miss, line, shown in in_parallel(work, items):
        exact += [line] if line is not None else []
        by_hand += [shown] if shown is not None else []
        if miss:
            missed += 1
            print(f"{name} (seed {seed}): {miss}", flush=True)
    found = sum(exact) / max(len(exact), 1)
    print(f"{sum(exact)} of {len(exact)} with the line of the mistake, {sum(by_hand)} of {len(by_hand)} with numbers for a pencil")
    if not options.filter and found < EXACT:
        missed += 1
        print(f"that is {found:.3f}; at least {EXACT} is asked for")
    print(f"{len(items)} judgements, {missed} missed; the slowest took {tool.slowest[0]:.2f} s: {tool.slowest[1]}")
    return missed


def alive(name):
    """Process ids by their name."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == name:
                found.add(entry.name)
        except OSError:
            pass
    return found


LEAVES = """import contextlib, ctypes, os, signal, sys, threading, time
import numpy as np

def leave_a_process():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("/proc/self/comm", "w") as name:
                name.write("qkv-grandchild")
            time.sleep(600)
        os._exit(0)

def sdpa(q, k, v, mask=None):
"""


def hostile(tool, options):
    """Each ends in time with the verdict that it may have, and leaves no process."""
    missed, files = 0, 0
    texts = re.split(r"^\[(.*?)\].*\n", (HERE / "hostile.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for head, text in zip(texts[1::2], texts[2::2]):
        verdicts, _, words = head.partition(": ")
        name, *expected = verdicts.split()
        if options.filter not in name:
            continue
        files += 1
        path = Path(tool.folder.name) / f"{name}.py"
        path.write_text(LEAVES + text.replace("---\n", "\n"), encoding="utf-8")
        before, limit = alive("qkv-grandchild"), 1 if words.startswith("within") else 10
        finding, seconds = tool("--task", "sdpa", "--memory", "2048", f"{path}:sdpa", limit=limit)
        problems = [] if finding.get("verdict") in expected else [f"expected {'|'.join(expected)}"]
        problems += [f"it does not say: {words}"] if words not in json.dumps(finding) else []
        problems += ["a process is left"] if alive("qkv-grandchild") - before else []
        problems += [f"{seconds:.0f} s"] if seconds > limit + 5 else []
        silent = finding.get("verdict") == "failed" and not finding.get("says") and not finding.get("checks")
        problems += ["nothing is said"] if silent else []
        if problems:
            missed += 1
            print(f"{name}: {', '.join(problems)}: {told(finding)}", flush=True)
    print(f"{files} hostile programs, {missed} missed")
    return missed or not files


def exercises(tool, options):
    """Each solution of `qkv practice` is right, each skeleton unfilled, in NumPy and PyTorch."""
    tasks = json.loads(subprocess.run([tool.tool, "practice", "--json"], capture_output=True, text=True, check=True).stdout)
    missed, items = 0, []
    with tempfile.TemporaryDirectory(prefix="qkv-corpus-") as scratch:
        for task in tasks:
            for language in set(task["languages"]) & {"numpy", "torch"}:
                for solved in (True, False):
                    path = Path(scratch) / language / ("solved" if solved else "skeleton") / (task["name"].replace("-", "_") + ".py")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    command = [tool.tool, "practice", task["name"], "--" + language, *(["--solution"] if solved else [])]
                    path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
                    items.append((path, task["name"], "right" if solved else "unfilled"))

        def work(item):
            return item, tool(str(item[0]))[0]

        for (path, task, expected), finding in in_parallel(work, items):
            convention = expected == "right" and finding.get("verdict") == "convention"  # NumPy has no erf for GELU
            if not (finding.get("verdict") == expected or convention) or (expected == "right" and finding.get("task") != task):
                missed += 1
                print(f"{path.relative_to(scratch)}: expected {expected} as {task}, got {finding.get('task')} {told(finding)}", flush=True)
    print(f"{len(items)} exercises, {missed} missed")
    return missed


def coverage(tool, options):
    """Every mistake of the tool's catalogue has two programs here, and every id expected here is in the catalogue."""
    done = subprocess.run([tool.tool, "judge", "--catalogue", "--json"], capture_output=True, text=True, check=True)
    kinds = {entry["id"]: entry.get("kind", "mistake") for entry in json.loads(done.stdout)}
    expected = [(label, ids) for label, _, _, _, ids, _ in spellings(options) if ids]
    count, missed = {name: 0 for name, kind in kinds.items() if kind == "mistake"}, 0
    for where, ids in expected:
        if ids[0] not in kinds and ids != ("wrong",):
            missed += 1
            print(f"{where}: {ids[0]} is not in the catalogue")
        for name in set(ids) & set(count):
            count[name] += 1
    for name, times in sorted(count.items()):
        if times < 2:
            missed += 1
            print(f"{name}: {times} programs")
    print(f"{len(count)} mistakes in the catalogue; {missed} without two programs here or unknown there")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--filter", default="", help="part of a program's path and name")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lines", action="store_true", help="prints each line that is not the mistake's")
    parser.add_argument("--step", type=int, default=1, help="of the wrong programs that rows make, every STEP-th")
    parser.add_argument("--every", action="store_true", help="each row in all of its programs")
    parser.add_argument("--in-process", action="store_true")
    others = (hostile, exercises, coverage)
    for kind in others:
        parser.add_argument(f"--{kind.__name__}", action="store_true", help=kind.__doc__)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tool = InProcess(options) if options.in_process else Tool(options)
    chosen = next((kind for kind in others if getattr(options, kind.__name__)), corpus)
    missed = chosen(tool, options)
    if options.in_process:
        tool.pool.shutdown()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
