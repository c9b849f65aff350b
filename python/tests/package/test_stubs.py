"""Editors and type checkers read the stubs of the extension modules, which the build writes, and docstrings."""

import ast
import importlib
from pathlib import Path

import pytest
import qkv

PACKAGE = Path(qkv.__file__).parent


@pytest.mark.parametrize("name", ["_core", "_dist", "_jax", "_nn"])
def test_stubs_name_what_a_module_has(name: str) -> None:
    tree = ast.parse((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8"))
    found = {getattr(node, "name", None) or node.target.id for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign))}  # type: ignore[attr-defined]
    assert {x for x in vars(importlib.import_module(f"qkv.{name}")) if not x.startswith("__")} <= found


def test_functions_have_more_than_a_signature() -> None:
    for name in qkv.__all__:
        if type(getattr(qkv, name)).__name__ == "nb_func":
            assert len(getattr(qkv, name).__doc__.splitlines()) > 1, name
    for name in qkv.Capture.__dataclass_fields__:
        assert name in qkv.Capture.__doc__, name
