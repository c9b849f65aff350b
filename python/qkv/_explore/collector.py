"""Captures the calls of a running PyTorch model, and puts together what several calls on one cache show. Not: what one call shows
(layer.py), how the calls are found (qkv.transformers, qkv.torch).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import _attention as functional
from .._progress import Progress
from ..masks import Mask
from .file import Run
from .formula import Formula
from .layer import Layer, Wanted, capture_call

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def is_cross(module: nn.Module | None, name: str) -> bool:
    """Whether a module's queries and keys are of two texts, as far as it says so."""
    return bool(_CROSS.search(name.rsplit(".", 1)[-1])) or bool(getattr(module, "is_cross_attention", False))


class _Steps:
    """The calls behind the first on one layer's cache: their queries, and their keys."""

    def __init__(self) -> None:
        self.queries: list[Tensor] = []  # [B, H, Tq, D] each
        self.keys: list[tuple[int, Tensor]] = []  # position of the first, [B, Hkv, n, D]
        self.sinks: Tensor | None = None
        self.options: Mapping[str, Any] = {}
        self.page: dict[str, Any] = {}
        self.first = 0
        self.why: str | None = None


class Collector:
    """What the calls of one run or of several showed. `calls`: how many there were in the forward that runs."""

    def __init__(
        self, names: Mapping[int, str], layers: Sequence[int] | None, wanted: Wanted, exact: Sequence[tuple[int, int]] = (),
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.names, self.layers, self.wanted = names, layers, wanted
        self.exact: dict[int, list[int]] = {}
        for layer, head in exact:
            self.exact.setdefault(int(layer), []).append(int(head))
        self.calls = self.most_calls = 0
        self.start: int | None = None  #: where the first query of the first forward stands, where it has keys of a cache
        self.runs: list[Run] = []
        self.ids: dict[str, np.ndarray] = {}  #: of the forward that runs, by side
        self.live: dict[str, np.ndarray] = {}
        self.progress = progress
        self._steps: dict[int, _Steps] = {}
        self._continues: bool | None = None

    def begin(self) -> None:
        """A forward of the model begins."""
        self.calls, self._continues = 0, None

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
            self._begin_run(q, k, cross, options)
        if self.progress is not None:
            self.progress.update(min(self.calls, self.progress.total), f"{name}  {k.shape[2]} keys")
        wanted_layer = self.layers is None or index in self.layers
        if not wanted_layer or self._continues:
            functional.attention(q, k, v, bias=bias, sinks=sinks, out=out, **options)
            if wanted_layer:
                self._append(index, q, k, bias, sinks, options)
            return out
        side = "decoder" if "decoder" in self.ids and (cross or "decoder" in name) else ""
        ids, live = self.ids.get(side), self.live.get(side)
        wanted = replace(
            self.wanted,
            exact=tuple(self.exact.get(index, ())),
            ids=None if cross or ids is None or ids.shape[1] != k.shape[2] else ids,
            live=None if live is None or live.shape != (q.shape[0], q.shape[2]) else live,
            first=self.wanted.first if not side else 1,
            grid=None if cross else self.wanted.grid,
        )
        layer = capture_call(index, name, q, k, v, bias, sinks, out, options, wanted, cross=cross)
        if self.start is not None and not cross:  # of a cache that keeps a window of keys, key 0 is not the text's
            layer.key_first = max(0, self.start - min(layer.offsets))
        self.runs[-1].layers.append(layer)
        return out

    def _begin_run(self, q: Tensor, k: Tensor, cross: bool, options: Mapping[str, Any]) -> None:
        """Whether the forward that begins continues the one before: it has keys that the one before left in a cache."""
        before = self.runs[-1].layers if self.runs else []
        again = bool(before) and before[0].cross == cross and q.shape[0] == len(before[0].pages)
        self._continues = again and q.shape[2] < k.shape[2]
        if not self._continues:
            self.finish()
            self.runs.append(Run([], ids=dict(self.ids), first=self.start or 0))

    def _append(
        self, index: int, q: Tensor, k: Tensor, bias: Tensor | None, sinks: Tensor | None, options: Mapping[str, Any]
    ) -> None:
        steps = self._steps.setdefault(index, _Steps())
        prompt = next((layer for layer in self.runs[-1].layers if layer.index == index), None)
        formula = Formula(q.shape, k.shape[2], options, bias, sinks, cross=prompt is not None and prompt.cross)
        steps.options, steps.sinks = options, sinks
        steps.page = page = formula.page(0, ())[0]
        if not steps.queries and prompt is not None and not prompt.cross:
            steps.first = prompt.key_first + prompt.q_len + min(prompt.offsets)
        at = steps.first + sum(x.shape[2] for x in steps.queries)  # of the call's first query
        steps.queries.append(q.detach())
        if formula.cross:
            steps.keys = [(0, k.detach())]
            return
        unknown = sorted(set(page) - {"scale", "softcap", "empty", "offset", "causal", "window", "chunk", "keys", "refused"})
        if formula.why is not None or bias is not None or unknown:
            steps.why = (
                formula.why
                or ("a bias of every pair" if bias is not None else f"a mask with {unknown[0]}") + " is not put together"
            )
            return
        offset = formula.offset(0)
        behind, left = at - offset, page.get("window", [None])[0]  # the position of key 0
        if 0 <= behind <= (0 if left is None else max(0, at - left)):
            # Each call adds its own keys. A cache that keeps a window dropped some before the first call: no query of these has them.
            new = k if not steps.keys else k[:, :, offset : offset + q.shape[2]]
            steps.keys.append((behind if not steps.keys else at, new.detach().clone()))
        else:
            steps.why = "the cache drops keys which the mask does not"

    def finish(self) -> None:
        """Puts together what calls on a cache showed: the queries of the answer on all keys."""
        if not self._steps:
            return
        run, steps, self._steps = self.runs[-1], self._steps, {}
        why: dict[str, list[str]] = {}
        for index, one in steps.items():
            prompt = next((layer for layer in run.layers if layer.index == index), None)
            if prompt is None:
                continue
            if one.why is not None:
                why.setdefault(one.why, []).append(prompt.name)
                continue
            run.answers.append(self._answer(prompt, one))
        for reason, names in why.items():
            run.notes.append(f"The answer is not shown in {len(names)} layers ({names[0]}, ...): {reason}.")

    def _answer(self, prompt: Layer, steps: _Steps) -> Layer:
        q = torch.cat(steps.queries, 2)
        batch, _, q_len, _ = q.shape
        offsets = [steps.first] * batch
        total = steps.keys[0][1].shape[2] if prompt.cross else steps.first + q_len
        newest = steps.keys[-1][1]
        k = newest.new_zeros(batch, newest.shape[1], total, newest.shape[3])
        for first, keys in steps.keys:
            k[:, :, first : first + keys.shape[2]] = keys[:, :, : total - first]  # a static cache has room for more keys
        page, masks = steps.page, []
        if page.get("causal") or not prompt.cross:
            masks.append(Mask.causal(offsets=offsets))
        if "window" in page:
            masks.append(Mask.window(*(-1 if n is None else n for n in page["window"]), offsets=offsets))
        if "chunk" in page:
            masks.append(Mask.chunked(page["chunk"], "bottom_right"))
        masks += self._padding(batch, total)
        options = {name: value for name, value in steps.options.items() if name in ("scale", "softcap", "empty_row")}
        if masks and not prompt.cross:
            mask = masks[0]
            for other in masks[1:]:
                mask = mask & other
            options["mask"] = mask
        exact = prompt.exact.heads if prompt.exact is not None else ()
        wanted = replace(self.wanted, exact=exact)
        return capture_call(
            prompt.index, prompt.name, q, k, k, None, steps.sinks, torch.empty_like(q), options, wanted, cross=prompt.cross
        )

    def _padding(self, batch: int, total: int) -> list[Mask]:
        live = self.live.get("")
        if live is None or live.all() or len(live) != batch:
            return []
        kept = np.ones((batch, total), bool)
        kept[:, : live.shape[1]] = live[:, :total]
        return [Mask.keep(kept, "bk")]
