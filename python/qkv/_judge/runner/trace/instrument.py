"""A person's functions with every expression handed to a recorder: `q @ k` becomes `watch(n, watch(1, q) @ watch(2, k))`."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

#: The recorder's name in the person's module.
_NAME = "__qkv_watch__"
_OPERATORS = {"MatMult": "matmul", "Mult": "mul", "Div": "div", "Add": "add", "Sub": "sub", "Pow": "pow"}
_VIEWS = {"T": "transpose", "mT": "transpose", "H": "transpose", "data": "detach"}
_KINDS = {ast.Subscript: "getitem", ast.Name: "name", ast.Attribute: "attribute", ast.List: "list", ast.ListComp: "list"}
_TRACED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript, ast.Attribute, ast.Name, ast.Compare, ast.List, ast.ListComp)


class Node(NamedTuple):
    """An expression. `op`: a function's name, or what the expression is; `name`: of a variable, an attribute, a loop's variables."""

    line: int
    op: str
    name: str
    children: tuple[int, ...]
    many: bool = False  # in a comprehension: computed several times before it is read


class Store(NamedTuple):
    """A statement that gives names a value. `targets`: (variable, attribute, item or argument; name); `parts`: nodes of its value."""

    line: int
    targets: tuple[tuple[str, str], ...]
    parts: tuple[tuple[int, ...], ...] = ()
    renames: tuple[bool, ...] = ()  # a = b
    adds: bool = False  # a += b


class _Instrument(ast.NodeTransformer):
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.stores: list[Store] = []
        self._children: list[list[int]] = [[]]
        self._many = False

    @staticmethod
    def _call(like: ast.AST, method: str, n: int, *args: ast.expr) -> ast.Call:
        function = ast.Attribute(ast.Name(_NAME, ast.Load()), method, ast.Load())
        return ast.fix_missing_locations(ast.copy_location(ast.Call(function, [ast.Constant(n), *args], []), like))

    def _inside(self, visit: Any, node: Any) -> tuple[Any, tuple[int, ...]]:
        """(what was made of it, the nodes in it that are in no other)"""
        self._children.append([])
        return visit(node), tuple(self._children.pop())

    def _watched(self, like: ast.expr, node: Node, value: ast.expr) -> ast.expr:
        self.nodes.append(node)
        self._children[-1].append(len(self.nodes) - 1)
        return self._call(like, "value", len(self.nodes) - 1, value)

    def visit(self, node: Any) -> Any:
        if isinstance(node, (ast.JoinedStr, ast.arguments, ast.pattern)):
            return node
        if not isinstance(node, _TRACED) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return super().visit(node)
        many, self._many = self._many, False
        new, children = self._inside(super().visit, node)
        return self._watched(node, Node(_line(node), _op(node), _name(node), children, many), new)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(one) for one in node.args]
        node.keywords = [self.visit(one) for one in node.keywords]
        return node

    def _iterated(self, loop: Any) -> ast.expr:
        """What a loop goes through: a node of its own, which has the loop's names."""
        iterated, children = self._inside(self.visit, loop.iter)
        names = " ".join(one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name))
        return self._watched(iterated, Node(iterated.lineno, "iterate", names, children), iterated)

    def visit_For(self, node: ast.For) -> ast.For:
        iterated = self._iterated(node)
        del node.iter  # it is watched already
        self.generic_visit(node)
        node.iter = iterated
        return node

    def _comprehension(self, node: Any) -> Any:
        for part in node.generators:
            part.iter, part.ifs = self._iterated(part), [self.visit(one) for one in part.ifs]
        for name in {"elt", "key", "value"} & set(node._fields):
            self._many = True
            setattr(node, name, self.visit(getattr(node, name)))
        self._many = False
        return node

    visit_ListComp = visit_GeneratorExp = visit_SetComp = visit_DictComp = _comprehension

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.body, _ = self._inside(self.visit, node.body)
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        self._inside(self.generic_visit, ast.Module(node.body, []))
        taken = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if one.arg != "self"]
        node.body.insert(0, self._stored(node.body[0], Store(node.lineno, tuple(("argument", name) for name in taken)), map(_read, taken)))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        for one in node.body:
            if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
                self.visit(one)
        return node

    def _stored(self, like: ast.AST, store: Store, values: Iterable[ast.expr]) -> ast.stmt:
        self.stores.append(store)
        return ast.copy_location(ast.Expr(self._call(like, "store" if store.parts else "enter", len(self.stores) - 1, *values)), like)

    def visit_Assign(self, node: Any) -> Any:
        written = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(written) != 1 or node.value is None:
            return self.generic_visit(node)
        targets = list(written[0].elts) if isinstance(written[0], (ast.Tuple, ast.List)) else [written[0]]
        values = getattr(node.value, "elts", []) if isinstance(node.value, ast.Tuple) else []
        if len(values) == len(targets) > 1:
            renames = [_renames(one) for one in values]
            made = [self._inside(self.visit, one) for one in values]
            node.value.elts, parts = [one for one, _ in made], [children for _, children in made]
        else:
            renames = [_renames(node.value) and len(targets) == 1] * len(targets)
            node.value, inside = self._inside(self.visit, node.value)
            parts = [inside] * len(targets)
        for n, one in enumerate(targets):
            if isinstance(one, ast.Subscript):
                one.slice, inside = self._inside(self.visit, one.slice)
                parts[n] = (*parts[n], *inside)
        known = [(*found, part, again) for found, part, again in zip(map(_target, targets), parts, renames) if found]
        if not known:
            return node
        store = Store(node.lineno, tuple(one[:2] for one in known), tuple(one[3] for one in known), tuple(one[4] for one in known),
                      isinstance(node, ast.AugAssign))  # fmt: skip
        return [node, self._stored(node, store, [one[2] for one in known])]

    visit_AugAssign = visit_AnnAssign = visit_Assign
    visit_AsyncFunctionDef = visit_FunctionDef


def _read(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _renames(value: ast.expr) -> bool:
    return isinstance(value, (ast.Name, ast.Attribute)) and getattr(value, "attr", "") not in _VIEWS


def _op(node: Any) -> str:
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op).__name__, "operator")
    if isinstance(node, ast.Call):
        return _name(node) or "call"
    return _VIEWS.get(getattr(node, "attr", ""), _KINDS.get(type(node), "operator"))


def _line(node: Any) -> int:
    """Of an expression of several lines, the one that says what it is."""
    if isinstance(node, ast.BinOp):
        return node.right.lineno
    node = node.func if isinstance(node, ast.Call) else node
    return (node.end_lineno or node.lineno) if isinstance(node, (ast.Attribute, ast.Call)) else node.lineno


def _name(node: Any) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))


def _target(node: ast.expr) -> tuple[str, str, ast.expr] | None:
    """(variable, attribute or item; its name; an expression of its value, an item's whole)"""
    if isinstance(node, ast.Name):
        return "variable", node.id, _read(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return "attribute", node.attr, ast.Attribute(_read(node.value.id), node.attr, ast.Load())
    if not isinstance(node, ast.Subscript):
        return None
    inner = node.value
    if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant) and (whole := _target(inner.value)):  # of a dict
        return "item", whole[1], ast.Subscript(whole[2], inner.slice, ast.Load())
    whole = _target(inner)
    return ("item", *whole[1:]) if whole else None


def innermost(tree: ast.AST, kind: type, line: int) -> Any:
    """Of the statements of a kind around a line, the one that begins last; None where there is none."""
    around = (one for one in ast.walk(tree) if isinstance(one, kind) and one.lineno <= line <= (one.end_lineno or 0))
    return max(around, key=lambda one: one.lineno, default=None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


class Instrumented:
    """A file's functions with their expressions watched."""

    def __init__(self, file: str, text: str) -> None:
        made = _Instrument()
        plain = compile(text, file, "exec", dont_inherit=True)
        watched = compile(made.visit(ast.parse(text)), file, "exec", dont_inherit=True)
        self.file, self.text, self.nodes, self.stores = file, text, made.nodes, made.stores
        new = {(one.co_name, one.co_firstlineno, one.co_freevars): one for one in _codes(watched)}
        self._codes = {one: new.get((one.co_name, one.co_firstlineno, one.co_freevars)) for one in _codes(plain)}

    @contextlib.contextmanager
    def run(self, watch: Any) -> Iterator[None]:
        functions = [one for one in gc.get_objects() if type(one) is FunctionType and one.__code__.co_filename == self.file]
        before = [(one, one.__code__, other) for one in functions if (other := self._codes.get(one.__code__))]
        for one, _, other in before:
            one.__globals__[_NAME], one.__code__ = watch, other
        try:
            yield
        finally:
            for one, code, _ in before:
                one.__code__ = code
                one.__globals__.pop(_NAME, None)
