"""qkv in the place of torch.nn.functional.scaled_dot_product_attention, for tensors on the CPU; undone by disable().

    qkv.torch.enable()                  # until qkv.torch.disable()
    with qkv.torch.enable(): ...        # until the end of the block
    qkv.torch.enable(varlen=True)       # torch.nn.attention.varlen.varlen_attn and varlen_attn_out too

nn.MultiheadAttention(need_weights=False), nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, diffusers and everything
that looks the function up in torch.nn.functional then run on qkv's kernels. PyTorch's fused inference path of
nn.TransformerEncoder layers, which bypasses the function, is switched off meanwhile. A TorchFunctionMode sees the call as it
sees PyTorch's. Not affected: names that were imported before (from torch.nn.functional import scaled_dot_product_attention),
other devices, nested tensors, Tensor subclasses except those of torch.nn.attention.bias; these stay PyTorch's.
"""

from __future__ import annotations

import functools
import importlib
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
from .sdpa import _PLAIN, scaled_dot_product_attention
from .varlen import varlen_attn, varlen_attn_out

__all__ = ["disable", "enable", "is_enabled"]

_TRACED = frozenset((*_PLAIN, FakeTensor, FunctionalTensor))
_pytorchs = F.scaled_dot_product_attention
_varlen = "torch.nn.attention.varlen"
_watching = threading.local()  # .watch: who is passed this thread's calls (_capture.py, parallel.py)
_watchers = 0  # in all threads
_classes_asked = 0  # how many calls ask a tensor's class at this moment
_lock = threading.Lock()


class _Switch:
    """On from a call of enable() until disable(), and in every block of `with enable()`, in all threads."""

    def __init__(self) -> None:
        self.calls = self.blocks = 0  # how many want it on
        self.before: Any = None  # what stands in PyTorch while it is off

    def __bool__(self) -> bool:
        return self.calls + self.blocks > 0


_attention, _packed = _Switch(), _Switch()


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
    """In place while anybody watches: this thread's watcher is passed the call, and the function that would have had it."""
    function = _patched if _attention else _pytorchs
    watch = getattr(_watching, "watch", None)
    return function(*arguments, **options) if watch is None else watch(function, *arguments, **options)


def watch_calls(watch: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Passes this thread's calls to `watch`(function, *arguments, **options); None: not any more. Returns the watcher before."""
    global _watchers
    before, _watching.watch = getattr(_watching, "watch", None), watch
    with _lock:
        _watchers += (watch is not None) - (before is not None)
        _put_in_place()
    return before


def _ask_classes(*arguments: Any, **options: Any) -> Any:
    """PyTorch's function, which asks the __torch_function__ of its arguments; under its own name meanwhile, since a class may
    ask whether it is called by torch.nn.functional.scaled_dot_product_attention."""
    global _classes_asked
    with _lock:
        _classes_asked += 1
        _put_in_place()
    try:
        return _pytorchs(*arguments, **options)
    finally:
        with _lock:
            _classes_asked -= 1
            _put_in_place()


def _put_in_place() -> None:
    """Sets torch.nn.functional's function as the state says. The caller holds the lock."""
    usual = _watched if _watchers else _patched if _attention else _pytorchs
    F.scaled_dot_product_attention = _pytorchs if _classes_asked else usual


def _is_ours(x: Any) -> bool:
    # Under torch.compile, types are those of the tensors that are traced; under torch.export and make_fx, what stands for them.
    return type(x) in _TRACED and x is not None and x.is_cpu and not x.is_nested and x.dtype in FLOATS


def _instead(ours: Callable[..., Any], pytorchs: Callable[..., Any]) -> Callable[..., Any]:
    """`ours` for tensors on the CPU, `pytorchs` otherwise."""

    @functools.wraps(pytorchs)
    def patched(*arguments: Any, **options: Any) -> Any:
        tensors = [x for x in (*arguments, *options.values()) if isinstance(x, Tensor)]
        on_cpu = all(x.device.type == "cpu" and type(x) in _TRACED for x in tensors)
        return (ours if on_cpu else pytorchs)(*arguments, **options)

    return patched


def _set() -> None:
    """PyTorch's functions and its fused inference path as the switches say. The caller holds the lock."""
    if bool(_attention) != (_attention.before is not None):
        fast = _attention.before or (torch.backends.mha.get_fastpath_enabled(),)
        torch.backends.mha.set_fastpath_enabled(not _attention and fast[0])
        _attention.before = fast if _attention else None
        _put_in_place()
    if bool(_packed) != (_packed.before is not None):
        module = importlib.import_module(_varlen)
        ours = {f.__name__: f for f in (varlen_attn, varlen_attn_out) if hasattr(module, f.__name__)}
        pytorchs = _packed.before or {name: getattr(module, name) for name in ours}
        for name, function in pytorchs.items():
            setattr(module, name, _instead(ours[name], function) if _packed else function)
        _packed.before = pytorchs if _packed else None


class _Enabled:
    """What enable() returns. As a context manager it asks for qkv until the end of its block, and for no longer."""

    def __init__(self, switches: tuple[_Switch, ...]) -> None:
        self._switches, self._entered = switches, False

    def __enter__(self) -> _Enabled:
        with _lock:
            for switch in self._switches:
                if not self._entered:
                    switch.calls = max(switch.calls - 1, 0)
                switch.blocks += 1
            self._entered = True
            _set()
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            for switch in self._switches:
                switch.blocks -= 1
            _set()


def enable(varlen: bool = False) -> _Enabled:
    """Puts qkv in the place of torch.nn.functional.scaled_dot_product_attention, until disable() or, with `with`, until the end
    of the block: then an outer block, another thread's or an enable() before it still hold.

    Args:
        varlen: also in the place of torch.nn.attention.varlen.varlen_attn and varlen_attn_out, which PyTorch has on CUDA only.

    Raises:
        ImportError: for varlen=True where PyTorch has no torch.nn.attention.varlen (before 2.10).
    """
    if varlen:
        importlib.import_module(_varlen)
    switches = (_attention, _packed) if varlen else (_attention,)
    with _lock:
        for switch in switches:
            switch.calls += 1
        _set()
    return _Enabled(switches)


def disable() -> None:
    """Ends what enable() began outside `with`; blocks end by themselves. Does nothing unless enable() was called."""
    with _lock:
        _attention.calls = _packed.calls = 0
        _set()


def is_enabled() -> bool:
    """Whether qkv stands in PyTorch's place."""
    return bool(_attention)
