"""Captures the calls of a running PyTorch model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from .. import _attention as functional
from .._arrays import integers, pairs_of
from .._progress import Progress
from ..capture import Capture
from .file import Run
from .layer import Layer, Wanted, capture_call, image_in
from .writes import Writer

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def is_cross(module: nn.Module | None, name: str) -> bool:
    """Whether a module's queries and keys are of two texts, as far as it says so."""
    return bool(_CROSS.search(name.rsplit(".", 1)[-1])) or bool(getattr(module, "is_cross_attention", False))


class Collector:
    """Captures of the calls of one run or of several. `calls`: how many there were in the forward that runs."""

    def __init__(
        self, names: Mapping[int, str], layers: Sequence[int] | None, wanted: Wanted, exact: Sequence[tuple[int, int]] = (),
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.names, self.wanted = names, wanted
        self.layers = None if layers is None else integers(layers, "[capture] layers")
        if wanted.capture is not None and not isinstance(wanted.capture, Capture):
            raise TypeError(f"[capture] what is captured must be a qkv.Capture: got {type(wanted.capture).__name__}")
        if wanted.first is not None and (not isinstance(wanted.first, (int, np.integer)) or wanted.first < 0):
            raise ValueError(f"[capture] first must be a number of keys, 0 or more: got {wanted.first!r}")
        self.exact: dict[int, list[int]] = {}
        for layer, head in pairs_of(exact, "[capture] exact"):
            self.exact.setdefault(layer, []).append(head)
        self.calls = self.most_calls = 0
        self.skipped = 0  #: forwards on the cache of the one before
        self.runs: list[Run] = []
        self.ids: dict[str, np.ndarray] = {}  #: of the forward that runs, by side
        self.live: dict[str, np.ndarray] = {}
        self.progress = progress
        self.writer: Writer | None = None  #: hears what heads write
        self._continues: bool | None = None

    def require_layers(self, function: str) -> None:
        """Raises ValueError for layers that no forward had, and exact heads of layers that are not captured."""
        for what, numbers in (("layers", self.layers or ()), ("exact: layers", self.exact)):
            if any(layer not in range(self.most_calls) for layer in numbers):
                raise ValueError(f"[{function}] {what} must lie in 0..{self.most_calls - 1}: got {list(numbers)}")
        if self.layers is not None and not self.exact.keys() <= set(self.layers):
            raise ValueError(f"[{function}] exact: layers must be captured ones, {self.layers}: got {list(self.exact)}")

    def begin(self) -> None:
        """A forward of the model begins."""
        self.calls, self._continues = 0, None

    @property
    def may_continue(self) -> bool:
        """Whether the next call may be of a forward on the cache of the one before, whose first call was no cross-attention."""
        return bool(self.runs) and (self._continues if self._continues is not None else not self.runs[-1].layers[0].cross)

    def attend(
        self, module: nn.Module | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, out: Tensor,
        options: Mapping[str, Any], *, cross: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention of one call, into out; what it showed is kept if the call is wanted. cross: as is_cross where that is known."""
        index, self.calls = self.calls, self.calls + 1
        self.most_calls = max(self.most_calls, self.calls)
        name = (
            self.names.get(id(module), type(module).__name__ if module is not None else f"call.{index}")
            or type(module).__name__
        )
        cross = is_cross(module, name) if cross is None else cross
        if self._continues is None:
            self._begin_run(q, k, cross)
        if self.progress is not None:
            self.progress.update(min(self.calls, self.progress.total), f"{name}  {k.shape[2]} keys")
        if self._continues or (self.layers is not None and index not in self.layers):
            functional.attention(q, k, v, bias=bias, sinks=sinks, out=out, **options)
            self._written(index, name, None, v, out, "")
            return out
        side = "decoder" if "decoder" in self.ids and (cross or "decoder" in name) else ""
        ids, live = self.ids.get(side), self.live.get(side)
        wanted = replace(
            self.wanted,
            exact=tuple(self.exact.get(index, ())),
            ids=None if cross or ids is None or ids.shape[1] != k.shape[2] or len(ids) not in (1, len(q)) else ids,
            live=None if live is None or live.shape != (q.shape[0], q.shape[2]) else live,
            first=1 if side else self.wanted.first,
            image=None if cross else image_in(q.shape[2], self.wanted.image),
        )
        layer = capture_call(index, name, q, k, v, bias, sinks, out, options, wanted, cross=cross)
        self.runs[-1].layers.append(layer)
        self._written(index, name, layer, v, out, side)
        return out

    def _written(self, index: int, name: str, layer: Layer | None, v: Tensor, out: Tensor, side: str) -> None:
        if self.writer is not None:
            self.writer.attended(index, name, layer, v, out, is_last=side == "decoder" or "decoder" not in self.ids)

    def _begin_run(self, q: Tensor, k: Tensor, cross: bool) -> None:
        """A forward on the cache of the one before is not captured: it shows the last queries of a text alone."""
        before = self.runs[-1].layers if self.runs else []
        again = bool(before) and not cross and not before[0].cross and q.shape[0] == len(before[0].pages)
        self._continues = again and q.shape[2] < k.shape[2]
        if self._continues:
            self.skipped += 1
        else:
            self.runs.append(Run([], ids=dict(self.ids)))
