"""qkv in the place of torch.nn.functional.scaled_dot_product_attention, for tensors on the CPU; undone by disable().

    qkv.torch.enable()                  # until qkv.torch.disable()
    with qkv.torch.enable(): ...        # until the end of the block
    qkv.torch.enable(varlen=True)       # torch.nn.attention.varlen.varlen_attn and varlen_attn_out too

nn.MultiheadAttention(need_weights=False), nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, diffusers and everything
that looks the function up in torch.nn.functional then run on qkv's kernels. PyTorch's fused inference path of
nn.TransformerEncoder layers, which bypasses the function, is switched off meanwhile. A TorchFunctionMode sees the call as it
sees PyTorch's. Not affected: names that were imported before (from torch.nn.functional import scaled_dot_product_attention),
other devices, Tensor subclasses except those of torch.nn.attention.bias and nested tensors of jagged layout that nested.py
computes; these stay PyTorch's.
"""

from __future__ import annotations

import functools
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
from .nested import is_jagged, jagged_attention, why_not
from .sdpa import _PLAIN, scaled_dot_product_attention
from .varlen import varlen_attn, varlen_attn_out

__all__ = ["disable", "enable", "is_enabled"]

_TRACED = frozenset((*_PLAIN, FakeTensor, FunctionalTensor))
_pytorchs = F.scaled_dot_product_attention
_fast_path_was: list[bool] = []  # one entry while enabled
_varlen_was: dict[str, Callable[..., Any]] = {}  # torch.nn.attention.varlen's own functions, while they are replaced
_watching = threading.local()  # .watch: who looks at this thread's calls (looking.py)
_watchers = 0  # in all threads
_classes_asked = 0  # how many calls ask a tensor's class at this moment
_lock = threading.Lock()


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
        if is_jagged(query) and why_not(*tensors) is None:
            return jagged_attention(*tensors, dropout_p, is_causal, **options)
        if not is_causal_bias(attn_mask) or any_override(query, key, value):
            return _ask_classes(*tensors, dropout_p, is_causal, **options)
    elif torch.compiler.is_compiling() and query.is_nested and why_not(query, key, value, attn_mask) is None:
        return jagged_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    ours = _is_ours(query) and _is_ours(key) and _is_ours(value) and query.shape[-1] and value.shape[-1]
    if ours and (type(attn_mask) in _TRACED or is_causal_bias(attn_mask)):
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    return _pytorchs(query, key, value, attn_mask, dropout_p, is_causal, **options)


def _watched(*arguments: Any, **options: Any) -> Any:
    """In place while anybody looks: this thread's watcher is passed the call, and the function that would have had it."""
    function = _patched if _fast_path_was else _pytorchs
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
    usual = _watched if _watchers else _patched if _fast_path_was else _pytorchs
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


def _replace_varlen() -> None:
    """The caller holds the lock."""
    module = importlib.import_module("torch.nn.attention.varlen")
    for ours in (varlen_attn, varlen_attn_out):
        name = ours.__name__
        if hasattr(module, name) and name not in _varlen_was:
            _varlen_was[name] = getattr(module, name)
            setattr(module, name, _instead(ours, _varlen_was[name]))


class _Enabled:
    """What enable() returns: a context manager that disables at its end."""

    def __enter__(self) -> _Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        disable()


def enable(varlen: bool = False) -> _Enabled:
    """Puts qkv in the place of torch.nn.functional.scaled_dot_product_attention. A second call changes nothing.

    Args:
        varlen: also in the place of torch.nn.attention.varlen.varlen_attn and varlen_attn_out, which PyTorch has on CUDA only.

    Raises:
        ImportError: for varlen=True where PyTorch has no torch.nn.attention.varlen (before 2.10).
    """
    with _lock:
        if varlen:
            _replace_varlen()
        if not _fast_path_was:
            _fast_path_was.append(torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            _put_in_place()
    return _Enabled()


def disable() -> None:
    """Puts back PyTorch's functions, and its fused inference path as it was. Does nothing unless enable() was called."""
    with _lock:
        if _fast_path_was:
            torch.backends.mha.set_fastpath_enabled(_fast_path_was.pop())
            _put_in_place()
        for name in list(_varlen_was):
            setattr(sys.modules["torch.nn.attention.varlen"], name, _varlen_was.pop(name))


def is_enabled() -> bool:
    """Whether qkv stands in PyTorch's place."""
    return bool(_fast_path_was)
