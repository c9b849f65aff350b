"""qkv instead of torch.nn.functional.scaled_dot_product_attention, for tensors on the CPU; undone by disable().

    qkv.torch.enable()                  # until qkv.torch.disable()
    with qkv.torch.enable(): ...        # until the end of the block

nn.MultiheadAttention(need_weights=False), nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, diffusers and everything
that calls it as an attribute of torch.nn.functional then run on qkv's kernels. PyTorch's fused inference path of
nn.TransformerEncoder layers, which bypasses the function, is switched off meanwhile. A TorchFunctionMode gets the call as it
gets PyTorch's; while a Tensor subclass is asked for its own, calls of other threads are PyTorch's too. Not affected: names that
were imported before (from torch.nn.functional import scaled_dot_product_attention), other devices, nested
tensors, Tensor subclasses except those of torch.nn.attention.bias; these stay PyTorch's.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import handle_torch_function

from ._calls import FLOATS
from ._overrides import any_override, is_causal_bias
from .sdpa import PLAIN, scaled_dot_product_attention

__all__ = ["disable", "enable", "is_enabled"]

_TRACED = frozenset((*PLAIN, FakeTensor, FunctionalTensor))
_pytorchs = F.scaled_dot_product_attention
_watching = threading.local()  # .watch: who is passed this thread's calls (_capture.py, parallel.py)
_watchers = 0  # in all threads
_classes_asked = 0  # how many calls ask a tensor's class at this moment
_lock = threading.Lock()


class _Wanted:
    """Who asks for qkv instead of PyTorch: calls of enable() until disable(), and blocks of `with enable()`, in all threads."""

    calls = blocks = 0
    ended = 0  # how often disable() was called
    fast_path: bool | None = None  # PyTorch's, while qkv replaces its function or anybody watches


def _patched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """qkv.torch.scaled_dot_product_attention where it computes what is asked, otherwise PyTorch's."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    if any_override(query, key, value, attn_mask) and not torch.compiler.is_compiling():
        tensors = (query, key, value, attn_mask)
        if torch._C._is_torch_function_mode_enabled():
            return handle_torch_function(_patched, tensors, *tensors, dropout_p, is_causal, **options)
        if not is_causal_bias(attn_mask) or any_override(query, key, value):
            return _ask_classes(*tensors, dropout_p, is_causal, **options)
    ours = _is_ours(query) and _is_ours(key) and _is_ours(value) and query.shape[-1] and value.shape[-1]
    if ours and (type(attn_mask) in _TRACED or is_causal_bias(attn_mask)):
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    return _pytorchs(query, key, value, attn_mask, dropout_p, is_causal, **options)


def _watched(*arguments: Any, **options: Any) -> Any:
    """Installed while anybody watches: this thread's watcher is passed the call, and the function that would have had it."""
    function = _patched if is_enabled() else _pytorchs
    watch = getattr(_watching, "watch", None)
    return function(*arguments, **options) if watch is None else watch(function, *arguments, **options)


def watch_calls(watch: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Passes this thread's calls to `watch`(function, *arguments, **options); None: not any more. Returns the watcher before."""
    global _watchers
    before, _watching.watch = getattr(_watching, "watch", None), watch
    with _lock:
        _watchers += (watch is not None) - (before is not None)
        _install()
    return before


def _ask_classes(*arguments: Any, **options: Any) -> Any:
    """PyTorch's function, which asks the __torch_function__ of its arguments; under its own name meanwhile, since a class may
    ask whether it is called by torch.nn.functional.scaled_dot_product_attention."""
    global _classes_asked
    with _lock:
        _classes_asked += 1
        _install()
    try:
        return _pytorchs(*arguments, **options)
    finally:
        with _lock:
            _classes_asked -= 1
            _install()


def _install() -> None:
    """Sets torch.nn.functional's function as the state says, and PyTorch's fused inference path, which bypasses it. The caller holds the lock."""
    wanted = is_enabled() or _watchers > 0
    if wanted and _Wanted.fast_path is None:
        _Wanted.fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
    elif not wanted and _Wanted.fast_path is not None:
        torch.backends.mha.set_fastpath_enabled(_Wanted.fast_path)
        _Wanted.fast_path = None
    usual = _watched if _watchers else _patched if is_enabled() else _pytorchs
    F.scaled_dot_product_attention = _pytorchs if _classes_asked else usual


def _is_ours(x: Any) -> bool:
    # Under torch.compile, types are those of the tensors that are traced; under torch.export and make_fx, what stands for them.
    return type(x) in _TRACED and x is not None and x.is_cpu and not x.is_nested and x.dtype in FLOATS


def _set() -> None:
    """PyTorch's function as it is wanted. The caller holds the lock."""
    if is_enabled() and "transformers.integrations.sdpa_attention" in sys.modules:
        # By name: qkv.transformers stands above this folder. Its models then return weights where they are asked for them.
        importlib.import_module("qkv.transformers._attention").weights_from_sdpa()
    _install()


class _Enabled:
    """The result of enable(). As a context manager it asks for qkv until the end of its block, and for no longer."""

    _entered = False

    def __init__(self) -> None:
        self._ended = _Wanted.ended

    def __enter__(self) -> _Enabled:
        with _lock:
            if not self._entered and self._ended == _Wanted.ended:  # a call that disable() ended counts no longer
                _Wanted.calls = max(_Wanted.calls - 1, 0)
            _Wanted.blocks, self._entered = _Wanted.blocks + 1, True
            _set()
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _Wanted.blocks -= 1
            _set()


def enable() -> _Enabled:
    """Replaces torch.nn.functional.scaled_dot_product_attention by qkv's, until disable() or, with `with`, until the end
    of the block: then an outer block, another thread's or an enable() before it still hold."""
    with _lock:
        _Wanted.calls += 1
        _set()
        return _Enabled()


def disable() -> None:
    """Ends what enable() began outside `with`; blocks end by themselves. Does nothing unless enable() was called."""
    with _lock:
        _Wanted.calls = 0
        _Wanted.ended += 1
        _set()


def is_enabled() -> bool:
    """Whether qkv replaces PyTorch's function."""
    return _Wanted.calls + _Wanted.blocks > 0
