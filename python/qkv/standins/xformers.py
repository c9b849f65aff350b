"""xformers.ops.memory_efficient_attention and its biases on qkv.torch's attention.

Packed sequences go through varlen_attn; one sequence a row through scaled_dot_product_attention's kernels. Beyond the package: any width
of a head, any strides, float64, gradients of a tensor bias; a query that may attend nothing gives 0 and lse -inf. `op`, which names a kernel
there, changes nothing. lse is [B, H, Mq], of five axes [B, G, H, Mq], of packed sequences packed.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arrays import require_numbers
from ..masks import Mask
from ..torch._calls import FLOATS, Rules, draw_seed, inner_contiguous, sum_dtype
from ..torch._graph import attend_with_lse, attention
from ..torch.varlen import AuxRequest, varlen_attn
from ._biases import CLASSES, VARLEN_BIASES, AttentionBias, BlockDiagonalMask
from ._needs import bound, named, require_cpu, require_within

_NAME = "xformers"


def _fits(query: Tensor, key: Tensor, value: Tensor, bias: Any, tensor: Tensor | None, p: float) -> None:
    """Raises ValueError for shapes and types that do not fit, NotImplementedError for other devices."""
    require_cpu(_NAME, query=query, key=key, value=value, attn_bias=tensor)
    q, k, v = shapes = [list(x.shape) for x in (query, key, value)]
    bound(_NAME, "memory_efficient_attention", quantised_key=key if key.dtype is torch.int32 else None)
    if not (len(q) == len(k) == len(v) and len(q) in (3, 4, 5) and q[0] == k[0] and q[2:] == k[2:] and k[:-1] == v[:-1]):
        raise ValueError(f"[xformers of qkv.standins] query, key, value must be [B, M, K], [B, M, H, K] or [B, M, G, H, K]: got {shapes}")
    if not query.dtype is key.dtype is value.dtype:
        raise ValueError(f"[xformers of qkv.standins] one type is needed: got {query.dtype}, {key.dtype}, {value.dtype}")
    if tensor is not None and (tensor.dtype is not query.dtype or tensor.dim() != len(q) or list(tensor.shape[-2:]) != [q[1], k[1]]):
        needed = f"{query.dtype}, [B, H, {q[1]}, {k[1]}]"
        raise ValueError(f"[xformers of qkv.standins] attn_bias must be of {needed}: got {tensor.dtype}, {list(tensor.shape)}")
    if not 0 <= p < 1:
        raise ValueError(f"[xformers of qkv.standins] p must be from 0 to below 1: got {p}")
    if isinstance(bias, VARLEN_BIASES) and (q[0] != 1 or len(q) == 3):
        raise ValueError(f"[xformers of qkv.standins] {type(bias).__name__} is of packs [1, M, H, K]: got {shapes}")
    bound(_NAME, "memory_efficient_attention", attn_bias=None if isinstance(bias, (Tensor, AttentionBias)) else bias)


def _require_output(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"[xformers of qkv.standins] output_dtype must be float32, float64, bfloat16 or float16: got {dtype}")


def _heads(x: Tensor) -> Tensor:
    """[B, M, H, K]."""
    return x[:, :, None] if x.dim() == 3 else x.flatten(2, 3) if x.dim() == 5 else x


def _dense(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, window: tuple[int, int], corner: str, p: float, scale: float | None
) -> tuple[Tensor, Tensor]:
    """out [B, Mq, H, Kv], lse [B, H, Mq]; q [B, Mq, H, K]."""
    if bias is not None:
        bias = bias.flatten(1, 2) if bias.dim() == 5 else bias[:, None] if bias.dim() == 3 else bias
        bias = inner_contiguous(bias.to(sum_dtype(q)))
    tensors, seed = [inner_contiguous(x.transpose(1, 2)) for x in (q, k, v)], draw_seed() if p else None
    if window == (-1, -1) or (window == (-1, 0) and (corner == "top_left" or q.shape[1] == k.shape[1])):  # an operator, for torch.compile
        out, lse, _ = attention(*tensors, bias, None, seed, float(p), window[1] == 0, scale, "zero")
    else:
        rules = Rules(scale=scale, dropout=float(p), seed=0 if seed is None else int(seed), mask=Mask.window(*window, corner))
        out, lse, _ = attend_with_lse(*tensors, bias, None, None, rules)
    return out.transpose(1, 2), lse


def _packs(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> tuple[Tensor, Tensor]:
    """out [Mq, H, Kv], lse [H, Mq] of packed rows."""
    cu_q, cu_k, capacity, paged = bias.q_seqinfo.seqstart, bias.k_seqinfo.seqstart, k.shape[0], hasattr(bias, "block_tables")
    rows, places, window, used, table = bias.rows(q.shape[0], k.shape[0]), bias.keys(), bias.window, None, None
    if bias._corner == "top_left":  # varlen_attn's diagonal ends at the last key
        if any(end - begin > len(at) for (begin, end), at in zip(rows, places)):
            each = ((q[None, begin:end], k[None, at], v[None, at]) for (begin, end), at in zip(rows, places))
            parts = [_dense(*tensors, None, window, "top_left", p, scale) for tensors in each]
            return torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)
        places = [at[: end - begin] for (begin, end), at in zip(rows, places)]  # no query attends those behind
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if bias.k_seqinfo.padding and not (paged and recorded):
        used = bias.k_seqinfo.seqlen
        if paged:
            table, (k, v) = bias.block_tables, (x.unflatten(0, (-1, bias.page_size)) for x in (k, v))
            capacity = bias.k_seqinfo.padding
    elif sum(map(len, places)) != k.shape[0] or not isinstance(bias, BlockDiagonalMask):
        index = torch.cat(places)
        require_within(_NAME, type(bias).__name__, k.shape[0], **{"the places of keys": index})
        k, v, cu_k = k[index], v[index], F.pad(torch.tensor([len(at) for at in places]).cumsum(0), (1, 0))
    return varlen_attn(  # type: ignore[return-value]
        q, k, v, cu_q, cu_k, q.shape[0], capacity, return_aux=AuxRequest(lse=True), scale=scale, window_size=window, enable_gqa=True,
        seqused_k=used, block_table=table, dropout_p=p,
    )  # fmt: skip


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *, op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out and lse. An output_dtype wider than the query's is computed in."""
    tensor = attn_bias if isinstance(attn_bias, Tensor) else getattr(attn_bias, "_bias", None)
    require_numbers("memory_efficient_attention", scale=scale, p=p)
    _fits(query, key, value, attn_bias, tensor, p)
    pair = key, value
    if all(x.dim() > 3 and x.stride(-2) == 0 and not (x.requires_grad and torch.is_grad_enabled()) for x in pair):
        pair = key[..., :1, :], value[..., :1, :]  # heads that were made by expand are read once
    _require_output(output_dtype)
    to = output_dtype or query.dtype
    q, k, v = (_heads(x).to(to if torch.promote_types(to, x.dtype) is to else x.dtype) for x in (query, *pair))
    if isinstance(attn_bias, VARLEN_BIASES):
        out, lse = (x[None] for x in _packs(q[0], k[0], v[0], attn_bias, p, scale))
    else:
        rules = attn_bias if isinstance(attn_bias, AttentionBias) else AttentionBias()
        out, lse = _dense(q, k, v, tensor, rules.window, rules._corner, p, scale)
    out = out.to(to).reshape(*query.shape[:-1], value.shape[-1])
    return out, lse.unflatten(1, query.shape[2:4]) if query.dim() == 5 else lse


def memory_efficient_attention(*arguments: Any, **options: Any) -> Tensor:
    """softmax(query key^T scale + attn_bias) value, differentiable: (query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None,
    output_dtype=None); [B, M, H, K], [B, M, K] or [B, M, G, H, K]; p: dropout."""
    return _attention(*arguments, **options)[0]


def memory_efficient_attention_forward(*arguments: Any, **options: Any) -> Tensor:
    """The same without a graph."""
    with torch.no_grad():
        return _attention(*arguments, **options)[0]


def _without_dropout(query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, *rest: Any, **options: Any) -> Any:
    bound(_NAME, "memory_efficient_attention without autograd", p=p or None)
    return _attention(query, key, value, attn_bias, p, *rest, **options)


def memory_efficient_attention_forward_requires_grad(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """out and lse for memory_efficient_attention_backward, without a graph."""
    with torch.no_grad():
        return _without_dropout(*arguments, **options)


def memory_efficient_attention_backward(
    grad: Tensor, output: Tensor, lse: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any
) -> tuple[Tensor, ...]:
    """dq, dk, dv. output and lse are computed again."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        return torch.autograd.grad(_without_dropout(*leaves, *arguments, **options)[0], leaves, grad)


def memory_efficient_attention_partial(query: Tensor, *arguments: Any, _allow_backward: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    """out (float32 of 16 bits) and lse of some of the keys, for merge_attentions; differentiable with _allow_backward."""
    options["output_dtype"] = options.get("output_dtype") or sum_dtype(query)
    with torch.set_grad_enabled(_allow_backward and torch.is_grad_enabled()):
        return _without_dropout(query, *arguments, **options)


def merge_attentions(
    attn_split: Tensor | Sequence[Tensor], lse_split: Tensor | Sequence[Tensor], write_lse: bool = True, output_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor | None]:
    """Results of parts of the keys, [parts, B, M, ..., H, K] and [parts, B, ..., H, M], as those of all keys."""
    out, lse = (x if isinstance(x, Tensor) else torch.stack(list(x)) for x in (attn_split, lse_split))
    require_cpu(_NAME, attn_split=out, lse_split=lse)
    _require_output(output_dtype)
    if out.dim() != lse.dim() + 1 or out.shape[:2] != lse.shape[:2] or out.shape[2:-1] != (lse.shape[-1], *lse.shape[2:-1]):
        raise ValueError(f"[xformers of qkv.standins] attn_split and lse_split do not fit: got {list(out.shape)}, {list(lse.shape)}")
    empty = (lse == -torch.inf).all(0)  # no key in any part: shares, and gradients, of 0
    finite = lse.masked_fill(empty, 0).logsumexp(0)
    whole, shares = finite.masked_fill(empty, -torch.inf), (lse - finite).exp().movedim(-1, 2)[..., None]
    return (out.to(shares.dtype) * shares).sum(0).to(output_dtype or out.dtype), whole if write_lse else None


_KERNELS = ("cutlass", "cutlass_blackwell", "flash", "flash3", "ck", "ck_splitk", "triton_splitk")
_OPS = {x: {y: type(y, (), {"NAME": f"{x}{y[:2]}"}) for y in ("FwOp", "BwOp")} for x in _KERNELS}
_PAIRS = "Cutlass=cutlass CutlassFwdFlashBw=cutlass=flash FlashAttention=flash CutlassBlackwell=cutlass_blackwell Ck=ck SplitKCk=ck_splitk=ck"
_EVERY = named(
    memory_efficient_attention, memory_efficient_attention_forward, memory_efficient_attention_forward_requires_grad,
    memory_efficient_attention_backward, memory_efficient_attention_partial, merge_attentions,
) | {x: CLASSES[x] for x in ("AttentionBias", "LowerTriangularMask", "BlockDiagonalMask")}  # fmt: skip
for _name, *_kernels in (x.split("=") for x in _PAIRS.split()):
    _EVERY[f"MemoryEfficientAttention{_name}Op"] = (_OPS[_kernels[0]]["FwOp"], _OPS[_kernels[-1]]["BwOp"])
MODULES: dict[str, dict[str, Any]] = {
    "xformers": {},
    "xformers.ops": _EVERY | {"AttentionMask": AttentionBias, "unbind": torch.unbind},
    "xformers.ops.fmha": _EVERY,
    "xformers.ops.fmha.attn_bias": CLASSES | {"VARLEN_BIASES": VARLEN_BIASES},
    **{f"xformers.ops.fmha.{x}": y for x, y in _OPS.items()},
}
