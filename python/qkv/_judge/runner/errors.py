"""What ends a judgement early, and tracebacks shortened to the person's own lines."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

#: What a call of the person's code may end with; KeyboardInterrupt is left to who may know where it comes from.
FAILURES = (Exception, SystemExit)


class Ended(Exception):
    """An error of the code that is no Exception, nor what leaves a program, as one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Whatever the person's code raises inside is one of FAILURES, or a KeyboardInterrupt."""
    try:
        yield
    except (*FAILURES, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Ended(error).with_traceback(error.__traceback__) from None


def text_of(error: BaseException) -> str:
    """Its message; "" where that cannot be had."""
    try:
        return str(error).strip()
    except Exception:
        return ""


class Stop(Exception):
    """The judgement ends: `verdict` is "failed" or "unfilled", `says` one sentence, `traceback` the person's lines."""

    def __init__(self, says: str, verdict: str = "failed", traceback: str = "") -> None:
        super().__init__(says)
        self.says, self.verdict, self.traceback = says, verdict, traceback
        self.about: dict[str, str] = {}  # "file", "name", "task": what was found so far; "check": what failed

    def as_json(self) -> dict[str, str]:
        return {**self.about, "verdict": self.verdict, "says": self.says, "traceback": self.traceback}


class NoTask(Stop):
    """Code that no exercise asks for."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.about["check"] = "has a task"


#: Python's own modules: they may lie below the person's folder, as those of a Python in a home folder do.
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


class People:
    """Which files are the person's: one file and what lies in its folder, or the file of an object."""

    def __init__(self, file: Any) -> None:
        self.file = str(file) if file else ""
        is_path = bool(self.file) and not self.file.startswith("<")
        self.folder = os.path.dirname(os.path.abspath(self.file)) + os.sep if is_path else None

    def owns(self, filename: str) -> bool:
        if filename == self.file or self.folder is None or filename.startswith("<"):  # <frozen importlib._bootstrap> lies in no folder
            return filename == self.file
        path = os.path.abspath(filename)
        others = "site-packages" in path or os.sep + "_judge" + os.sep in path or path.startswith(_LIBRARY)
        return path.startswith(self.folder) and not others

    def lines(self, error: BaseException) -> str:
        """The traceback's frames in the person's files, as Python prints them, and the error."""
        error = error.error if isinstance(error, Ended) else error
        text = [
            f'  File "{os.path.basename(frame.filename)}", line {frame.lineno}, in {frame.name}\n' + f"    {frame.line}\n" * bool(frame.line)
            for frame in self._frames(error)
        ]
        head = ["Traceback (your lines only):\n"] if text else []
        last = "".join(traceback.format_exception_only(type(error), error))
        last = last.replace(self.folder or "\0", "")  # a SyntaxError names the whole path
        return "".join([*head, *text, last]).rstrip()

    def reached(self, error: BaseException) -> int:
        """The last line of the person's that an error passed: how far a call got."""
        return max((frame.lineno or 0 for frame in self._frames(error)), default=0)

    def _frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        return [frame for frame in traceback.extract_tb(error.__traceback__) if self.owns(frame.filename)]

    def refuses(self, error: BaseException) -> bool:
        """Whether a line of the person's own raises it on purpose."""
        last = traceback.extract_tb(error.__traceback__)[-1:]
        return any(self.owns(frame.filename) and re.search(r"(?:^|[:;]\s*)(?:raise|assert)\b", frame.line or "") for frame in last)

    def unfilled(self, error: BaseException) -> bool:
        """A skeleton's NotImplementedError; without a text it counts where the person's own line raises it."""
        if not isinstance(error, NotImplementedError):
            return False
        text, raised = text_of(error), traceback.extract_tb(error.__traceback__)[-1:]
        return text.startswith("fill in") or (not text and any(self.owns(frame.filename) for frame in raised))

    def stop(self, error: BaseException, doing: str) -> Stop:
        """The Stop that an error of the person's code is; `doing`: "loading v3.py"."""
        if isinstance(error, Stop):
            return error
        if self.unfilled(error):
            return Stop(f"not filled in yet: {text_of(error) or 'a part raises NotImplementedError'}", "unfilled")
        return Stop(f"{doing}: {line_of(error)}", "failed", self.lines(error))


def line_of(error: BaseException) -> str:
    """One line; what leaves a program is said in words."""
    error = error.error if isinstance(error, Ended) else error
    if isinstance(error, SystemExit):
        return f"the code called sys.exit({'' if error.code is None else repr(error.code)})"
    if isinstance(error, KeyboardInterrupt):
        return "the code raised KeyboardInterrupt"
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
