"""flash_attn 2.8's functions on qkv.torch.varlen_attn. A padded batch [B, T, H, D] is B sequences of T tokens.

Beyond FlashAttention: float32 and float64, any width of a head, Dv != D, pages of any size. The same meaning: causal and windows end at the
bottom right, a query that may attend nothing gives 0 (its lse is -inf, there +inf), softmax_lse has no gradient, results do not depend
on num_splits or deterministic. S_dmask holds the weights, negative where dropout took them out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _attention as functional
from .._arrays import require_numbers
from .._options import PositionBias
from ..masks import Mask
from ..torch._calls import require_floats, require_shapes
from ..torch._varlen_calls import packed
from ..torch.varlen import _arguments
from ._needs import bound, named, require_cpu, require_integers, require_within
from ._norms import PlainRMSNorm, RMSNorm, layer_norm_fn, rms_norm, rms_norm_fn
from ._rotary import (
    RotaryEmbedding,
    apply_rotary,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    apply_rotary_emb_torch,
)

_NAME = "flash_attn"


def _window(window: tuple[int, int], causal: bool) -> tuple[int, int]:
    """(left, right), -1 = unbounded."""
    left, right = (max(int(n), -1) for n in window)
    return left, 0 if causal else right


def _checked(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, longest_q: int, longest_k: int, dropout_p: float,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, slopes: Tensor | None,
    used: Tensor | None = None, table: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """varlen_attn's arguments."""
    require_cpu(_NAME, q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, alibi_slopes=slopes)
    require_numbers(_NAME, softcap=softcap)
    return _arguments(
        q, k, v, cu_q, cu_k, longest_q, longest_k, scale=scale, window_size=_window(window, causal), enable_gqa=True, seqused_k=used,
        block_table=table, softcap=max(float(softcap), 0.0), dropout_p=dropout_p, alibi_slopes=slopes, sinks=None,
    )  # fmt: skip


def _attend(*given: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """_checked's arguments -> out [tokens, H, Dv], lse [H, tokens], and the seed of dropout."""
    arguments = _checked(*given)
    out, lse = packed(*arguments)
    return out, lse.detach(), arguments[9]


def _offsets(batch: int, length: int) -> Tensor:
    return torch.arange(batch + 1) * length


def _mask_of_dropout(
    q: Tensor, k: Tensor, seed: Tensor | None, dropout_p: float, scale: float | None, causal: bool, window: Any, softcap: float,
    slopes: Tensor | None, sequence: int,
) -> Tensor:  # fmt: skip
    """S_dmask [H, Tq, Tk] of one sequence, q [Tq, H, D]."""
    options: dict[str, Any] = {"mask": Mask.window(*_window(window, causal), "bottom_right"), "scale": scale, "softcap": max(softcap, 0.0)}
    if slopes is not None:
        options["position_bias"] = PositionBias.alibi((slopes[sequence] if slopes.dim() == 2 else slopes).tolist(), "bottom_right")
    weights = functional.attention_weights(q[None].detach(), k[None].detach(), layout="bthd", **options)
    assert seed is not None
    kept = functional.dropout_factors(tuple(weights.shape), dropout_p, int(seed), first_sequence=sequence)
    return torch.where(torch.as_tensor(kept) > 0, weights, -weights)[0].to(q.dtype)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """q [B, Tq, H, D], k, v [B, Tk, Hkv, D] -> out [B, Tq, H, D], or (out, lse [B, H, Tq], S_dmask [B, H, Tq, Tk] or None)."""
    require_shapes("flash_attn_func", {"q": (q, "B Tq H D"), "k": (k, "B Tk Hkv D"), "v": (v, "B Tk Hkv Dv")})
    batch, length = q.shape[:2]
    cu_q, cu_k = _offsets(batch, length), _offsets(batch, k.shape[1])
    rules = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    flat = (x.flatten(0, 1) for x in (q, k, v))
    out, lse, seed = _attend(*flat, cu_q, cu_k, length, k.shape[1], *rules)
    out = out.unflatten(0, (batch, length))
    if not return_attn_probs:
        return out
    probs = None
    if dropout_p > 0:
        each = [_mask_of_dropout(q[b], k[b], seed, *rules, b) for b in range(batch)]  # type: ignore[arg-type]
        probs = torch.stack(each) if each else q.new_zeros((0, q.shape[2], length, k.shape[1]))
    return out, lse.unflatten(1, (batch, length)).transpose(0, 1), probs


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """flash_attn_func of kv [B, Tk, 2, Hkv, D]."""
    return flash_attn_func(q, *kv.unbind(2), *arguments, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
    """flash_attn_func of qkv [B, T, 3, H, D]."""
    return flash_attn_func(*qkv.unbind(2), *arguments, **options)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """q [total_q, H, D], k, v [total_k, Hkv, D], or pages [pages, size, Hkv, D] with block_table -> out [total_q, H, D], or (out, lse [H,
    total_q], S_dmask [sequences, H, max_seqlen_q, max_seqlen_k] or None)."""
    rules = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    used = None if block_table is None else cu_seqlens_k.diff()
    lengths = (int(max_seqlen_q), int(max_seqlen_k))
    out, lse, seed = _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, *lengths, *rules, used, block_table)
    if not return_attn_probs:
        return out
    probs = None
    if dropout_p > 0:
        probs = q.new_zeros((len(cu_seqlens_q) - 1, q.shape[1], *lengths))
        at_q, at_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for b, one in enumerate(probs):
            rows, keys = q[at_q[b] : at_q[b + 1]], k[at_k[b] : at_k[b + 1]]
            if len(rows) and len(keys):
                one[:, : len(rows), : len(keys)] = _mask_of_dropout(rows, keys, seed, *rules, b)  # type: ignore[arg-type]
    return out, lse, probs


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """flash_attn_varlen_func of kv [total_k, 2, Hkv, D]."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *arguments, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *arguments: Any, **options: Any) -> Any:
    """flash_attn_varlen_func of qkv [total, 3, H, D]."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *arguments, **options)


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
    softmax_scale: float | None, causal: bool, window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, return_softmax: bool = False, block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None, zero_tensors: bool = False, num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The function below flash_attn_varlen_func that inference engines call: out, lse, an empty S_dmask, an empty state of a generator."""
    bound(_NAME, "_flash_attn_varlen_forward", leftpad_k=leftpad_k, return_softmax=return_softmax)
    if num_splits > 1:
        raise RuntimeError(f"[flash_attn of qkv.standins] num_splits > 1 is not supported: got {num_splits}; results do not depend on it")
    used = cu_seqlens_k.diff() if seqused_k is None and block_table is not None else seqused_k
    window = (window_size_left, window_size_right)
    rules = (dropout_p, softmax_scale, causal, window, softcap, alibi_slopes)
    lengths = (int(max_seqlen_q), int(max_seqlen_k))
    out, lse, _ = _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, *lengths, *rules, used, block_table)  # type: ignore[arg-type]
    return out, lse, q.new_empty(0), torch.empty(2, dtype=torch.int64)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None, rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None, block_table: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None,
    num_splits: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """q [B, Tq, H, D] on a cache [B', Tk, Hkv, D] or on pages, to which k, v [B, new, Hkv, D] are appended first -> out [B, Tq, H, D] (and lse
    [B, H, Tq]). Caches are read where they lie: a contiguous one is pages of a whole sequence. No gradients."""
    function, indices = "flash_attn_with_kvcache", {"cache_batch_idx": cache_batch_idx, "cache_leftpad": cache_leftpad}
    require_cpu(_NAME, q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    require_integers(_NAME, function, cache_seqlens=cache_seqlens, block_table=block_table, **indices)
    if (k is None) is not (v is None):
        raise ValueError(f"[{_NAME} of qkv.standins] k and v must be given together: got {'v' if k is None else 'k'} alone")
    if k is None and rotary_cos is not None or (rotary_cos is None) is not (rotary_sin is None):
        raise NotImplementedError(f"[{_NAME} of qkv.standins] rotary_cos and rotary_sin turn new keys: k, and both, must be given")
    if cache_batch_idx is not None and block_table is not None:
        raise NotImplementedError(f"[{_NAME} of qkv.standins] cache_batch_idx and block_table exclude each other: both are given")
    if k is not None and cache_seqlens is None:
        raise ValueError(f"[{_NAME} of qkv.standins] cache_seqlens must be given with k: where the new keys go")
    caches = {"q": (q, "B Tq H D"), "k_cache": (k_cache, "rows size Hkv D"), "v_cache": (v_cache, "rows size Hkv Dv")}
    require_shapes(function, caches | {"k": (k, "B new Hkv D"), "v": (v, "B new Hkv Dv")} | {name: (x, "B") for name, x in indices.items()})
    require_floats(function, {name: x for name, x in (("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)) if x is not None}, {})
    batch, length = q.shape[:2]
    size, new = k_cache.shape[1], 0 if k is None else k.shape[1]
    which = torch.arange(batch) if cache_batch_idx is None else cache_batch_idx.long()
    table = which[:, None] if block_table is None else block_table.long()
    capacity = table.shape[1] * size
    before = torch.full((batch,), capacity - new) if cache_seqlens is None else torch.as_tensor(cache_seqlens).long().expand(batch)
    used = before + new
    if batch and not 0 <= int(before.min()) <= int(used.max()) <= capacity:
        held = "block_table" if block_table is not None else "cache"
        raise RuntimeError(f"[flash_attn of qkv.standins] cache_seqlens and new keys must fit the {held} of {capacity}: got {used.tolist()}")
    at = before[:, None] + torch.arange(new)
    page = table.gather(1, at // size) if new and batch else table[:, :0]
    in_use = table[torch.arange(table.shape[1]) * size < used[:, None]]
    require_within(_NAME, function, k_cache.shape[0], **{"cache_batch_idx" if block_table is None else "block_table": in_use})
    if cache_leftpad is not None and bool(((cache_leftpad < 0) | (cache_leftpad > used)).any()):
        raise ValueError(
            f"[{_NAME} of qkv.standins] cache_leftpad must be [B], each from 0 to the keys of its sequence: got {cache_leftpad.tolist()} for "
            f"{used.tolist()}"
        )
    cu_q, rules = _offsets(batch, length), (0.0, softmax_scale, causal, window_size, softcap, alibi_slopes)
    _checked(q.flatten(0, 1), k_cache, v_cache, cu_q, None, length, capacity, *rules, used, table)  # before a cache changes
    if rotary_cos is not None and rotary_sin is not None and k is not None:
        one_position = not causal and tuple(window_size) == (-1, -1)
        positions = int(before.max()) + (new if one_position else max(new, length)) if batch else 0
        if positions > min(len(rotary_cos), len(rotary_sin)):
            raise ValueError(
                f"[{_NAME} of qkv.standins] rotary_cos and rotary_sin must have a row for each of {positions} positions: got "
                f"{len(rotary_cos)}, {len(rotary_sin)}"
            )
        turn = {"interleaved": rotary_interleaved}
        k = apply_rotary_emb(k, rotary_cos, rotary_sin, seqlen_offsets=before, **turn)
        turned = q.flatten(1, 2)[:, None] if one_position else q
        q = apply_rotary_emb(turned, rotary_cos, rotary_sin, seqlen_offsets=before, **turn).reshape(q.shape)
    rows, new_rows = q.flatten(0, 1), (page, at % size)

    def attend() -> tuple[Tensor, Tensor, Tensor | None]:
        if cache_leftpad is None:
            return _attend(rows, k_cache, v_cache, cu_q, None, length, capacity, *rules, used, table)
        places = [torch.arange(int(a), int(b)) for a, b in zip(cache_leftpad, used)]  # keys that begin within a page are copied
        keys, values = (torch.cat([x[table[b][at // size], at % size] for b, at in enumerate(places)]) for x in (k_cache, v_cache))
        cu_k = F.pad((used - cache_leftpad).cumsum(0), (1, 0))
        return _attend(rows, keys, values, cu_q, cu_k, length, capacity, *rules)

    if k is None or v is None:
        out, lse, _ = attend()
    else:
        held = k_cache[new_rows], v_cache[new_rows]
        k_cache[new_rows], v_cache[new_rows] = k, v
        try:
            out, lse, _ = attend()
        except Exception:
            k_cache[new_rows], v_cache[new_rows] = held  # a call that is refused leaves the caches as they were
            raise
    out, lse = out.unflatten(0, (batch, length)), lse.unflatten(1, (batch, length)).transpose(0, 1)
    return (out, lse) if return_softmax_lse else out


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """[B, T, ...] -> tokens [total, ...], their places in B * T, cu_seqlens, the longest, tokens in use of each row."""
    require_cpu(_NAME, hidden_states=hidden_states, attention_mask=attention_mask, unused_mask=unused_mask)
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(-1, dtype=torch.int32)
    places = every.flatten().nonzero().flatten()
    cu = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[places], places, cu, max(lengths.tolist(), default=0), attention_mask.sum(-1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor) -> tuple[Any, ...]:
    """The same of rows that hold several sequences, attention_mask_in_length [B, T]: their lengths, zeros behind them."""
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths > 0].to(torch.int32)
    inside = torch.arange(attention_mask_in_length.shape[1]) < attention_mask_in_length.sum(-1, keepdim=True)
    places = inside.flatten().nonzero().flatten()
    cu = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[places], places, cu, max(lengths.tolist(), default=0)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """tokens [total, ...] -> [B, T, ...], zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of a tensor."""
    require_cpu(_NAME, input=input, indices=indices)
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """The inverse, zeros elsewhere."""
    require_cpu(_NAME, values=values, indices=indices)
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_copy(0, indices.long(), values)


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    return 128


_FUNCTIONS = named(
    flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache,
)  # fmt: skip
_ROTARY = named(apply_rotary_emb, apply_rotary_emb_kv_, apply_rotary_emb_qkv_, apply_rotary_emb_torch, RotaryEmbedding)
MODULES: dict[str, dict[str, Any]] = {
    "flash_attn": _FUNCTIONS,
    "flash_attn.flash_attn_interface": _FUNCTIONS
    | named(_flash_attn_varlen_forward, _get_block_size_n)
    | {"USE_TRITON_ROCM": False},
    "flash_attn.bert_padding": named(
        index_first_axis, index_put_first_axis, pad_input, unpad_input, unpad_input_for_concatenated_sequences
    ),
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": _ROTARY | {"apply_rotary_emb_func": apply_rotary_emb},
    "flash_attn.ops": {},
    "flash_attn.ops.rms_norm": named(rms_norm) | {"RMSNorm": PlainRMSNorm},
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.layer_norm": named(layer_norm_fn, rms_norm_fn, RMSNorm),
    "flash_attn.ops.triton.rotary": named(apply_rotary),
}
