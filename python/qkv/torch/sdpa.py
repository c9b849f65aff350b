"""scaled_dot_product_attention with PyTorch's signature and semantics, on qkv's kernels, for tensors on the CPU.

It differs from torch.nn.functional's on purpose in this: a non-finite number in a key or value that no query may attend adds
nothing; dropout draws another pattern (torch.manual_seed reproduces it all the same); nothing of size L x S is made. Errors are
ArgumentError, a ValueError and a RuntimeError.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._arrays import require_numbers
from . import _calls
from ._calls import FLOATS, ArgumentError, ArgumentTypeError, Rules, autocast, draw_seed, plain_rules, require_floats
from ._graph import PLAIN, apply_attend, attention, direct
from ._overrides import alignment_of, any_override, asked, is_causal_bias

__all__ = ["ArgumentError", "scaled_dot_product_attention"]

_NESTED = (
    "[scaled_dot_product_attention] nested tensors are not computed here: pack their rows, x.transpose(1, 2).values(), and call "
    "qkv.torch.varlen_attn with x.offsets()"
)
_LOWER_RIGHT = "; the last query at the last key: attn_mask=torch.nn.attention.bias.causal_lower_right(L, S)"
_BOTH_MASKS = "[scaled_dot_product_attention] attn_mask and is_causal exclude each other: got both"


def scaled_dot_product_attention(
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
    """softmax(query key^T scale + mask) value. Vaswani 2017 (arXiv:1706.03762) eq. 1.

    Args:
        query: [..., Hq, L, E], or [L, E]; float32, float64, bfloat16 or float16, on the CPU. key: [..., H, S, E]. value: [...,
            H, S, Ev]. Leading axes broadcast. A last axis whose stride is not 1 is copied.
        attn_mask: broadcasts to [..., Hq, L, S]; bool (True = may attend) or float (added), of query's type or float32; or what
            torch.nn.attention.bias makes.
        dropout_p: probability on the weights, always applied when > 0. The seed is drawn from PyTorch's default generator.
        is_causal: query i sees keys 0 to i (top left). Not together with attn_mask.
        scale: default 1/sqrt(E).  enable_gqa: query head h reads key/value head h // (Hq // H).

    Returns:
        [..., Hq, L, Ev], of query's type; in query's memory layout where Ev == E, otherwise contiguous. A row that may attend nothing is 0, as
            PyTorch gives it.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for wrong shapes or devices, or is_causal with attn_mask. TypeError: for
            other element types, or a tensor of a class with a __torch_function__ of its own. qkv.OptionError (a ValueError): for a
            dropout_p above 0 and below 2^-17.

    Differentiable (gradients of gradients too, forward mode by torch.autograd.forward_ad), attn_mask of floats included; works
    under torch.compile(fullgraph=True), autocast and torch.func.vmap.
    """
    if scale is not None and type(scale) is not float:
        if isinstance(scale, Tensor) and scale.dim() == 0 and not scale.requires_grad:
            scale = float(scale)  # as PyTorch reads it
        require_numbers("scaled_dot_product_attention", scale=scale)
    if any_override(query, key, value, attn_mask):
        tensors = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
        if any(isinstance(x, Tensor) and x.is_nested for x in tensors.values()):
            raise ArgumentTypeError(_NESTED)
        rest = {"scale": scale, "enable_gqa": enable_gqa}
        done, result = asked(scaled_dot_product_attention, tensors, dropout_p, is_causal, **rest)
        if done:
            return result
    elif not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        _calls.require_tensors("scaled_dot_product_attention", {"query": query, "key": key, "value": value})
    elif query.is_nested:  # strided ones; and torch.compile does not say that jagged ones have an override
        raise ArgumentTypeError(_NESTED)
    q, k, v, bias, keep, is_causal, lead = prepare(query, key, value, attn_mask, is_causal, enable_gqa)
    out = attend(q, k, v, bias, keep, dropout_p, is_causal, scale)
    return out if lead is None else out.reshape(*lead, *out.shape[-2:])


def prepare(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, is_causal: bool, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, bool | str, tuple[int, ...] | None]:
    """q, k, v, bias, keep and is_causal as `attend` takes them, and the axes that the result is folded back to (None: it has four
    axes)."""
    if is_causal is not True and is_causal is not False:
        raise ArgumentTypeError(f"[scaled_dot_product_attention] is_causal must be True or False: got {is_causal!r}{_LOWER_RIGHT}")
    aligned = None
    if attn_mask is not None:
        if is_causal:
            raise ArgumentError(_BOTH_MASKS)
        if type(attn_mask) not in PLAIN and is_causal_bias(attn_mask):
            aligned, attn_mask = attn_mask, None
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    q, k, v, lead = _operands(query, key, value, enable_gqa)
    bias, keep = (None, None) if attn_mask is None else split_mask(attn_mask, q, k, lead)
    return q, k, v, bias, keep, is_causal if aligned is None else alignment_of(aligned, q.shape[2], k.shape[2]), lead


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    dropout_p: float = 0.0,
    is_causal: bool | str = False,
    scale: float | None = None,
) -> Tensor:
    """Four axes each, masks as _calls.py takes them -> out. Chooses between kernels, eager autograd and operators.

    is_causal: True (top left), or "bottom_right".
    """
    if type(dropout_p) is not float:
        require_numbers("scaled_dot_product_attention", dropout_p=dropout_p)
    if dropout_p is None or (dropout_p != 0 and not 0 <= dropout_p <= 1):
        raise ArgumentError(f"[scaled_dot_product_attention] dropout_p must be from 0 to 1: got {dropout_p}")
    if not direct(q, k, v, bias, keep):
        if is_causal == "bottom_right":  # the operators know only the top left
            q_len, kv_len = q.shape[2], k.shape[2]
            lower = torch.ones(1, 1, q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
            is_causal, keep = False, lower if keep is None else keep & lower
        seed = draw_seed() if dropout_p > 0.0 else None
        return attention(q, k, v, bias, keep, seed, float(dropout_p), bool(is_causal), scale, "zero")[0]
    if q.is_neg() or k.is_neg() or v.is_neg() or (bias is not None and bias.is_neg()):
        q, k, v, bias = _calls.resolved(q, k, v, bias)  # type: ignore[assignment]
    if dropout_p > 0.0:
        rules = Rules(is_causal, scale, dropout_p, int(draw_seed()))
    else:
        rules = plain_rules(is_causal, scale)
    if _differentiates(q, k, v, bias):
        return apply_attend(q, k, v, bias, keep, None, rules)
    return _calls.forward(q, k, v, rules.options(bias, keep))


def _differentiates(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return True
    return forward_ad._current_level >= 0


def _fail(text: str, q: Tensor, k: Tensor, v: Tensor) -> ArgumentError:
    return ArgumentError(
        f"[scaled_dot_product_attention] {text}: got query {list(q.shape)}, key {list(k.shape)}, value {list(v.shape)}"
    )


def _operands(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...] | None]:
    """q, k, v with four axes, last stride 1, and the axes in front of [L, Ev] that the result is folded back to (None: it has
    four axes)."""
    dtype = q.dtype
    if dtype not in FLOATS or k.dtype is not dtype or v.dtype is not dtype or not (q.is_cpu and k.is_cpu and v.is_cpu):
        require_floats("scaled_dot_product_attention", {"query": q, "key": k, "value": v}, {})
    lead = None
    qs, ks, vs = q.shape, k.shape, v.shape
    if len(qs) == 4 and qs == ks == vs and q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
        return q, k, v, None  # the usual case: half a microsecond less
    if not (
        len(qs) == len(ks) == len(vs) == 4 and qs[0] == ks[0] == vs[0] and (qs[1] == ks[1] or enable_gqa) and ks[1] == vs[1]
    ):
        q, k, v, lead = _fold(q, k, v, enable_gqa)
        qs, ks, vs = q.shape, k.shape, v.shape
    if qs[3] != ks[3]:
        raise _fail("query and key must have one last axis", q, k, v)
    if ks[2] != vs[2]:
        raise _fail("key and value must have one number of rows", q, k, v)
    if qs[1] != ks[1] and (ks[1] == 0 or qs[1] % ks[1] != 0):
        raise _fail("the heads of key and value must divide those of query", q, k, v)
    inner = _calls.inner_contiguous
    return inner(q), inner(k), inner(v), lead


def _fold(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...] | None]:
    """Any ranks and broadcasting to [B, H, T, D]; expanding is recorded, so that autograd sums what it repeated."""
    if q.dim() < 2 or k.dim() < 2 or v.dim() < 2:
        raise _fail("query, key and value must have two axes or more", q, k, v)
    tail = 3 if enable_gqa else 2
    if enable_gqa and min(q.dim(), k.dim(), v.dim()) < 3:
        raise _fail("enable_gqa needs an axis of heads", q, k, v)
    try:
        lead = torch.broadcast_shapes(q.shape[:-tail], k.shape[:-tail], v.shape[:-tail])
    except RuntimeError:
        hint = "" if enable_gqa else " (grouped heads: enable_gqa=True)"
        raise _fail(f"the leading axes of query, key and value must broadcast{hint}", q, k, v) from None
    heads = q.shape[-3] if enable_gqa else 1
    if enable_gqa and k.shape[-3] != v.shape[-3]:
        k, v = _repeat_heads(q, k, v, heads)
    result_lead = (*lead, heads) if enable_gqa else tuple(lead)
    folded = []
    for x in (q, k, v):
        x = x.expand(*lead, *x.shape[-tail:])
        if x.dim() < 4:
            x = x[(None,) * (4 - x.dim())]
        folded.append(x if x.dim() == 4 else x.flatten(0, -4))
    return *folded, result_lead  # type: ignore[return-value]


def _repeat_heads(q: Tensor, k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values that are grouped differently: each is repeated to the heads of q."""
    if any(x.shape[-3] == 0 or heads % x.shape[-3] for x in (k, v)):
        raise _fail("the heads of key and value must divide those of query", q, k, v)
    return k.repeat_interleave(heads // k.shape[-3], -3), v.repeat_interleave(heads // v.shape[-3], -3)


def split_mask(
    mask: Tensor, q: Tensor, k: Tensor, lead: tuple[int, ...] | None = None
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """attn_mask as (bias, None) or (None, keep), [B|1, H|1, L|1, S|1]. lead: axes that are folded into B."""
    if not isinstance(mask, Tensor):
        _calls.require_tensors("scaled_dot_product_attention", {"attn_mask": mask})
    if mask.dtype is not torch.bool and mask.dtype is not q.dtype and mask.dtype is not torch.float32:
        raise ArgumentTypeError(
            "[scaled_dot_product_attention] attn_mask must be bool (True = may attend), of query's type or float32: got "
            f"{mask.dtype} for a query of {q.dtype}; mask.bool() or mask.to(query.dtype)"
        )
    if not mask.is_cpu or mask.layout is not torch.strided:
        raise ArgumentError(
            "[scaled_dot_product_attention] attn_mask must be dense, in the CPU's memory: got layout "
            f"{mask.layout} on {mask.device}; attn_mask.to_dense(), .cpu()"
        )
    front = tuple(q.shape[:2]) if lead is None else lead
    whole = (*front, q.shape[2], k.shape[2])
    # A mask may have more axes than the rest (PyTorch's matmul would then broadcast the result): only axes of size 1.
    shape = mask.shape
    while len(shape) > len(whole) and shape[0] == 1:
        mask = mask[0]
        shape = mask.shape
    padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
    if len(shape) > len(whole) or any(m != n and m != 1 for m, n in zip(padded, whole)):
        raise ArgumentError(f"[scaled_dot_product_attention] attn_mask must broadcast to {list(whole)}: got {list(shape)}")
    if len(whole) > 4 and any(n != 1 for n in padded[:-3]):
        mask = mask.expand(*front[:-1], *padded[-3:]).flatten(0, -4)
    else:
        mask = mask.reshape(((1,) * 4 + padded)[-4:])
    if mask.dtype is torch.bool:
        return None, mask
    return mask.to(_calls.sum_dtype(q)), None
