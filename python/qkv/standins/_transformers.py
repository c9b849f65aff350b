"""transformers' questions before attn_implementation="flash_attention_2": is flash_attn there, and a device that it runs on?

It asks functions that it has imported into several of its modules and a table. They are answered while the stand-in is
installed, whether transformers is imported before or after; refuse() puts everything back.
"""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .._later import AfterImport

_MODULE = "transformers.modeling_flash_attention_utils"
_version = ""  # of the flash_attn that is imitated


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _at_least(library_version: str) -> bool:
    from packaging import version  # transformers has it

    return bool(version.parse(_version) >= version.parse(library_version))


_ANSWERS: dict[str, Callable[..., bool]] = {
    "is_flash_attn_2_available": _yes,
    "is_flash_attn_greater_or_equal": _at_least,
    "is_flash_attn_greater_or_equal_2_10": _yes,
}
_TABLE = {"general_availability_check": _yes, "supported_devices": ((_yes, "cpu"),)}
# What was there, read once: answers are given again when _MODULE is imported, which then holds answers already.
_asked: dict[str, Any] = {}
_in_table: dict[str, Any] = {}


def _table() -> dict[str, Any]:
    return getattr(sys.modules.get(_MODULE), "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {2: {}})[2]


def _holding(name: str, value: Any) -> Iterator[dict[str, Any]]:
    """The names of every module of transformers that holds it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("transformers") and vars(module).get(name) is value:
            yield vars(module)


def _forget(*functions: Any) -> None:
    """What they remember of packages that were there or not."""
    for cached in functions:
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def _answer(_: Any = None) -> None:
    """In every module that asks and is there."""
    utils = sys.modules.get("transformers.utils.import_utils")
    if utils is None:
        return
    _forget(getattr(utils, "_package_distribution_mapping", None))
    for name, answer in _ANSWERS.items():
        if name not in vars(utils):
            continue
        original = _asked.setdefault(name, vars(utils)[name])
        for where in _holding(name, original):
            where[name] = answer
    table = _table()
    for key, value in _TABLE.items():
        if key in table:
            _in_table.setdefault(key, _asked["is_flash_attn_2_available"] if table[key] is _yes else table[key])
            table[key] = value


_later = AfterImport(re.compile(re.escape(_MODULE)), _answer)


def accept(imitated: str) -> None:
    """Answers yes, from now on, and versions as this one."""
    global _version
    _version = imitated
    _answer()
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _later)  # type: ignore[arg-type]


def refuse() -> None:
    """Puts the questions back, also in modules that were imported since."""
    if _later in sys.meta_path:
        sys.meta_path.remove(_later)  # type: ignore[arg-type]
    for name, original in _asked.items():
        for where in _holding(name, _ANSWERS[name]):
            where[name] = original
    _table().update(_in_table)
    utils = sys.modules.get("transformers.utils.import_utils")
    _forget(getattr(utils, "_package_distribution_mapping", None), *_asked.values())
    _asked.clear()
    _in_table.clear()
