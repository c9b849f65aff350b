"""How a long run shows where it is: a bar that redraws itself on a terminal, plain lines elsewhere. Not: tqdm."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

_EIGHTHS = "▏▎▍▌▋▊▉"
_LINES = 10  # of a run whose output is not a terminal
_REDRAW = 0.04  # seconds


class Progress:
    """with Progress(steps) as shown: shown.update(done, "loss 1.23"). The bar disappears at the end; a last line stays."""

    def __init__(self, total: int, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self.total, self.shown, self.stream = max(total, 1), shown, stream or sys.stderr
        self._bar = shown and self.stream.isatty()
        self._unicode = "utf" in (getattr(self.stream, "encoding", None) or "").lower()
        self._start = self._last = 0.0
        self._done, self._words = 0, ""

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        return self

    def update(self, done: int, words: str) -> None:
        """Shows that so many of the total are done."""
        before, self._done, self._words = self._done, done, words
        if not self.shown:
            return
        if self._bar:
            now = time.monotonic()
            if now - self._last >= _REDRAW:
                self._last = now
                self.stream.write("\r\x1b[K" + self._drawn())
                self.stream.flush()
        elif before * _LINES // self.total != done * _LINES // self.total:
            self._line()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if not self.shown:
            return
        if self._bar:
            self.stream.write("\r\x1b[K")
            self._line()
        elif self._done < self.total:
            self._line()

    def _line(self) -> None:
        self.stream.write(f"step {self._done}  {self._words}  {time.monotonic() - self._start:.1f} s\n")
        self.stream.flush()

    def _drawn(self) -> str:
        share = min(1.0, self._done / self.total)
        columns = min(40, shutil.get_terminal_size().columns - len(self._words) - 24)
        text = f"{100 * share:3.0f} %  step {self._done}  {self._words}"
        if columns < 8:
            return text
        eighths = int(share * columns * 8)
        if not self._unicode:
            return "#" * (eighths // 8) + "." * (columns - eighths // 8) + " " + text
        bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
        return bar + "·" * (columns - len(bar)) + " " + text
