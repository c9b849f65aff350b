"""A generated token's attention in one call: rotary positions, the new row of the cache, attention. For layers whose forward is
Llama's, Mistral's, Qwen2's or Qwen3's code, as it is in more than thirty modelling files.
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from .. import _core
from .._arrays import has_tangent
from .._options import build_options
from ..torch._calls import inner_contiguous
from ._cache import GrowingLayer
from ._latent import NAME
from ._masks import ModelMask
from ._packing import observer, running
from ._weights import weights_wanted

_MODELS = ("Llama", "Mistral", "Qwen2", "Qwen3")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _code(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


@functools.cache
def _known() -> tuple[tuple[CodeType, ...], tuple[tuple[str, CodeType | None], ...]]:
    """The code of forward in each of _MODELS, and that of the functions that turn q and k."""
    files: dict[str, ModuleType] = {}
    for name in _MODELS:
        with contextlib.suppress(ImportError):  # a model that this version of transformers has not
            files[name] = importlib.import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    forwards = (_code(getattr(getattr(file, f"{name}Attention", None), "forward", None)) for name, file in files.items())
    turns = ((name, _code(getattr(files.get("Llama"), name, None))) for name in ("rotate_half", "apply_rotary_pos_emb"))
    return tuple(code for code in forwards if code is not None), tuple(turns)


def _same(one: CodeType | None, other: CodeType | None) -> bool:
    """Whether they compute the same: names and constants, but for texts."""
    if one is None or other is None:
        return False
    numbers = [[x for x in code.co_consts if not isinstance(x, str)] for code in (one, other)]
    return one.co_code == other.co_code and one.co_names == other.co_names and numbers[0] == numbers[1]


def is_known(module: ModuleType, attention: type) -> bool:
    """Whether the class of a modelling file computes as one of _MODELS."""
    code = _code(vars(attention).get("forward"))
    if code is None or not {"q_proj", "o_proj", "apply_rotary_pos_emb", "update"}.issubset(code.co_names):
        return False
    forwards, turns = _known()
    return any(_same(code, one) for one in forwards) and all(_same(_code(getattr(module, name, None)), one) for name, one in turns)


def _room(layer: Any, x: Tensor, rotary: Any, mask: Any, cache: Any, options: dict[str, Any]) -> DynamicLayer | None:
    """The cache's layer where the call is one that decode_step computes, and has room for a token; otherwise None."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or type(x) is not Tensor or x.ndim != 3 or x.shape[1] != 1:
        return None
    if layer.config._attn_implementation != NAME or not x.is_cpu or x.dtype not in _FLOATS or torch.is_autocast_enabled("cpu"):
        return None
    if observer.get() is not None or running.get() is not None or weights_wanted(options) or (layer.training and layer.attention_dropout):
        return None
    if not (mask is None or type(mask) is ModelMask) or options.get("cu_seq_lens_q") is not None or options.get("cache") is not None:
        return None
    if getattr(getattr(cache, "update", None), "__func__", None) is not Cache.update or getattr(cache, "offloading", False):
        return None  # someone's own cache
    layers = getattr(cache, "layers", ())
    held = layers[layer.layer_idx] if layer.layer_idx < len(layers) else None
    if type(held) is DynamicLayer:
        held.__class__ = GrowingLayer  # the next token that is not ours makes room for more
    if type(held) is not GrowingLayer or not held.is_initialized or held.dtype is not x.dtype or not held.has_room(held.get_seq_length() + 1):
        return None
    if mask is not None and (mask.q_len, mask.kv_len) != (1, held.get_seq_length() + 1):
        return None
    turned = all(type(t) is Tensor and t.dtype is x.dtype and t.ndim == 3 and t.shape[2] == held.keys.shape[3] for t in rotary)
    return held if turned and held.keys.shape[0] == x.shape[0] and not has_tangent(x) else None


def _options(mask: ModelMask | None, scale: float) -> Any:
    """_core.Options, made once for all layers that get the same mask."""
    if mask is None:
        return build_options(4, scale=scale)
    made = mask.__dict__.get("_made")
    if made is None or made[0] != scale:
        made = (scale, build_options(4, scale=scale, mask=mask.mask, empty_row="mean"))
        mask.__dict__["_made"] = made
    return made[1]


def by_one_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """forward of such a layer: a token on a cache by decode_step, everything else as before."""
    code = _code(original)
    normed = code is not None and "q_norm" in code.co_names
    names = inspect.unwrap(original).__globals__
    turn = names.get("apply_rotary_pos_emb")

    @functools.wraps(original)
    def forward(
        self: Any, hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Any = None, past_key_values: Any = None, **options: Any
    ) -> Any:
        held = None
        if position_embeddings and names.get("apply_rotary_pos_emb") is turn:  # nobody has put another one there since
            held = _room(self, hidden_states, position_embeddings, attention_mask, past_key_values, options)
        if held is None:
            return original(self, hidden_states, position_embeddings, attention_mask, past_key_values, **options)
        batch, count = hidden_states.shape[0], held.get_seq_length()
        rows = [self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)]
        if normed:
            rows[:2] = [norm(x.view(batch, 1, -1, self.head_dim)).view(batch, 1, -1) for norm, x in zip((self.q_norm, self.k_norm), rows)]
        rows = [inner_contiguous(x if x.dtype is hidden_states.dtype else x.to(hidden_states.dtype)) for x in rows]
        keys, values = held.memory
        out = hidden_states.new_empty(batch, 1, rows[0].shape[2] // keys.shape[3] * values.shape[3])
        _core.decode_step(_options(attention_mask, self.scaling), count, *rows, *position_embeddings, keys, values, out)
        held.keys, held.values = keys.narrow(2, 0, count + 1), values.narrow(2, 0, count + 1)
        return self.o_proj(out), None

    return forward
