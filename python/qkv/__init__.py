"""qkv: attention for CPUs. One formula, softmax(QK^T/sqrt(d))V, and everything people need around it.

    import numpy as np, qkv
    out = qkv.attention(q, k, v, causal=True)             # [B, H, T, D], NumPy, PyTorch or JAX

Core: :func:`attention`, :func:`attention_backward`, :class:`Mask`, :class:`KVCache`, :func:`linear_attention`,
:class:`Capture`, :class:`Rotary`. Layers: ``qkv.nn``. A small language model: :class:`AttentionLM`. Pictures: :func:`plot`.
Attention written by hand: :func:`judge`. What a model's heads do, and what it says without them: :func:`explore`.
PyTorch: ``qkv.torch``; JAX: ``qkv.jax``; Hugging Face: ``qkv.transformers``. Each is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _attention, _linear, capture, kv_cache, masks, rotary, varlen
from ._attention import *
from ._core import (
    CacheFullError,
    Error,
    FormatError,
    IoError,
    OptionError,
    ShapeError,
    UnsupportedError,
    __version__,
    available_threads,
    bits,
    isa,
    num_threads,
    set_bits,
    set_isa,
    set_num_threads,
    supported_isas,
)
from ._linear import *
from .capture import *
from .kv_cache import *
from .masks import *
from .rotary import *
from .varlen import *

if TYPE_CHECKING:
    from . import io as io
    from . import jax as jax
    from . import lm as lm
    from . import nn as nn
    from . import standins as standins
    from . import torch as torch
    from . import transformers as transformers
    from ._explore.explored import explore
    from ._judge import judge
    from .lm import AttentionLM
    from .plotting import plot

# These are imported at first use: what they need takes time to load, or may not be installed.
_LAZY_MODULES = ("nn", "torch", "jax", "transformers", "standins", "lm", "io")
_LAZY_NAMES = {"AttentionLM": "lm", "explore": "_explore.explored", "judge": "_judge", "plot": "plotting"}

__all__ = [
    *_attention.__all__, *_linear.__all__, *capture.__all__, *kv_cache.__all__, *masks.__all__, *rotary.__all__, *varlen.__all__,
    "AttentionLM", "CacheFullError", "Error", "FormatError", "IoError", "OptionError", "ShapeError", "UnsupportedError", "__version__",
    "available_threads", "bits", "explore", "isa", "judge", "num_threads", "plot", "set_bits", "set_isa", "set_num_threads", "supported_isas",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LAZY_MODULES])
