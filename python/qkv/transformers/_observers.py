"""Observes the attention of a model that runs in this thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_state = threading.local()


def current_collector() -> Any:
    """Of this thread's calls (_explore/collector.py); None: there is none."""
    return getattr(_state, "collector", None)


@contextlib.contextmanager
def observed(by: Any) -> Iterator[None]:
    """This thread's calls are observed."""
    outer, _state.collector = current_collector(), by
    try:
        yield
    finally:
        _state.collector = outer
