"""What is done to modules of other packages once they have been imported."""

import importlib.machinery
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder for sys.meta_path: modules whose whole name matches are found and run as Python does it, and then passed to `change`."""

    def __init__(self, pattern: re.Pattern[str], change: Callable[[ModuleType], None]) -> None:
        self.pattern, self.change = pattern, change

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """A spec whose loader changes the module behind its own work; None for other names."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if self.pattern.fullmatch(name) else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
