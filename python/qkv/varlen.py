"""Ragged batches: sequences of different lengths one behind the other, marked by offsets instead of padding."""

from collections.abc import Sequence
from typing import Any

from . import _core
from ._arrays import dtype_name, empty, finish, integers, operands, require_float, require_lse, sum_dtype
from ._attention import Gradients, empty_gradients
from ._options import options_of

__all__ = ["attention_varlen", "attention_varlen_backward"]

_WAYS = "qkv.torch.flex_attention with block_mask=qkv.Mask.documents(offsets) is differentiable"


def _offsets(function: str, q_offsets: Any, kv_offsets: Any) -> tuple[list[int], list[int]]:
    first = integers(q_offsets, f"[{function}] q_offsets")
    return first, first if kv_offsets is None else integers(kv_offsets, f"[{function}] kv_offsets")


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int] | None = None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """Attention within each sequence: sequence b has queries [q_offsets[b], q_offsets[b+1]) and keys likewise.

    Args:
        q [total_q, H, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv].
        q_offsets, kv_offsets [B + 1]: whole numbers, ascending, the first 0, the last the number of tokens (kv_offsets none: as q's).
        options: as in :func:`qkv.attention`, but for weights, out, layout and sequences; they apply to each sequence by itself.
            causal=True needs Tq == Tk in each. A bias is [B|1, H|1, longest Tq|1, longest Tk|1], each sequence reads its top left;
            keep and drop need sequences of equal length.
    Returns:
        out [total_q, H, Dv] (and lse [total_q, H]; return_lse: True or False). Like FlashAttention's varlen interface (cu_seqlens).
    Raises:
        TypeError: for another element type of q, or an option that there is not. ShapeError, OptionError (ValueErrors): for what does
            not fit.
    """
    for name, x in (("q", q), ("v", v)):
        require_float(x, name, "attention_varlen")
    require_lse("attention_varlen", return_lse, (True,))
    out, lse = empty(q, (*q.shape[:-1], v.shape[-1]), dtype_name(q)), None
    if return_lse:
        lse = empty(q, tuple(q.shape[:-1]), sum_dtype(q))
    made, offsets = options_of("attention_varlen", 4, options), _offsets("attention_varlen", q_offsets, kv_offsets)
    _core.varlen_forward(made, *offsets, *operands(ways=_WAYS, q=q, k=k, v=v, out=out, lse=lse))
    return (finish(q, out), finish(q, lse)) if return_lse else finish(q, out)


def attention_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int] | None = None,
    *,
    dlse: Any = None,
    need: Sequence[str] = ("q", "k", "v"),
    **options: Any,
) -> Gradients:
    """Gradients of sum(out * dout) (+ sum(lse * dlse)), from what :func:`attention_varlen` was given and returned.

    dlse [total_q, H] is optional; need as in :func:`attention_backward`. dbias, dsinks and dposition_bias are sums over
    sequences.
    """
    made = options_of("attention_varlen_backward", 4, options)
    of = empty_gradients("attention_varlen_backward", need, made, q=q, k=k, v=v, **options)
    inputs = operands(ways=_WAYS, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse)
    _core.varlen_backward(made, *_offsets("attention_varlen_backward", q_offsets, kv_offsets), *inputs, *operands(**of))
    return Gradients(*(finish(q, x) for x in of.values()))
