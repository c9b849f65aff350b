"""A person's file as a module: its folder comes first on sys.path; `if __name__ == "__main__"` does not run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import People, Stop


def load(path: Any) -> ModuleType:
    """Raises Stop with the person's lines if the file cannot be read, compiled or executed."""
    file = Path(path).resolve()
    if not file.is_file():
        raise Stop(f"no such file: {path}")
    taken = file.stem in sys.modules or file.stem in getattr(sys, "stdlib_module_names", ()) or not file.stem.isidentifier()
    name = f"judged_{file.stem}" if taken else file.stem
    spec = importlib.util.spec_from_file_location(name, str(file))
    if spec is None or spec.loader is None:
        raise Stop(f"{file.name} must be a Python file: its name must end in .py")
    sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes look their module up: dataclasses, pickle
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        people = People(file)
        says = f"loading {file.name}: this Python ({sys.executable}) has no {error.name}: name another with --python, or activate its environment"
        raise Stop(says, "failed", people.lines(error)) from None
    except (Exception, SystemExit) as error:
        raise People(file).stop(error, f"loading {file.name}") from None
    return module
