"""Encoders that compute the tokens of a batch and not its padding.

A batch of texts [B, T] pays for its longest one in every layer. Here the tokens are taken out of the padded batch behind the
embedding, all layers run on one row of them, [1, tokens, E], each text attends itself alone, and results are put back in the shape
that the caller expects. Only what the model's own modules return is touched; no weight and no class changes.
"""

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ._attention import register
from ._latent import NAME
from ._masks import outside_of_graphs
from ._modelling import installed
from ._packing import Packing, running

#: config.model_type of encoders whose layers compute rows by themselves, apart from attention. MiniLM, BGE, E5 and GTE are BERT.
ENCODERS = frozenset(
    "bert camembert data2vec-text deberta-v2 distilbert electra ernie jina_embeddings_v3 modernbert mpnet nomic_bert roberta "
    "roberta-prelayernorm xlm-roberta xlm-roberta-xl".split()
)
_OWN_ATTENTION = frozenset(("deberta-v2", "mpnet"))  # without transformers' AttentionInterface
_PACKED = ("embeddings", "rotary_emb")
_UNPADDED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models may share a config, and threads a model
_CHANGES = threading.RLock()


def _mapped(made: Any, function: Any) -> Any:
    """A tensor, or the tensors of a tuple, list or ModelOutput (in place), through `function`."""
    if isinstance(made, Tensor):
        return function(made)
    if isinstance(made, (tuple, list)):
        return type(made)(_mapped(x, function) for x in made)
    if isinstance(made, dict):
        for name, x in list(made.items()):
            made[name] = _mapped(x, function)
    return made


def _pack_output(_: nn.Module, __: Any, output: Any) -> Any:
    packing = running.get()
    if packing is None:
        return output
    padded = ((1, packing.shape[1]), packing.shape)
    return _mapped(output, lambda x: packing.pack(x) if x.dim() > 2 and x.shape[:2] in padded else x)


def _pad_input(_: nn.Module, args: tuple[Any, ...]) -> Any:
    packing = running.get()
    return args if packing is None else _mapped(args, packing.pad)


def _refuse(model: nn.Module, text: str) -> None:
    raise NotImplementedError(f"[qkv.transformers] unpad({type(model).__name__}): {text}")


def _packed(model: PreTrainedModel, given: dict[str, Any]) -> Packing | None:
    """Where the tokens of a call lie; None where it has none to pack, which the model's own code then answers."""
    if model.config._attn_implementation != NAME and model.config.model_type not in _OWN_ATTENTION:
        _refuse(model, f'attn_implementation must stay "qkv": got {model.config._attn_implementation!r}; unpad() again, or undo it')
    if model.config.model_type in _OWN_ATTENTION and not installed():
        _refuse(model, "unregister() took qkv's attention out of the model's file: register() again, or pad()")
    for name in ("past_key_values", "encoder_hidden_states", "encoder_attention_mask", "use_cache", "output_attentions", "head_mask", "is_causal"):
        value = model.config.output_attentions or given.get(name) if name == "output_attentions" else given.get(name)
        if value is not None and value is not False:
            _refuse(model, f"{name} is not computed without padding: got {name}={value!r:.40}")
    if torch.is_grad_enabled() and model.training and getattr(model, "is_gradient_checkpointing", False):
        _refuse(model, "layers that backward computes again do not know where texts begin: gradient_checkpointing_disable()")
    tokens, mask = given.get("input_ids"), given.get("attention_mask")
    tokens = given.get("inputs_embeds") if tokens is None else tokens
    if not isinstance(tokens, Tensor) or tokens.dim() < 2:
        return None
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2]:
        got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        _refuse(model, f"attention_mask must be [B, T], 1 = a token, of {list(tokens.shape[:2])}: got {got}")
    packing = Packing(mask)
    # Layers of transformers' AttentionInterface cannot reshape a row of no tokens.
    return packing if packing.longest or model.config.model_type in _OWN_ATTENTION else None


@outside_of_graphs
def _forward(model: PreTrainedModel, held: Any, *args: Any, **given: Any) -> Any:
    """The model's forward, its layers on tokens alone. held: what another library had put in its place."""
    own = type(model).forward.__get__(model)
    original = held or own
    if not hasattr(model, "_qkv_unpadded") or running.get() is not None:  # a wrapper of this function outlived pad()
        return original(*args, **given)
    given = dict(zip(inspect.signature(own).parameters, args)) | given
    packing = _packed(model, given)
    if packing is None:
        return original(**given)
    token = running.set(packing)
    try:
        # DeBERTa warns without a mask, and uses it for its embeddings alone here.
        output = original(**given if model.config.model_type == "deberta-v2" else given | {"attention_mask": None})
    finally:
        running.reset(token)
    packed = (1, len(packing.index))
    return _mapped(output, lambda x: packing.pad(x) if x.dim() > 2 and x.shape[:2] == packed else x)


def _encoders(model: nn.Module) -> list[PreTrainedModel]:
    """The models inside `model` whose layers run: those without a PreTrainedModel of their own inside."""
    every = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    return [m for m in every if not any(isinstance(x, PreTrainedModel) and x is not m for x in m.modules())]


def _check(model: PreTrainedModel) -> None:
    config = model.config
    if config.model_type not in ENCODERS:
        _refuse(model, f"computed are encoders of text ({', '.join(sorted(ENCODERS))}): got model_type {config.model_type!r}")
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        _refuse(model, "decoders are not computed without padding: got a config with is_decoder")
    if getattr(config, "chunk_size_feed_forward", 0):
        _refuse(model, f"chunks of a padded length are not computed: got chunk_size_feed_forward={config.chunk_size_feed_forward}")
    if getattr(config, "conv_kernel_size", 0):
        _refuse(model, f"a convolution over tokens is not computed without padding: got conv_kernel_size={config.conv_kernel_size}")


class _Changes(NamedTuple):
    """What unpad() changed of a model; `implementation`: its config's before."""

    implementation: str | None
    hooks: tuple[Any, ...]


def _put(model: PreTrainedModel) -> None:
    hooks = []
    for name, module in model.named_children():
        if name in _PACKED:
            hooks.append(module.register_forward_hook(_pack_output))
        elif name == "pooler":
            hooks.append(module.register_forward_pre_hook(_pad_input))
    shared = [other._qkv_unpadded.implementation for other in _UNPADDED if other.config is model.config]
    model._qkv_unpadded = _Changes(shared[0] if shared else model.config._attn_implementation, tuple(hooks))
    _UNPADDED.add(model)
    # Not hooks of the model's own: callers such as sentence-transformers ask for `forward` itself, and for its arguments.
    forward = functools.partial(_forward, model, vars(model).get("forward"))
    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    model.forward = forward


def unpad(model: nn.Module) -> nn.Module:
    """Makes every text encoder inside `model` compute tokens and not padding, from now on; returns `model`.

        qkv.transformers.unpad(model)
        model(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state    # [B, T, E]; padding rows are 0

    model: an encoder of transformers (see ENCODERS), one with a head (classification, rerankers), or a module that holds some, such
    as a SentenceTransformer. Its attn_implementation becomes "qkv". Forward and backward; dropout draws for tokens only.
    attention_mask is [B, T]; tokens may lie anywhere in a row, side by side where windows or distances count. A second call does no harm.

    Raises NotImplementedError for what it cannot compute, by name: other models, decoders, caches, output_attentions.
    """
    encoders = _encoders(model)
    if not encoders:
        raise TypeError(f"[qkv.transformers] unpad() needs a model of transformers, or a module that holds one: got {type(model).__name__}")
    for one in encoders:
        _check(one)
    register()
    with _CHANGES:
        for one in encoders:
            if not hasattr(one, "_qkv_unpadded"):
                _put(one)
            if one.config.model_type not in _OWN_ATTENTION:
                one.set_attn_implementation(NAME)
    return model


def pad(model: nn.Module) -> nn.Module:
    """Undoes :func:`unpad`; returns `model`."""
    with _CHANGES:
        for one in _encoders(model):
            if hasattr(one, "_qkv_unpadded"):
                _undo(one)
    return model


def _undo(model: PreTrainedModel) -> None:
    implementation, hooks = model._qkv_unpadded
    del model._qkv_unpadded
    model._qkv_blocks = 0
    _UNPADDED.discard(model)
    if getattr(model.forward, "func", None) is _forward:
        held = model.forward.args[1]
        del model.forward
        if held is not None:
            model.forward = held
    for hook in hooks:
        hook.remove()
    if model.config.model_type not in _OWN_ATTENTION and not any(other.config is model.config for other in _UNPADDED):
        model.set_attn_implementation(implementation)


@contextlib.contextmanager
def unpadded(model: nn.Module) -> Iterator[nn.Module]:
    """:func:`unpad` within the block, or until the last of several blocks ends; a model that was unpadded before stays so."""
    with _CHANGES:
        own = [one for one in _encoders(model) if getattr(one, "_qkv_blocks", 0) or not hasattr(one, "_qkv_unpadded")]
        unpad(model)
        for one in own:
            one._qkv_blocks = getattr(one, "_qkv_blocks", 0) + 1
    try:
        yield model
    finally:
        with _CHANGES:
            for one in own:
                one._qkv_blocks = max(one._qkv_blocks - 1, 0)
                if not one._qkv_blocks:
                    pad(one)
