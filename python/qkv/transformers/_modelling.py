"""Functions of transformers' modelling files, put in place and taken out: module globals, which the layers look up at each call, so
that models built before take part. Files that are imported later are changed as they are. Not: the functions (_linear.py).
"""

from __future__ import annotations

import importlib.machinery
import re
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ._linear import BESIDE, REPLACEMENTS

_MODELLING = re.compile(r"transformers(_modules)?\..*\bmodeling_\w+")
_originals: dict[tuple[str, str], tuple[ModuleType, Callable[..., Any]]] = {}
_lock = threading.Lock()


def _put(module: ModuleType) -> None:
    if not _MODELLING.fullmatch(module.__name__) or not any(name in vars(module) for name in REPLACEMENTS):
        return
    with _lock:
        for name, make in (REPLACEMENTS | BESIDE).items():
            original = vars(module).get(name)
            if callable(original) and (module.__name__, name) not in _originals:
                _originals[module.__name__, name] = (module, original)
                setattr(module, name, make(original))


class _Later:
    """Finds modelling files as Python does, and changes them once they have run."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if _MODELLING.fullmatch(name) else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _put(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def put_all() -> None:
    """Puts the replacements into every modelling file, now or when it is imported. A second call changes nothing."""
    if _Later not in sys.meta_path:
        sys.meta_path.insert(0, _Later)  # type: ignore[arg-type]
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            _put(module)


def take_all() -> None:
    """Puts the originals back."""
    if _Later in sys.meta_path:
        sys.meta_path.remove(_Later)  # type: ignore[arg-type]
    with _lock:
        for (_, name), (module, original) in _originals.items():
            setattr(module, name, original)
        _originals.clear()
