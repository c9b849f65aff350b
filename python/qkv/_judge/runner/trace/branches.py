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
    """Which lines of the person's functions ran, and which instructions where a line holds a condition and what stands behind it."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._ran: dict[CodeType, set[int] | None] = {}
        self._steps: dict[CodeType, set[int]] = {}

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
        steps = self._steps.setdefault(code, set())
        frame.f_trace_opcodes = any(not steps & own for own in _behind(code).values())

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                steps.add(frame.f_lasti)
            else:
                ran.add(frame.f_lineno)
            return line

        return line

    def unrun(self, said: Set[str]) -> list[str]:
        """The conditions of branches that were reached and never entered; not those about the names in `said`, nor of branches
        that only complain."""
        found = []
        for code, ran in self._ran.items():
            steps, behind = self._steps.get(code, set()), _behind(code) if ran else {}
            for one in _ifs(code) if ran else ():
                named = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(one.test)}
                if not _any(one.test, ran) or named & said:
                    continue
                condition = ast.unparse(one.test)
                for body, text in ((one.body, f"if {condition}"), (one.orelse, f"if not ({condition})")):
                    if all(isinstance(each, (ast.Raise, ast.Assert, ast.Pass, ast.Expr)) for each in body):
                        continue
                    own = behind.get(_place(body[0]))  # on the line of its condition
                    entered = not steps or bool(steps & own) if own else _any(body[0], ran)
                    if (own or body[0].lineno > one.test.lineno) and not entered:
                        found.append(f"`{text if len(text) <= _MOST else text[:_MOST] + '...'}`")
        return list(dict.fromkeys(found))


def _any(node: ast.stmt | ast.expr, ran: set[int]) -> bool:
    return any(line in ran for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _place(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


@functools.lru_cache(maxsize=64)
def _behind(code: CodeType) -> dict[tuple[int, int], set[int]]:
    """{place: instructions} of the statements behind a condition on its line; none before Python 3.11, which does not say where they are."""
    bodies = [one.body[0] for one in _ifs(code) if one.body[0].lineno <= (one.test.end_lineno or 0)]
    found: dict[tuple[int, int], set[int]] = {}
    for number, (line, last, column, end) in enumerate(code.co_positions() if bodies and sys.version_info >= (3, 11) else ()):
        for one in bodies:
            inside = line is not None and _place(one) <= (line, column) and (last, end) <= (one.end_lineno, one.end_col_offset)
            if inside:
                found.setdefault(_place(one), set()).add(2 * number)
    return found


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
