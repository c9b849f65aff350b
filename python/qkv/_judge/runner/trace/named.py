"""What the name of a mistake says of its line: the argument or the call that it is about, or that a helper was handed something wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..contracts import names

#: How the names of mistakes begin, and the argument that they are about.
_ABOUT = {
    "sampling-top-p-short": "p", "sampling-temperature": "temperature", "sampling-penalty": "penalty", "t5-sign": "table", "t5-both": "table",
    "paged-one": "lengths", "paged-tail": "lengths", "paged-lengths": "lengths", "paged-first-length": "lengths",
    "paged-first-table": "block_table", "paged-table": "block_table", "window-one": "window", "window-hides": "window",
    "rope-wrong-base": "base", "mask-polarity": "mask",
}  # fmt: skip
#: A call that stands where the mistake is, or right behind what is missing.
_CALLED = {
    "lm-gradients-not-zeroed": "backward", "lm-no-step": "backward", "lm-step-one-behind": "step", "lm-rate-ignored": "step",
    "flash-causal-per-block": "arange",
}  # fmt: skip
#: Mistakes of what a helper is handed: it does its own work right.
HANDED = ("swiglu-exchanged", "swiglu-no-up", "norms-exchanged", "rope-positions-not-used")
_HALF = 65504  # the largest number of float16


#: Mistakes of a helper that does what it is handed: the argument is the width, or a mask that the call inverts.
_SCALED = ("scale-sqrt-embed", "scale-sqrt-length", "scale-sqrt-heads", "scale-sqrt-keys")


def line_of(text: str, mistake: str) -> int:
    """The line of the call or of the number that a mistake is about; 0 where it is about none, or there is none."""
    if mistake not in (*_CALLED, "fill-beyond-half"):
        return 0
    tree = ast.parse(text)
    if mistake == "fill-beyond-half":
        large = (one for one in ast.walk(tree) if _HALF < abs(_number(one)) < float("inf") or getattr(one, "attr", "") == "finfo")
        return next((one.lineno for one in large), 0)  # type: ignore[attr-defined]
    loops = [one for one in ast.walk(tree) if isinstance(one, (ast.For, ast.While))]
    inside = loops if mistake.startswith("flash-") else [tree]
    calls = (one for part in inside for one in ast.walk(part) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute))
    return max((one.lineno for one in calls if one.func.attr == _CALLED[mistake]), default=0)  # type: ignore[attr-defined]


def _number(node: ast.AST) -> float:
    value = getattr(node, "value", 0) if isinstance(node, ast.Constant) else 0
    return float(value) if isinstance(value, (int, float)) else 0.0


def uses(tree: ast.AST, mistake: str) -> list[int]:
    """The lines of the statements that compare the argument that a mistake is about, or else reckon with it; empty where it is about none."""
    about = next((argument for begin, argument in _ABOUT.items() if mistake.startswith(begin)), None)
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)] if about else []
    own = {one.name for one in functions}
    found = {use for one in functions for use in _uses(one, about or "", own)}
    return sorted({line for compared, line in found if compared} or {line for _, line in found})


def handed_at(tree: ast.AST, mistake: str, stack: Sequence[tuple[int, Any]]) -> int:
    """The line of the call that hands a helper the wrong width or an inverted mask; 0 where the helper itself is wrong. `stack`: lines
    and their code, the helper's first."""
    about: set[str] = set()
    if len(stack) < 2:
        return 0
    if mistake == "mask-polarity":
        about = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and one.lineno == stack[0][0] and names.argument(one.id) == "mask"}
    elif mistake in _SCALED:
        about = {one for node in ast.walk(tree) if getattr(node, "lineno", 0) == stack[0][0] for one in _divisors(node)}
    for (line, caller), (_, helper) in zip(stack[1:], stack):
        at, given = _given(tree, line, helper.co_name)
        handed = next((given[name] for name in helper.co_varnames[: helper.co_argcount] if name in about and name in given), None)
        if handed is None:
            return 0
        if not (isinstance(handed, ast.Name) and handed.id in caller.co_varnames[: caller.co_argcount]):
            return at if mistake in _SCALED or _inverts(handed) else 0
        about = {handed.id}  # handed on as it came
    return 0


def _divisors(node: ast.AST) -> Iterator[str]:
    """The variables whose root is taken, or that something is divided by."""
    inside: list[ast.AST] = []
    if isinstance(node, ast.Call) and "sqrt" in getattr(node.func, "attr", getattr(node.func, "id", "")):
        inside = [*node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Pow)):
        inside = [node.right if isinstance(node.op, ast.Div) else node.left]
    yield from (one.id for one in inside if isinstance(one, ast.Name))


def _given(tree: ast.AST, line: int, helper: str) -> tuple[int, dict[str, ast.expr]]:
    """The first line of a call of a helper, and {argument: what it is given}."""
    made = next((one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == helper), None)
    calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.lineno <= line <= (one.end_lineno or 0))
    call = next((one for one in calls if helper in (getattr(one.func, "id", ""), getattr(one.func, "attr", ""))), None)
    if made is None or call is None:
        return 0, {}
    taken = [one.arg for one in made.args.args if one.arg != "self"]
    return call.lineno, dict(zip(taken, call.args)) | {one.arg: one.value for one in call.keywords if one.arg}


def _inverts(node: ast.expr) -> bool:
    """`~mask`, `mask == 0`, `1 - mask`, `logical_not(mask)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, (ast.Invert, ast.Not)):
            return True
        if isinstance(one, ast.Compare) and getattr(one.comparators[0], "value", None) in (0, False) and isinstance(one.ops[0], ast.Eq):
            return True
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) and getattr(one.left, "value", 0) == 1:
            return True
        if isinstance(one, ast.Call) and "not" in getattr(one.func, "attr", ""):
            return True
    return False


def reads_mask(tree: ast.AST, line: int) -> bool:
    """Whether a line has a mask by its name."""
    return any(isinstance(one, ast.Name) and one.lineno == line and names.argument(one.id) == "mask" for one in ast.walk(tree))


def _uses(function: ast.FunctionDef, about: str, called: set[str]) -> Iterator[tuple[bool, int]]:
    """(whether it is a comparison, line) of statements of a function, but for a constructor that keeps it."""
    every = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
    own = {one for one in every if one == about} or {one for one in every if _means(one, about)}
    for one in ast.walk(function) if function.name != "__init__" else ():
        reads = {ast.If: "test", ast.While: "test", ast.For: "iter"}.get(type(one), "")
        inside = getattr(one, reads) if reads else one if isinstance(one, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) else None
        for part, compared in _operands(inside, called) if inside is not None else ():
            name = part.attr if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) else getattr(part, "id", "")
            if name in own or (isinstance(part, ast.Attribute) and _means(name, about)):
                yield compared, one.lineno  # type: ignore[attr-defined]


def _means(name: str, about: str) -> bool:
    return bool(names.among("given", name, [about])) or about in (names.argument(name), names.setting(name))


def _operands(node: ast.AST, called: Iterable[str]) -> Iterator[tuple[Any, bool]]:
    """What is reckoned with, and whether it is compared: not with a constant, not handed on to a function of the file's own."""
    for one in ast.walk(node):
        parts: list[ast.AST] = []
        if isinstance(one, ast.BinOp):
            parts = [one.left, one.right]
        elif isinstance(one, ast.Subscript):
            parts = [one.value, one.slice]
        elif isinstance(one, ast.UnaryOp):
            parts = [one.operand]
        elif isinstance(one, ast.Compare) and not (isinstance(one.comparators[0], ast.Constant) and not isinstance(one.ops[0], ast.Eq)):
            parts = [one.left, *one.comparators]
        elif isinstance(one, ast.Call) and getattr(one.func, "id", "") not in called:
            parts = [*one.args]
        for part in parts:
            within = ast.walk(part) if isinstance(one, ast.Compare) else [part]
            yield from ((inner, isinstance(one, ast.Compare)) for inner in within)
