"""qkv.judge: names the mistake in attention written by hand. The runner (runner/) finds, fills and calls the code; the engine
makes the probes and the verdict.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .. import _engine
from .runner import files
from .runner.answering import answer
from .runner.describing import as_json, subject_of_object
from .runner.errors import Stop
from .runner.tasks import FUNCTIONS

__all__ = ["Check", "Convention", "Finding", "Mistake", "judge"]


@dataclass(frozen=True)
class Mistake:
    """`says` what is wrong, `hint` points at it; `same_as` are ids that are one and the same function here."""

    id: str
    says: str = ""
    hint: str = ""
    evidence: str = ""
    term: str = ""
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
    detail: str = ""


@dataclass(frozen=True, repr=False)
class Finding:
    """The result of judge(). ``print(finding)`` prints it; ``bool(finding)``: right, or right by another convention.

    `verdict`: "right", "convention", "wrong" (`mistakes` together explain the output), "unknown" (no mistake of the catalogue
    does), "failed" (the code could not be run), "unfilled" (a skeleton).
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
    traceback: str = ""
    seconds: float = 0.0
    text: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return self.verdict in ("right", "convention")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        ids = [one.id for one in (*self.mistakes, *self.conventions)]
        return f"Finding({self.verdict!r}{''.join(f', {one}' for one in ids)})"


def _known(cls: type, values: Mapping[str, Any]) -> Any:
    """A dataclass from a dict that may hold more."""
    names = {one.name for one in fields(cls)}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in names})


def _finding(found: dict[str, Any], text: str) -> Finding:
    parts: dict[str, Any] = {**found, "text": text}
    for name, cls in (("mistakes", Mistake), ("conventions", Convention), ("checks", Check)):
        parts[name] = [_known(cls, one) for one in found.get(name, [])]
    result: Finding = _known(Finding, parts)
    return result


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been called; what the code prints is dropped."""
    state = np.random.get_state()
    torch = sys.modules.get("torch")
    fork = torch.random.fork_rng(devices=[]) if torch is not None else contextlib.nullcontext()
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        with fork, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            try:
                yield
            finally:
                np.random.set_state(state)


def judge(
    code: Callable[..., Any], task: str | None = None, map: Mapping[str, str] | None = None,
    init: Mapping[str, Any] | None = None, hint: bool = False, lang: str = "en",
) -> Finding:
    """Judges attention written by hand: right, or what is wrong with it, in one sentence, with the smallest counter-example.

        class MultiHeadAttention(torch.nn.Module): ...  # (embed_dim, num_heads); forward(x [B, L, E], mask [B, 1, L, L])
        print(qkv.judge(MultiHeadAttention))

        def sdpa(q, k, v, mask=None): ...          # [B, H, Tq, d], [B, H, Tk, d]; mask bool [B, 1, Tq, Tk], True = may attend
        assert qkv.judge(sdpa)

    `code` is a function on NumPy arrays or PyTorch tensors, a class (it is constructed with small sizes by the usual names of
    arguments), or a module that exists (a copy is judged; its own parameters stay as they are). Its shapes are the contract
    of its task: ``qkv practice TASK`` prints it. Parameters are read from the object and set by the judge.

    `task`: a name of ``qkv practice``; None: guessed from the name, the arguments and the parameters, and said in `notes`.
    `map`: a contract's name to yours, {"W_q": "query"}, where parameters cannot be told apart.
    `init`: arguments of the constructor, {"dim": 48, "heads": 4}.
    `hint`: the text points at the mistake without naming it.
    `lang`: "en", or "zh": sentences, hints and labels in Chinese; ids and verdicts stay.

    The code runs in this process, without limits of time or memory: a file of somebody else's belongs in ``qkv judge FILE``,
    which runs it in a child process under limits. Its output is dropped; NumPy's and PyTorch's random states are restored.

    Raises TypeError for what cannot be called, ValueError for an unknown task. Errors of the code are the verdict "failed".
    """
    if not callable(code):
        raise TypeError(f"[judge] code must be a function, a class or a module: got {type(code).__name__}")
    if task is not None and task not in FUNCTIONS:
        raise ValueError(f"[judge] task must be one of {', '.join(FUNCTIONS)}: got {task!r}")
    if lang not in ("en", "zh"):
        raise ValueError(f'[judge] lang must be "en" or "zh": got {lang!r}')
    begin = time.perf_counter()
    try:
        with _undisturbed():
            subject = subject_of_object(code, task, dict(map or {}), dict(init or {}))
    except Stop as stop:
        name = getattr(code, "__name__", type(code).__name__)
        said = _engine.in_chinese if lang == "zh" else str
        text = said(f"{stop.verdict}: {stop.says}") + (f"\n{stop.traceback}" if stop.traceback else "")
        check = Check("filled in" if stop.verdict == "unfilled" else "runs", False, said(stop.says))
        return Finding(
            stop.verdict, "", name, task or "", checks=(check,), traceback=stop.traceback, seconds=time.perf_counter() - begin,
            text=text,
        )
    described = json.dumps(as_json(subject))
    probes = _engine.probes(described)
    with _undisturbed():
        answers = [
            [files.encode(*answer(subject, *files.decode(probe), reading)) for probe in probes]
            for reading in range(max(1, len(subject.assignments)))
        ]
    found, text = _engine.verdict(described, probes, answers, hint, lang == "zh")
    return _finding({**json.loads(found), "seconds": time.perf_counter() - begin}, text.rstrip("\n"))
