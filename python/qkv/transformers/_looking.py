"""Who looks at the attention of a running model, and what one call shows. Not: the results of a whole run (_capture.py)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .. import _attention as functional
from ..capture import Capture, Captured

_state = threading.local()

_MAP = 64  # a map's most rows and columns, unless others are asked for


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


@dataclass(frozen=True)
class LayerCapture:
    """What one call of attention showed."""

    index: int  #: number of the call within the model's forward
    name: str  #: of the module: "model.layers.0.self_attn"
    heads: tuple[int, ...]  #: that were looked at, in this order
    q_len: int
    kv_len: int
    captured: Captured = field(repr=False)  #: arrays [B, heads, ...], see qkv.Captured


class Collector:
    """What the calls of one run showed: `seen`, in their order; `calls`: how many there were."""

    def __init__(
        self, names: Mapping[int, str], layers: Sequence[int] | None, heads: Sequence[int], capture: Capture | None
    ) -> None:
        self.names, self.layers, self.heads, self.capture = names, layers, tuple(heads), capture
        self.calls = 0
        self.seen: list[LayerCapture] = []

    def look(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, out: Tensor,
        options: Mapping[str, Any],
    ) -> Tensor:  # fmt: skip
        """Attention of one call, into out; what it showed is kept if the call is wanted."""
        index, self.calls = self.calls, self.calls + 1
        if self.layers is not None and index not in self.layers:
            return functional.attention(q, k, v, bias=bias, sinks=sinks, out=out, **options)
        q_len, kv_len = q.shape[2], k.shape[2]
        size = (min(q_len, _MAP), min(kv_len, _MAP))
        capture = self.capture or Capture(heads=self.heads, statistics=True, map=size)
        _, captured = functional.attention(q, k, v, bias=bias, sinks=sinks, out=out, weights=capture, **options)
        heads = tuple(int(h) for h in capture.heads) or tuple(range(q.shape[1]))
        name = self.names.get(id(module), type(module).__name__)
        self.seen.append(LayerCapture(index, name, heads, q_len, kv_len, captured))
        return out
