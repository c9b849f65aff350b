"""How a long run shows what is done: tqdm's bar on a terminal where tqdm is installed, otherwise ten plain lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any, TextIO

_LINES = 10


def on_terminal() -> bool:
    """Whether standard error is one; without a console there is none."""
    return sys.stderr is not None and sys.stderr.isatty()


class Progress:
    """with Progress(steps) as shown: shown.update(done, "loss 1.23"). A bar disappears at the end; a last line stays."""

    def __init__(self, total: int, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr  # None where there is no console
        self.total, self.shown = max(total, 1), shown and self.stream is not None
        self._bar: Any = None
        self._done, self._words = 0, ""

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        is_terminal = getattr(self.stream, "isatty", bool)
        if self.shown and is_terminal() and importlib.util.find_spec("tqdm") is not None:
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, file=self.stream, leave=False)
        return self

    def update(self, done: int, words: str) -> None:
        """Shows that so many of the total are done."""
        before, self._done, self._words = self._done, done, words
        if self._bar is not None:
            self._bar.set_postfix_str(words, refresh=False)
            self._bar.update(done - before)
        elif self.shown and before * _LINES // self.total != done * _LINES // self.total:
            self._line()

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()
        if self.shown and (self._bar is not None or self._done < self.total):
            self._line()

    def _line(self) -> None:
        try:
            print(f"step {self._done}  {self._words}  {time.monotonic() - self._start:.1f} s", file=self.stream, flush=True)
        except (AttributeError, OSError, ValueError):  # a stream that cannot be written to ends no training
            self.shown = False
