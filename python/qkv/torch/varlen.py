"""varlen_attn with the signature and the meaning of torch.nn.attention.varlen (PyTorch 2.13), on the CPU and in every type, which
PyTorch lacks there. Packed sequences, one behind the other; nothing is padded, memory is O(total tokens).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arrays import require_numbers
from ._calls import (
    ArgumentError,
    ArgumentTypeError,
    autocast_where_mixed,
    draw_seed,
    inner_contiguous,
    require_aux,
    require_floats,
    require_real,
    require_shapes,
    sum_dtype,
)
from ._overrides import any_override, asked
from ._varlen_calls import Rules, packed

__all__ = ["AuxRequest", "varlen_attn"]


class AuxRequest(NamedTuple):
    """Further results of varlen_attn, as torch.nn.attention.varlen.AuxRequest, which it takes too."""

    lse: bool = False


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention within each of N packed sequences, each as if it were alone: to the bit, whatever the others are.

    Args:
        query: [total_q, Hq, D]. key: [total_k, H, D]. value: [total_k, H, Dv]; float32, float64, bfloat16 or float16, on the CPU.
            With block_table, key and value are [pages, page_size, H, D|Dv].
        cu_seq_q, cu_seq_k: [N + 1], int32 or int64: sequence n has queries [cu_seq_q[n], cu_seq_q[n + 1]) and keys likewise, the
            first 0. Tokens behind the last belong to no sequence: their output is 0. cu_seq_k is not read with block_table.
        max_q, max_k: the lengths of the longest sequences, or more.
        return_aux: AuxRequest(lse=True): also return lse.
        scale: default 1/sqrt(D).
        window_size: (left, right), how many tokens on each side of its own a query may attend, -1 = unbounded; (-1, 0) is
            causal. The last query of a sequence stands at its last key (bottom right).
        enable_gqa: query head h reads key/value head h // (Hq // H).
        seqused_k: [N], int32 or int64: how many of a sequence's keys are in use, from its first; the diagonal ends at the last of
            them. Differentiable, unlike PyTorch's.
        block_table: [N, pages of a sequence], int32 or int64: where sequence n's keys lie; needs seqused_k. Pages are read
            where they lie. For inference: no gradients.
        softcap: scores become softcap tanh(scores / softcap); 0: none. Not of PyTorch, nor are the next ones.
        dropout_p: probability on the weights, always applied when > 0. The seed is drawn from PyTorch's default generator.
        alibi_slopes: [Hq] or [N, Hq], of each sequence its own; a key d tokens from its query gets -slope d. No gradients.
        sinks: [Hq], a score beside the keys' in each row's softmax, without a value; differentiable.
        num_splits: ignored; results never depend on other sequences, which is what PyTorch's num_splits=1 is for.

    Returns:
        [total_q, Hq, Dv] of query's type, or a tuple of it and lse [Hq, total_q], float32 (float64 for float64), natural
        logarithm. A query that may attend nothing: 0, lse -inf.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for shapes, offsets or lengths that do not fit. ValueError: for pages. TypeError: for other
            element types. NotImplementedError: for gradients and dropout_p through block_table, and for alibi_slopes beside seqused_k of
            other lengths than the queries'.

    Differentiable once in query, key, value (out and lse), in reverse mode; works under torch.compile(fullgraph=True), torch.export,
    torch.func.grad and vmap. Under autocast query, key and value of different types are cast to its type. Dao 2022
    (arXiv:2205.14135), varlen.
    """
    del num_splits
    tensors = {"query": query, "key": key, "value": value}
    options: dict[str, Any] = {
        "scale": scale, "window_size": window_size, "enable_gqa": enable_gqa, "seqused_k": seqused_k, "block_table": block_table,
        "softcap": softcap, "dropout_p": dropout_p, "alibi_slopes": alibi_slopes, "sinks": sinks,
    }  # fmt: skip
    if any_override(query, key, value):
        rest = (cu_seq_q, cu_seq_k, max_q, max_k)
        done, result = asked(varlen_attn, tensors, *rest, return_aux=return_aux, **options)
        if done:
            return result
    require_aux("varlen_attn", return_aux)
    arguments = _arguments(*tensors.values(), cu_seq_q, cu_seq_k, max_q, max_k, **options)
    out, lse = packed(*arguments)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, max_q: int, max_k: int, *,
    scale: float | None, window_size: tuple[int, int], enable_gqa: bool, seqused_k: Tensor | None, block_table: Tensor | None,
    softcap: float, dropout_p: float, alibi_slopes: Tensor | None, sinks: Tensor | None,
) -> tuple[Any, ...]:  # fmt: skip
    """The operators' arguments, checked as far as shapes and types go."""
    require_numbers("varlen_attn", scale=scale, softcap=softcap, dropout_p=dropout_p)
    if not 0 <= dropout_p < 1:
        raise ArgumentError(f"[varlen_attn] dropout_p must be from 0 to below 1: got {dropout_p}")
    q, k, v = autocast_where_mixed(q, k, v)
    others = {"cu_seq_q": cu_q, "cu_seq_k": cu_k, "seqused_k": seqused_k, "block_table": block_table, "alibi_slopes": alibi_slopes, "sinks": sinks}
    require_floats("varlen_attn", {"query": q, "key": k, "value": v}, others)
    require_real("varlen_attn", alibi_slopes=alibi_slopes, sinks=sinks)
    for name, most in (("max_q", max_q), ("max_k", max_k)):
        if isinstance(most, float) or (isinstance(most, Tensor) and most.is_floating_point()):
            raise ArgumentTypeError(f"[varlen_attn] {name} must be a whole number: got {most}")
    tokens = "keys" if block_table is None else "pages page_size"
    shapes = {"query": (q, "tokens heads width"), "key": (k, f"{tokens} kv_heads width"), "value": (v, f"{tokens} kv_heads v_width")}
    sizes = require_shapes("varlen_attn", shapes)
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    if not enable_gqa and heads != kv_heads:
        raise ArgumentError(
            f"[varlen_attn] query and key must have the same number of heads (grouped heads: enable_gqa=True): got {heads}, {kv_heads}"
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(f"[varlen_attn] the heads of key must divide those of query: got {kv_heads} for {heads}")
    counts = window_size if isinstance(window_size, (tuple, list)) else ()
    if len(counts) != 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < -1 for n in counts):
        raise ArgumentError(f"[varlen_attn] window_size must be two counts of tokens, -1 = unbounded: got {window_size}")
    if block_table is not None and seqused_k is None:
        raise ArgumentError("[varlen_attn] block_table needs seqused_k: it does not say how many keys a sequence has")
    if block_table is None and cu_k is None:
        raise ArgumentError("[varlen_attn] cu_seq_k must be given unless there is a block_table; for self-attention it is cu_seq_q")
    numbers = {
        "cu_seq_q": (cu_q, "N+1"), "cu_seq_k": (None if block_table is not None else cu_k, "N+1"), "seqused_k": (seqused_k, "N"),
        "block_table": (block_table, "N pages_each"),
    }  # fmt: skip
    require_shapes("varlen_attn", numbers, **({"N": cu_q.shape[0] - 1} if cu_q.dim() == 1 else {}))
    for name, (x, _) in numbers.items():
        if x is not None and x.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"[varlen_attn] {name} must be int32 or int64: got {x.dtype}")
    inner, wide = inner_contiguous, sum_dtype(q)
    require_shapes("varlen_attn", {"sinks": (sinks, "heads")}, heads=heads)
    if alibi_slopes is not None:
        named = "heads" if alibi_slopes.dim() == 1 else "N heads"
        require_shapes("varlen_attn", {"alibi_slopes": (alibi_slopes, named)}, heads=heads, N=cu_q.shape[0] - 1)
        alibi_slopes = alibi_slopes.detach().to(torch.float64) if alibi_slopes.shape[0] else None  # of no sequence
    rules = Rules(max_q, max_k, *window_size, scale=scale, softcap=float(softcap), dropout=float(dropout_p))
    sinks, seed = None if sinks is None else inner(sinks.to(wide)), draw_seed() if dropout_p else None
    return (inner(q), inner(k), inner(v), sinks, cu_q, cu_k, seqused_k, block_table, alibi_slopes, seed, *rules)
