"""qkv.judge: names the mistake in attention written by hand. The runner (runner/) finds, fills and calls the code; the engine
makes the probes and the verdict."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import _engine
from .runner import files
from .runner.answering import answer
from .runner.contracts.tasks import FUNCTIONS
from .runner.describing import as_json, subject_of_file, subject_of_object
from .runner.errors import People, Stop
from .runner.subject import Subject
from .runner.trace.where import find_line

_ALONE = threading.RLock()  # standard output, imports and random states are the process's

__all__ = ["Check", "Convention", "Finding", "Mistake", "judge"]


@dataclass(frozen=True)
class Mistake:
    """`says` what is wrong, `hint` points at it; `same_as` are ids that are one and the same function here."""

    id: str
    says: str = ""
    hint: str = ""
    evidence: str = ""
    term: str = ""
    formula: str = ""
    part: str = ""
    read: str = ""
    same_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class Convention:
    """Another legal spelling that the code follows."""

    id: str
    says: str = ""


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    ok: bool = True
    asked: bool = True
    detail: str = ""


@dataclass(frozen=True, repr=False)
class Finding:
    """The result of judge(). ``print(finding)`` prints it; ``bool(finding)``: right, or right by another convention.

    `verdict`: "right", "convention", "wrong" (`mistakes` together explain the output), "unknown" (no mistake of the catalogue
    does), "failed" (the code could not be run), "unfilled" (a skeleton).
    `line`: of the code, the first whose value leaves the textbook, shown in `where`; None where that is not known.
    """

    verdict: str
    file: str = ""
    name: str = ""
    task: str = ""
    mistakes: tuple[Mistake, ...] = ()
    conventions: tuple[Convention, ...] = ()
    checks: tuple[Check, ...] = ()
    untried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: str = ""
    line: int | None = None
    where: str = ""
    traceback: str = ""
    seconds: float = 0.0
    text: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return self.verdict in ("right", "convention")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from .page import page

        return page(self)

    def __repr__(self) -> str:
        ids = [one.id for one in (*self.mistakes, *self.conventions)]
        return f"Finding({self.verdict!r}{''.join(f', {one}' for one in ids)})"


def _known(cls: type, values: Mapping[str, Any]) -> Any:
    """A dataclass from a dict that may hold more."""
    names = {one.name for one in fields(cls)}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in names})


@contextlib.contextmanager
def _torch_apart() -> Iterator[None]:
    """Its random numbers go on afterwards as if nothing had been called, and gradients are on or off as before. One thread: arrays are
    small, and threads that wait for each other on a busy machine take many times as long."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(torch.is_grad_enabled()):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been called; what the code prints is dropped."""
    state = np.random.get_state()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        with _torch_apart(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            try:
                yield
            finally:
                np.random.set_state(state)


def _file_and_name(text: str) -> tuple[str, str | None]:
    """Of "FILE" or "FILE:NAME"; FileNotFoundError."""
    file, _, name = (text, "", "") if Path(text).is_file() else text.rpartition(":")
    if not Path(file).is_file() or not file:
        raise FileNotFoundError(f"[judge] no such file: {text}")
    return file, name or None


@contextlib.contextmanager
def _imports_of(file: str) -> Iterator[None]:
    """Afterwards what it imported from its own folder is forgotten: the next judgement reads it anew."""
    path, before, people = sys.path[:], set(sys.modules), People(Path(file).resolve() if file else "")
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, writes
        for name in set(sys.modules) - before:
            if file and people.owns(getattr(sys.modules[name], "__file__", None) or "<built in>"):
                del sys.modules[name]


def judge(
    code: Callable[..., Any] | str | os.PathLike[str], task: str | None = None, map: Mapping[str, str] | None = None,
    init: Mapping[str, Any] | None = None, hint: bool = False, lang: str = "en",
) -> Finding:
    """Judges attention written by hand: right, or what is wrong with it, in one sentence, with the smallest counter-example.

        class MultiHeadAttention(torch.nn.Module): ...  # (embed_dim, num_heads); forward(x [B, L, E], mask [B, 1, L, L])
        print(qkv.judge(MultiHeadAttention))

        def sdpa(q, k, v, mask=None): ...          # [B, H, Tq, d], [B, H, Tk, d]; mask bool [B, 1, Tq, Tk], True = may attend
        assert qkv.judge(sdpa)

    `code` is a function on NumPy arrays or PyTorch tensors, a class (it is constructed with small sizes by the usual names of
    arguments), a module that exists (a copy is judged; its own parameters stay as they are), or the path of a Python file,
    "mine.py" or "mine.py:MyAttention", which is read anew each time. Its shapes are the contract of its task: ``qkv practice
    TASK`` prints it. Parameters are read from the object and set by the judge.

    `task`: a name of ``qkv practice``; None: guessed from the name, the arguments and the parameters, and said in `notes`.
    `map`: a contract's name to yours, {"W_q": "query"}, where parameters cannot be told apart.
    `init`: arguments of the constructor, {"dim": 48, "heads": 4}.
    `hint`: the text points at the mistake without naming it.
    `lang`: "en", or "zh": sentences, hints and labels in Chinese; ids and verdicts stay.

    The code runs in this process, without limits of time or memory: a file of somebody else's belongs in ``qkv judge FILE``,
    which runs it in a child process under limits. Its output is dropped, and meanwhile that of other threads; NumPy's and PyTorch's
    random states are restored. Calls of several threads wait for each other.

    Raises TypeError for what cannot be called, FileNotFoundError, ValueError for an unknown task. Errors of the code are the
    verdict "failed".
    """
    file, chosen = _file_and_name(os.fspath(code)) if isinstance(code, (str, os.PathLike)) else ("", None)
    if not file and not callable(code):
        raise TypeError(f"[judge] code must be a function, a class, a module or a path: got {type(code).__name__}")
    if task is not None and task not in FUNCTIONS:
        raise ValueError(f"[judge] task must be one of {', '.join(FUNCTIONS)}: got {task!r}")
    if lang not in ("en", "zh"):
        raise ValueError(f'[judge] lang must be "en" or "zh": got {lang!r}')
    begin, request = time.perf_counter(), {"task": task, "map": dict(map or {}), "init": dict(init or {})}
    with _ALONE, _imports_of(file):
        try:
            with _undisturbed():
                if file:
                    subject = subject_of_file({"file": file, "name": chosen, **request})
                else:
                    subject = subject_of_object(code, request)
            found, text = exchanged(subject, file, hint, lang == "zh")
        except Stop as stop:
            said = _engine.in_chinese if lang == "zh" else str
            name = chosen or stop.about.get("name", "") if file else getattr(code, "__name__", type(code).__name__)
            failed = stop.about.get("check") or ("filled in" if stop.verdict == "unfilled" else "runs")
            found = {"verdict": stop.verdict, "file": file, "name": name, "task": task or "", "traceback": stop.traceback,
                     "checks": [{"name": failed, "ok": False, "detail": said(stop.says)}]}  # fmt: skip
            text = said(f"{stop.verdict}: {stop.says}") + (f"\n{stop.traceback}" if stop.traceback else "")
    for part, cls in (("mistakes", Mistake), ("conventions", Convention), ("checks", Check)):
        found[part] = [_known(cls, one) for one in found.get(part, [])]
    return cast(Finding, _known(Finding, {**found, "seconds": time.perf_counter() - begin, "text": text.rstrip("\n")}))


def exchanged(subject: Subject, file: str = "", hint: bool = False, chinese: bool = False, seed: int = 0) -> tuple[dict[str, Any], str]:
    """The finding as JSON and as text: the engine's probes, the code's answers to them, the line of the first that is wrong."""
    described = json.dumps(as_json(subject) | ({"file": file} if file else {}))
    probes = _engine.probes(described, seed)
    readings = range(max(1, len(subject.assignments)))
    with _undisturbed():
        answers = [[files.encode(*answer(subject, *files.decode(probe), reading)) for probe in probes] for reading in readings]

    def watch(reading: int, wrong: list[int], stages: list[bytes]) -> str:
        inputs = [(files.decode(probes[n]), files.decode(own)) for n, own in zip(wrong, stages)]
        with _undisturbed():
            return json.dumps(find_line(subject, reading, inputs))

    found, text = _engine.verdict(described, probes, answers, hint, chinese, watch)
    return json.loads(found), text
