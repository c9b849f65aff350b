"""What observes the attention of a model that runs in this thread: a collector of captures in forward, the relevance of one token in
backward. Not: what is kept of a call (_explore).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_state = threading.local()


def observer(kind: str) -> Any:
    """The "collector" (_explore/collector.py) or "deriver" (_relevance.py) of this thread's calls; None: there is none."""
    return getattr(_state, kind, None)


@contextlib.contextmanager
def observed(kind: str, by: Any) -> Iterator[None]:
    """This thread's calls are observed."""
    outer = observer(kind)
    setattr(_state, kind, by)
    try:
        yield
    finally:
        setattr(_state, kind, outer)
