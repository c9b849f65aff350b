"""The stubs of the extension modules (python/qkv/_core.pyi, _nn.pyi) name what the modules have, no more and no less."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import qkv

PACKAGE = Path(qkv.__file__).parent


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("__")}  # type: ignore[attr-defined]


def stubbed(body: list[ast.stmt]) -> dict[str, set[str]]:
    """Names of a module's stub, and of each class its members."""
    found: dict[str, set[str]] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = set(stubbed(node.body)) if isinstance(node, ast.ClassDef) else set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = set()
    return found


@pytest.mark.parametrize("name", ["_core", "_dist", "_nn"])
def test_names(name: str) -> None:
    module = importlib.import_module(f"qkv.{name}")
    found = stubbed(ast.parse((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8")).body)
    mend = "mend it with: scripts/python-stubs"
    assert public(found) == public(vars(module)), mend
    for one, value in vars(module).items():
        if inspect.isclass(value) and not issubclass(value, BaseException) and one in found:
            assert public(found[one]) == public(vars(value)), f"{one}: {mend}"


def test_functions_have_more_than_a_signature() -> None:
    for name in qkv.__all__:
        if type(getattr(qkv, name)).__name__ == "nb_func":
            assert len(getattr(qkv, name).__doc__.splitlines()) > 1, name
    for name in qkv.Capture.__dataclass_fields__:
        assert name in qkv.Capture.__doc__, name
