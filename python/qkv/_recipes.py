"""How an object of the extension was made, so that pickle and copy.deepcopy can make it again. Arrays that are only borrowed (dense
masks, tables) are kept as they are; lists of numbers, which the extension copies, are copied."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from ._arrays import boolean
from ._core import BlockMap

F = TypeVar("F", bound=Callable[..., Any])
_BORROWED = frozenset(("keep", "drop", "t5", "relative"))


def _kept(x: Any) -> Any:
    """x, or a copy of its numbers where the caller may change them afterwards."""
    if x is None or isinstance(x, (int, float, str, BlockMap)) or hasattr(x, "_core"):
        return x
    return np.asarray(x).copy()


def _listed(x: Any) -> Any:
    """x, or of numbers that can be asked for once a list."""
    return list(x) if isinstance(x, Iterator) else x


def _lent(x: Any) -> Any:
    """x as the extension reads it: its own bytes, or a copy."""
    return x if x is None or isinstance(x, str) else boolean(x, "mask")


def recorded(method: F) -> F:
    """For a class method that makes an object: the object remembers its name and arguments."""

    @functools.wraps(method)
    def make(cls: Any, *arguments: Any, **options: Any) -> Any:
        arguments = tuple(_listed(x) for x in arguments)
        options = {name: _listed(x) for name, x in options.items()}
        made = method(cls, *arguments, **options)
        if method.__name__ not in _BORROWED:
            arguments = tuple(_kept(x) for x in arguments)
            options = {name: _kept(x) for name, x in options.items()}
        elif method.__name__ in ("keep", "drop"):
            arguments = tuple(_lent(x) for x in arguments)
            options = {name: _lent(x) for name, x in options.items()}
        made._recipe = (method.__name__, arguments, options)
        return made

    return make  # type: ignore[return-value]


def make_again(cls: type, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A copy made from the arguments that `recorded` kept."""
    return getattr(cls, name)(*arguments, **options)


def reduced(made: Any) -> Any:
    """__reduce__ of such an object. Raises TypeError where nothing was remembered."""
    recipe = getattr(made, "_recipe", None)
    if recipe is None:
        raise TypeError(f"[{type(made).__name__}] it cannot be pickled: it was not made by a public function of its class")
    return make_again, (type(made), *recipe)
