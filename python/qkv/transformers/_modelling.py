"""Functions of transformers' modelling files, replaced and put back: module globals and methods, which the layers read at each
call, so that models built before take part. Files that are imported later are changed as they are, and so is the code that comes with
a model (trust_remote_code).
"""

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from transformers import dynamic_module_utils

from .._later import AfterImport
from ._decode import by_one_call, is_known
from ._latent import expand_later
from ._linear import BESIDE, REPLACEMENTS
from ._own import OWN

_MODELLING = re.compile(r"transformers(_modules)?\..*\bmodeling_\w+")
_originals: dict[tuple[int, str], tuple[ModuleType | type, Callable[..., Any]]] = {}
_linear_too = False
_lock = threading.RLock()  # what it holds may import another modelling file


def _replaceable(module: ModuleType) -> Iterator[tuple[ModuleType | type, str, Callable[..., Any]]]:
    """(module or class, name in it, what makes a replacement of it)."""
    for held in list(vars(module).values()):
        if not isinstance(held, type) or held.__module__ != module.__name__:
            continue
        if "expand_kv" in vars(held):
            yield held, "expand_kv", expand_later
        if is_known(module, held):
            yield held, "forward", by_one_call
        for name, method, make in OWN:
            if held.__name__ == name:
                yield held, method, make
    if _linear_too and any(name in vars(module) for name in REPLACEMENTS):
        for name, make in (REPLACEMENTS | BESIDE).items():
            yield module, name, make


def _put(module: ModuleType) -> None:
    if not _MODELLING.fullmatch(module.__name__):
        return
    with _lock:
        for owner, name, make in list(_replaceable(module)):
            original, key = vars(owner).get(name), (id(owner), name)
            if callable(original) and key not in _originals:
                _originals[key] = (owner, original)
                setattr(owner, name, make(original))
        # Falcon's SDPA class asks the interface. Others do not: their masks say so (_masks.py) once the model is made.
        for name, classes in list(vars(module).items()):
            if name.endswith("_ATTENTION_CLASSES") and isinstance(classes, dict) and "eager" in classes:
                classes.setdefault("qkv", classes["sdpa" if name.startswith("FALCON") else "eager"])


_later = AfterImport(_MODELLING, _put)
_get_class = dynamic_module_utils.get_class_in_module


@functools.wraps(_get_class)
def _get_class_and_put(*args: Any, **kwargs: Any) -> type:
    """A model's own file, which transformers runs without asking sys.meta_path."""
    made = _get_class(*args, **kwargs)
    if _later in sys.meta_path and made.__module__ in sys.modules:
        _put(sys.modules[made.__module__])
    return made


def install_all(*, linear: bool) -> None:
    """Puts the replacements into every modelling file, now or when it is imported: those of latent attention, and with `linear` those
    of linear attention. A second call undoes nothing."""
    global _linear_too
    _linear_too = _linear_too or linear
    if _later not in sys.meta_path:
        sys.meta_path.insert(0, _later)  # type: ignore[arg-type]
    if dynamic_module_utils.get_class_in_module is _get_class:
        dynamic_module_utils.get_class_in_module = _get_class_and_put
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            _put(module)


def installed() -> bool:
    """Whether replacements stand in the modelling files."""
    return _later in sys.meta_path


def remove_all() -> None:
    """Puts the originals back."""
    global _linear_too
    _linear_too = False
    if _later in sys.meta_path:
        sys.meta_path.remove(_later)  # type: ignore[arg-type]
    if dynamic_module_utils.get_class_in_module is _get_class_and_put:
        dynamic_module_utils.get_class_in_module = _get_class
    with _lock:
        for (_, name), (owner, original) in _originals.items():
            setattr(owner, name, original)
        _originals.clear()
