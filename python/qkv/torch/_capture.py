"""Captures of every call of scaled_dot_product_attention by any PyTorch model on the CPU, one's own too.

    with qkv.torch.capture() as captures:
        model(x)
    captures.save("page.html")

Calls of PyTorch's function, that of this package and what enable() replaces it by count, under whatever name they were imported. Not:
attention that a model computes by itself, nn.MultiheadAttention(need_weights=True), flex_attention, varlen_attn, what torch.compile has compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from .._arrays import whole_numbers
from .._explore.captures import Captures
from .._explore.collector import Collector, is_cross
from .._explore.layer import Wanted
from .._progress import Progress, on_terminal
from ..capture import Capture
from . import _calls, patch, sdpa
from ._overrides import is_causal_bias

__all__ = ["TorchCapture", "capture"]


class TorchCapture(Captures):
    """Captures until now; a run is a forward of the outermost module. skipped: calls that could not be captured, by reason."""

    def __init__(self, collector: Collector) -> None:
        super().__init__(collector.runs)
        self.skipped: dict[str, int] = {}


class _Mode(TorchFunctionMode):
    """Passes every call of attention to `capture`."""

    def __init__(self, to: capture) -> None:
        super().__init__()
        self.capture = to
        self.functions = (patch._pytorchs, patch._patched, sdpa.scaled_dot_product_attention)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(func is one for one in self.functions):
            return self.capture._call(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class capture:  # noqa: N801, as torch.no_grad
    """Captures every call of scaled_dot_product_attention until the end of the block; the thread's own calls only.

    Within the block attention is computed by qkv, as under enable(), with its gradients; captures change none of them.

    Args:
        layers: which calls within one forward, by number. None: all.
        heads: query heads; none: all.
        what: a qkv.Capture of its own instead of statistics, kinds of heads and maps.
        exact: (layer, head) whose q, k and lse are kept, so that the page shows every weight at any length; none: of up to 128 tokens
            the clearest head of each kind in each layer.
        ids: [B, T] or [T], the numbers of the tokens: duplicate and induction heads are known by them.
        first: how many of the first keys are set apart before a head's kind is said.
        whole: False: no single weights are kept beside the maps, whose cells are single weights up to 64 tokens.
        progress: a line per call on standard error; None: where that is a terminal.

    Raises ValueError for first below 0, and at the end of the block for layers that no forward had and ids that fit no call.
    """

    def __init__(
        self, *, layers: Sequence[int] | None = None, heads: Sequence[int] = (), what: Capture | None = None,
        exact: Sequence[tuple[int, int]] = (), ids: Any = None, first: int = 1, whole: bool = True, progress: bool | None = False,
    ) -> None:  # fmt: skip
        if what is not None and heads:
            raise ValueError("[capture] heads go into the Capture where there is one: qkv.Capture(heads=...)")
        self._shown = on_terminal() if progress is None else progress
        self._collector = Collector({}, layers, Wanted(tuple(heads), what, first=first, whole=whole), exact)
        if ids is not None:
            numbers = np.atleast_2d(whole_numbers(ids, "[capture] ids", np.int64))
            if numbers.ndim != 2:
                raise ValueError(f"[capture] ids must be [B, T] or [T]: got {list(numbers.shape)}")
            self._collector.ids[""] = numbers
        self._modules: list[nn.Module] = []
        self._undo: list[Any] = []
        self._bar: Progress | None = None
        self._busy = False
        self.captures = TorchCapture(self._collector)

    def __enter__(self) -> TorchCapture:
        self._mode, self._thread = _Mode(self), threading.get_ident()
        self._undo = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._outer = patch.watch_calls(self._call)
        self._mode.__enter__()
        return self.captures

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        patch.watch_calls(self._outer)
        for hook in self._undo:
            hook.remove()
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        if self._collector.skipped:
            self.captures.skipped["forwards on a cache (one forward of the whole text shows all)"] = self._collector.skipped
        last = self._collector.runs[-1] if self._collector.runs else None
        if last is not None:
            last.notes += [f"{count} calls were not captured: {why}." for why, count in self.captures.skipped.items()]
        if error[0] is None:
            self._require_fitting()

    def _require_fitting(self) -> None:
        """Raises ValueError for what was asked for and no call had."""
        if self._collector.most_calls:
            self._collector.require_layers("capture")
        ids, calls = self._collector.ids.get(""), [one for run in self._collector.runs for one in run.layers if not one.cross]
        sizes = dict.fromkeys((len(one.pages), one.kv_len) for one in calls)
        if ids is not None and sizes and not any(len(ids) in (1, batch) and ids.shape[1] == length for batch, length in sizes):
            raise ValueError(f"[capture] ids must be [B|1, T] of the tokens: got {list(ids.shape)} for [B, T] of {list(map(list, sizes))[:4]}")

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() != self._thread:  # hooks of all modules are those of all threads
            return
        if not self._modules:
            self._collector.begin()
            self._collector.names = {id(m): name for name, m in module.named_modules()}
            self.captures.title = self.captures.title or type(module).__name__
            layers = sum(
                isinstance(m, nn.MultiheadAttention) or "attention" in type(m).__name__.lower() for m in module.modules()
            )
            if self._shown and self._bar is None:
                self._bar = self._collector.progress = Progress(max(layers, 1)).__enter__()
        self._modules.append(module)

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        while self._modules and self._modules.pop() is not module:
            pass

    def _call(
        self, function: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """One call of attention, captured if it can be."""
        arguments, options = (query, key, value, attn_mask, dropout_p, is_causal), {"scale": scale, "enable_gqa": enable_gqa}
        if self._busy:
            return function(*arguments, **options)
        self._busy = True
        try:
            why = _why_not(query, key, value, attn_mask)
            if why is not None:
                self.captures.skipped[why] = self.captures.skipped.get(why, 0) + 1
                return function(*arguments, **options)
            out, tensors = None, [x for x in (query, key, value, attn_mask) if isinstance(x, Tensor)]
            if dropout_p > 0 or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
                out = sdpa.scaled_dot_product_attention(*arguments, **options)
            with torch.no_grad():
                captured = self._captured(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            return captured if out is None else out
        finally:
            self._busy = False

    def _captured(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, scale: float | None, gqa: bool
    ) -> Tensor:
        q, k, v, bias, keep, is_causal, lead = sdpa.prepare(query, key, value, mask, is_causal, gqa)  # type: ignore[assignment]
        options: dict[str, Any] = {"scale": scale}
        if is_causal:
            options["causal"] = "top_left" if is_causal is True else is_causal
        if keep is not None:
            options["keep"] = keep
        if bias is not None:
            bias = _calls.inner_contiguous(bias)
        module = self._modules[-1] if self._modules else None
        # Without a name that says so, other lengths without any mask are another text's, unless a forward goes on on a cache.
        names, collector = self._collector.names, self._collector
        other = q.shape[2] != k.shape[2] and mask is None and not is_causal and not collector.may_continue
        cross = is_cross(module, names.get(id(module), "")) or other or names.get(id(module), "").endswith("multihead_attn")
        out = collector.attend(module, q, k, v, bias, None, _calls.empty_output(q, v), options, cross=cross)
        return out if lead is None else out.reshape(*lead, *out.shape[-2:])


def _why_not(query: Any, key: Any, value: Any, mask: Any) -> str | None:
    """Why a call cannot be captured; None: it can."""
    for x in (query, key, value):
        if type(x) not in sdpa.PLAIN or x is None:
            return f"tensors of {type(x).__name__}"
        if not x.is_cpu:
            return f"tensors on {x.device.type}"
        if x.is_nested:
            return "nested tensors"
        if x.dtype not in _calls.FLOATS:
            return f"tensors of {x.dtype}"
    if not sdpa.direct(query, key, value):
        return "calls under torch.compile, torch.func or a tracer"
    if type(mask) not in sdpa.PLAIN and not is_causal_bias(mask):
        return f"a mask of {type(mask).__name__}"
    return None if query.shape[-1] and value.shape[-1] else "tensors without a width"
