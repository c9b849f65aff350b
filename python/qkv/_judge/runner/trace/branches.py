"""Branches of a person's functions that no call of the judge went through: what a right verdict does not cover."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import linecache
import sys
from collections.abc import Iterator, Set
from types import CodeType, FrameType
from typing import Any

from ..errors import People

_MOST = 60  # characters of a condition


class Branches:
    """Which lines of the person's functions ran."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._ran: dict[CodeType, set[int] | None] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Lines that run inside count; a debugger keeps its own hook, and then none do."""
        before = sys.gettrace()
        if before is None:
            sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._ran:
            self._ran[code] = set() if self._people.owns(code.co_filename) else None
        ran = self._ran[code]
        if ran is None:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            ran.add(frame.f_lineno)
            return line

        return line

    def unrun(self, said: Set[str]) -> list[str]:
        """The conditions of branches that were reached and never entered; not those about the names in `said`, nor of branches
        that only complain."""
        found = []
        for code, ran in self._ran.items():
            for one in _ifs(code) if ran else ():
                named = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(one.test)}
                if not _any(one.test, ran) or named & said:
                    continue
                condition = ast.unparse(one.test)
                for body, text in ((one.body, f"if {condition}"), (one.orelse, f"if not ({condition})")):
                    works = not all(isinstance(each, (ast.Raise, ast.Assert, ast.Pass, ast.Expr)) for each in body)
                    if works and body[0].lineno > one.test.lineno and not _any(body[0], ran):
                        found.append(f"`{text if len(text) <= _MOST else text[:_MOST] + '...'}`")
        return list(dict.fromkeys(found))


def _any(node: ast.stmt | ast.expr, ran: set[int]) -> bool:
    return any(line in ran for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


@functools.lru_cache(maxsize=64)
def _ifs(code: CodeType) -> list[ast.If]:
    """The if statements of a function, without those of functions in it; none where its source is not at hand."""
    linecache.checkcache(code.co_filename)
    lines = {line for _, line in dis.findlinestarts(code) if not code.co_name.startswith("<")}  # <listcomp> is no function
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return []
    return sorted((one for one in ast.walk(tree) if isinstance(one, ast.If) and _any(one.test, lines)), key=lambda one: one.lineno)
