"""Who looks at the attention of a model that runs in this thread. Not: what is kept of a call (_explore), the results of a whole run
(_capture.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .._explore.collector import Collector
from .._explore.layer import Layer

LayerCapture = Layer

_state = threading.local()


def current() -> Collector | None:
    """Who looks at the calls of this thread."""
    return getattr(_state, "collector", None)


@contextlib.contextmanager
def looking(collector: Collector) -> Iterator[None]:
    """`collector` looks at the calls of this thread."""
    outer, _state.collector = current(), collector
    try:
        yield
    finally:
        _state.collector = outer
