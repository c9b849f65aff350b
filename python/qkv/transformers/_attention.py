"""transformers' AttentionInterface on qkv's kernels, with its backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from .. import _attention as functional
from .. import _core
from .._arrays import has_tangent
from .._options import build_options
from ..masks import Mask
from ..torch._calls import autocast, inner_contiguous
from ..torch.patch import _is_ours, is_enabled
from ._latent import NAME, LatentKeys, listed_keys
from ._masks import ModelMask, model_mask, outside_of_graphs
from ._modelling import install_all, remove_all
from ._packing import observer, running
from ._weights import attend as attend_with_weights
from ._weights import weights_wanted


def register(*, linear: bool = False) -> None:
    """Makes attn_implementation="qkv" known to transformers. A second call does no harm.

    Models with DeepSeek's latent attention that choose it decode in the absorbed form, which reads what their cache holds and
    computes no keys and values of all heads (see :func:`qkv.torch.latent_attention`); until :func:`unregister`.

    linear: also puts qkv's kernels into the linear-attention layers of every model, built before or after, until
    :func:`unregister`: the gated delta rule (Qwen3-Next, Qwen3.5, OLMo-hybrid), Kimi Delta Attention, Mamba's and Mamba-2's scans, their
    steps of one token and those of the convolutions, on the CPU; packed sequences (cu_seq_lens_q or seq_idx) stay apart, but for Mamba-1.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, model_mask)
    install_all(linear=linear)


def unregister() -> None:
    """Takes out what register() put into modelling files. attn_implementation="qkv" stays known."""
    remove_all()


class _Attend(torch.autograd.Function):
    """(q, k, v, bias, sinks, options) -> out [B, H, Tq, Dv]; options: what qkv.attention takes besides tensors with
    gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        out = _new_out(q, v)
        _, *numbers = functional.attention(q, k, v, bias=bias, sinks=sinks, return_lse="low", out=out, **options)
        keep = options.get("keep")  # saved: a mask that was changed since is refused, as the others
        ctx.save_for_backward(q, k, v, bias, sinks, keep, out, *numbers)
        ctx.options = {name: x for name, x in options.items() if name != "keep"}
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v, bias, sinks, keep, out, lse, low = ctx.saved_tensors
        options = {"bias": bias, "sinks": sinks, "keep": keep, "lse_low": low, **ctx.options}
        need = [name for name, wanted in zip(("q", "k", "v", "bias", "sinks"), ctx.needs_input_grad, strict=False) if wanted]
        gradients = functional.attention_backward(inner_contiguous(dout), q, k, v, out, lse, need=need, **options)
        return (*gradients[:5], None)


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """out alone, without qkv.attention's checks: the shapes are the model's own, and a step of generation takes
    microseconds."""
    out = _new_out(q, v)
    made = build_options(4, bias=bias, sinks=sinks, **options)
    _core.forward(made, None, "softmax", q, k, v, out, None, None, None)
    return out


def _new_out(q: Tensor, v: Tensor) -> Tensor:
    """out [B, H, Tq, Dv] in memory [B, Tq, H, Dv]: merging the heads afterwards copies nothing."""
    batch, heads, length, _ = q.shape
    return q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)


def _masks(attention_mask: Any, q_len: int, kv_len: int) -> tuple[dict[str, Any], Tensor | None]:
    """Options of qkv.attention, and a bias, from what the model passes to its layers as mask."""
    if isinstance(attention_mask, ModelMask):
        if attention_mask.covers(q_len, kv_len):
            return {"mask": attention_mask.mask}, None
        return {"keep": attention_mask.to_dense()[..., :kv_len]}, None  # a model whose keys are fewer cuts a tensor as well
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
        got = f"{type(attention_mask).__name__}{list(getattr(attention_mask, 'shape', ()))}"
        raise TypeError(
            f"[qkv.transformers] attention_mask must be None, 4-D or of model_mask: got {got}; was register() called?"
        )
    mask = attention_mask[..., :kv_len]
    if mask.dtype == torch.bool:
        return {"keep": mask}, None
    if not mask.is_floating_point():
        raise TypeError(f"[qkv.transformers] attention_mask must be bool, or floats that are added to scores: got {mask.dtype}")
    return {}, mask


def _documents(cu_q: Tensor, cu_k: Tensor | None, query: Tensor, key: Tensor) -> Mask:
    """The mask of what FlashAttention's models get as cu_seq_lens_q and cu_seq_lens_k: sequences packed in one row of tokens."""
    lengths = query.shape[2], key.shape[2]
    offsets = [x.tolist() for x in (cu_q, cu_q if cu_k is None else cu_k)]
    if query.shape[0] != 1 or any(cu[-1] > length for cu, length in zip(offsets, lengths)):
        raise ValueError(
            "[qkv.transformers] cu_seq_lens_q and cu_seq_lens_k must be of sequences packed in a batch of one, without keys of a "
            f"cache: got batch {query.shape[0]}, {lengths[0]} queries, {lengths[1]} keys, the last offsets "
            f"{[cu[-1] for cu in offsets]}; use_cache=False, or position_ids that restart instead"
        )
    # Tokens behind the last sequence are padding: a sequence of their own.
    return Mask.documents(*(cu if cu[-1] == length else [*cu, length] for cu, length in zip(offsets, lengths)))


#: Tensors that models pass down to every layer beside its attention's: no model's attention counts with them, or its mask has them.
_BESIDE = frozenset(
    "position_ids decoder_position_ids image_position_ids video_position_ids cache_position position_embeddings max_length_q max_length_k "
    "sliding_window deterministic input_ids inputs_embeds decoder_input_ids decoder_inputs_embeds decoder_attention_mask token_type_ids "
    "mm_token_type_ids moe_mm_token_type_ids seq_idx num_items_in_batch labels shift_labels logits_to_keep grid_thw image_grid_thw "
    "video_grid_thw image_sizes target_sizes second_per_grid_ts video_second_per_grid audio_feature_lengths".split()
)


def _require_known(others: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where a model passes a tensor that attention here does not count with."""
    for name, x in others.items():
        tensors = [y for y in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(y, Tensor)]
        if tensors and name not in _BESIDE:
            got = f"a tensor {list(tensors[0].shape)}" if x is tensors[0] else f"a {type(x).__name__} of {len(tensors)} tensors"
            raise _core.UnsupportedError(
                f'[qkv.transformers] attn_implementation="qkv" does not compute {name}: got {got}; load the model with '
                'attn_implementation="eager"'
            )


@outside_of_graphs
def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cache: Any = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """One layer's attention as transformers calls it: query [B, H, Tq, D], key, value [B, Hkv, Tk, D] -> [B, Tq, H, Dv], and the
    weights [B, H, Tq, Tk] where the model is asked for them (output_attentions), otherwise None.

    attention_mask: None (causal if the module says so), what :func:`model_mask` returns, bool [B|1, H|1, Tq, Tk]
    (True = may attend) or float (added). dropout draws its seed from torch's generator. s_aux: sinks [H].
    position_bias [B|1, H|1, Tq, Tk], added. cu_seq_lens_q, cu_seq_lens_k [sequences + 1]: a batch of one holds packed sequences,
    which attend themselves only (FlashAttention's arguments, as DataCollatorWithFlattening makes them); beside every other mask.
    indices [B, Tq, n]: the keys that a query may attend, each once, -1 for none, as DeepSeek's sparse attention chooses them; beside every
    other mask.
    kwargs: flags, numbers and what the mask has already (sliding_window, positions); another tensor raises UnsupportedError.
    """
    if query.device.type != "cpu":
        raise ValueError(f'[qkv.transformers] attn_implementation="qkv" computes on the CPU: got tensors on {query.device}')
    if cache is not None:
        raise NotImplementedError("[qkv.transformers] continuous batching's paged cache is not read; use generate()")
    _require_known(kwargs)
    if cu_seq_lens_k is not None and cu_seq_lens_q is None:
        raise ValueError("[qkv.transformers] cu_seq_lens_q must be given with cu_seq_lens_k: got cu_seq_lens_k alone")
    packing = running.get()
    if packing is not None:  # encoders: no other rule than a window, FlashAttention's, of itself and so many more tokens
        others = dict(is_causal=is_causal, softcap=softcap, s_aux=s_aux, position_bias=position_bias, cu_seq_lens_q=cu_seq_lens_q, indices=indices)
        for name, x in others.items():
            if x is not None and x is not False:
                raise NotImplementedError(f"[qkv.transformers] unpad() does not compute {name}: got {x!r:.60}")
        left = None if kwargs.get("sliding_window") is None else kwargs["sliding_window"] - 1
        return packing.attend(query, key, value, window=left, scale=scaling, dropout_p=dropout), None
    wants_weights = weights_wanted(kwargs)
    q_len, kv_len = query.shape[2], key.shape[2]
    if isinstance(key, LatentKeys):
        plain = not wants_weights and not dropout and not softcap and s_aux is None and position_bias is None and cu_seq_lens_q is None
        if plain and (attention_mask is not None or q_len == 1) and key.absorbs(q_len):
            return key.attend(query, attention_mask, indices, scaling).transpose(1, 2), None
        key, value = key.expanded()
    if torch.is_autocast_enabled("cpu"):  # as F.scaled_dot_product_attention: norms give float32 beside Linear's 16 bits
        query, key, value, _ = autocast(query, key, value, None)
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap or 0.0}
    bias = None
    if attention_mask is not None:
        more, bias = _masks(attention_mask, q_len, kv_len)
        # A query that may attend nothing, such as one of padding: transformers fills its scores with one finite number.
        options |= {"empty_row": "mean", **more}
    elif q_len > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        options["causal"] = "top_left"
    if cu_seq_lens_q is not None:
        packed = _documents(cu_seq_lens_q, cu_seq_lens_k, query, key)
        options["mask"] = options["mask"] & packed if "mask" in options else packed
    if indices is not None and (indices.shape[2] < kv_len or not bool(listed_keys(indices, kv_len).all())):
        listed = Mask.keys(indices[:, None])
        options["mask"] = options["mask"] & listed if "mask" in options else listed
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    if position_bias is not None:
        position_bias = position_bias[..., :kv_len].to(wide)
        bias = position_bias if bias is None else bias.to(wide) + position_bias
    if dropout:
        options |= {"dropout": dropout, "seed": int(torch.randint(2**63 - 1, (), dtype=torch.int64))}
    bias = None if bias is None else inner_contiguous(bias.to(wide))
    sinks = None if s_aux is None else s_aux.to(wide)
    if query.shape[0] != key.shape[0]:  # learned queries, the same for every sequence
        query = query.expand(key.shape[0], -1, -1, -1)
    tensors = (inner_contiguous(query), inner_contiguous(key), inner_contiguous(value), bias, sinks)
    if any(x is not None and has_tangent(x) for x in tensors):
        raise NotImplementedError(
            '[qkv.transformers] forward mode is not computed by attn_implementation="qkv": got tensors with tangents (forward_ad); '
            'there: attn_implementation="sdpa" under qkv.torch.enable()'
        )
    collector = observer.get()
    if collector is not None:
        out = collector.attend(module, *tensors, _new_out(query, value), options)
    elif wants_weights:
        out, weights = attend_with_weights(*tensors, options)
        return out.transpose(1, 2), weights
    elif torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        out = _Attend.apply(*tensors, options)
    else:
        out = _forward(*tensors, options)
    return out.transpose(1, 2), None


def weights_from_sdpa() -> None:
    """Models with "sdpa" under qkv.torch.enable(): layers that are asked for weights get them from qkv."""
    original = AttentionInterface._global_mapping["sdpa"]
    if getattr(original, "_of_qkv", False):
        return

    def sdpa_attention_forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
        if is_enabled() and weights_wanted(options) and all(map(_is_ours, (query, key, value))):
            return attention_forward(module, query, key, value, attention_mask, **options)
        return original(module, query, key, value, attention_mask, **options)

    sdpa_attention_forward._of_qkv = True  # type: ignore[attr-defined]
    AttentionInterface.register("sdpa", sdpa_attention_forward)
