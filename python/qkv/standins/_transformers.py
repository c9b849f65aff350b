"""transformers' questions before attn_implementation="flash_attention_2": is flash_attn there, and a device that it runs on?

It asks functions that it has imported into several of its modules and a table. They are answered while the stand-in is
installed, whether transformers is imported before or after; refuse() puts everything back.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from .._later import AfterImport

_MODULE = "transformers.modeling_flash_attention_utils"
_ASKED = ("is_flash_attn_2_available", "is_flash_attn_greater_or_equal", "is_flash_attn_greater_or_equal_2_10")
_were: list[tuple[dict[str, Any], str, Any]] = []


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _set(where: dict[str, Any], name: str, value: Any) -> None:
    _were.append((where, name, where[name]))
    where[name] = value


def _answer(_: Any = None) -> None:
    """In every module that asks and is there."""
    utils = sys.modules.get("transformers.utils.import_utils")
    if utils is None:
        return
    cached = getattr(utils, "_package_distribution_mapping", None)
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()
    for name in _ASKED:
        original = vars(utils).get(name)
        for module in list(sys.modules.values()) if original is not None else ():
            if getattr(module, "__name__", "").startswith("transformers") and vars(module).get(name) is original:
                _set(vars(module), name, _yes)
    table = getattr(sys.modules.get(_MODULE), "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {2: {}})[2]
    for key, value in (("general_availability_check", _yes), ("supported_devices", ((_yes, "cpu"),))):
        if key in table:
            _set(table, key, value)


_later = AfterImport(re.compile(re.escape(_MODULE)), _answer)


def accept() -> None:
    """Answers yes, from now on."""
    _answer()
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _later)  # type: ignore[arg-type]


def refuse() -> None:
    """Puts the questions back."""
    if _later in sys.meta_path:
        sys.meta_path.remove(_later)  # type: ignore[arg-type]
    while _were:
        where, name, original = _were.pop()
        where[name] = original
