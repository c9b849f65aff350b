"""Attention over a sequence that torch.distributed's ranks share: each passes its own rows of q, k and v, and gets its own rows of
the result, with the bits that one machine gives where the order of sums allows it (docs/concepts/parallel.md).

    positions = qkv.torch.sequence_positions(T)                     # of the whole sequence, those that this rank holds
    out = qkv.torch.parallel_attention(q, k, v, causal=True)        # q, k, v [B, H, len(positions), D]

    with qkv.torch.context_parallel(method="ulysses"):              # scaled_dot_product_attention of a whole model
        model(ids[:, positions], position_ids=positions[None])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _dist
from .._arrays import require_numbers
from .._core import Error
from ..masks import Mask
from . import _calls, patch
from ._calls import ArgumentError, Rules, draw_seed, require_floats, require_shapes
from ._graph import Step
from ._ranks import Ranks, ranks_of
from .sdpa import direct

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["context_parallel", "parallel_attention", "sequence_positions"]

#: Rows are assigned to ranks in blocks of this many (qkv/dist/context_parallel.h).
BLOCK = 32


def sequence_positions(
    length: int, group: ProcessGroup | None = None, *, layout: str = "contiguous", turns: int = 1
) -> Tensor:
    """The positions of a sequence of `length` that this rank holds, in the order in which its tensors hold them: int64 [T_local].

    Use them to cut inputs, x[:, positions], and as position ids, so that rotary positions are those of the whole sequence.

    Args:
        layout: "contiguous" (rank r holds the r-th piece), "zig-zag" (pieces r and 2P - 1 - r of 2P: the same work for every rank
            under a causal mask); parallel_attention and context_parallel must get the same. Rows go to ranks in blocks of 32: there may
            be ranks without rows. turns: how often "zig-zag" goes there and back.

    Raises:
        RuntimeError: without torch.distributed. OptionError: for another layout, a negative length, turns below 1.
    """
    ranks = ranks_of("sequence_positions", group)
    pieces = _dist.rows_of_rank(layout, length, BLOCK, turns, ranks.rank, ranks.size)
    return torch.cat([torch.arange(begin, end) for begin, end in pieces] or [torch.arange(0)])


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, rules: Rules, cut: Any) -> tuple[Tensor, Tensor]:
    """out, lse; cut is a _dist.ContextParallel."""
    results = _calls.empty_output(q, v), _calls.empty_lse(q)
    cut.forward(rules.options(bias, None), q, k, v, *results)
    return results


def _backward(
    dout: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    rules: Rules, cut: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    # Ranks agree on what they compute, so every gradient is computed on every rank, wanted here or not.
    dout = torch.zeros_like(out) if dout is None else _calls.as_memory(dout)
    dlse = torch.zeros_like(lse) if dlse is None else dlse.resolve_neg()
    made = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dbias = None if bias is None else torch.empty(bias.shape, dtype=bias.dtype)
    cut.backward(rules.options(bias, None), q, k, v, out, lse, dout, dlse, *made, dbias)
    return (*made, dbias)


def _agreed(ranks: Ranks, checked: Callable[[], tuple[Rules, Any]], draws: bool) -> tuple[Rules, Any]:
    """What checked() returns, with rank 0's seed where this rank draws. Collective: what it raises on one rank ends the call of
    every rank, of the others with an Error."""
    try:
        rules, cut = checked()
    except Exception as error:
        _dist.texts_of_ranks(ranks, f"! {error}")
        raise
    texts = _dist.texts_of_ranks(ranks, str(rules.seed))
    for rank, text in enumerate(texts):
        if text.startswith("!"):
            raise Error(f"[parallel_attention] rank {rank} refused its arguments: {text[2:]}")
    return replace(rules, seed=int(texts[0])) if draws and rules.dropout else rules, cut


_ONCE = "[parallel_attention] is differentiated once, in reverse mode: got forward mode, or a gradient of a gradient"
_attend = Step(
    _forward, 4, lambda saved, rest, needs, *cotangents: _gradients.eager(*cotangents, *saved, *rest), _ONCE, save_results=True
)
_gradients = Step(_backward, 8, _ONCE, _ONCE)


def parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: ProcessGroup | None = None,
    *,
    method: str = "all-gather",
    layout: str = "contiguous",
    turns: int = 1,
    chunk: int = 0,
    causal: bool | str = False,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    empty_row: str = "zero",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T scale + bias) v over the sequence of all ranks; collective: every rank of the group calls it, forward and
    backward, with the same options.

    Args:
        q: [B, H, Tq_local, D], k: [B, Hkv, Tk_local, D], v: [B, Hkv, Tk_local, Dv]: this rank's rows (sequence_positions of Tq and
            of Tk); float32, float64, bfloat16 or float16, on the CPU.
        method: "all-gather": every rank gets all of k and v; out, lse and dq have one machine's bits, dk and dv are within rounding.
            "ring": the same bits; keys visit the ranks a chunk at a time, so that no rank holds all of them (arXiv:2310.01889).
            "ulysses": rows are exchanged for heads, all five have one machine's bits; the number of ranks must divide Hkv
            (arXiv:2309.14509).
        layout, turns: as sequence_positions.
        chunk: keys per message; a rank holds two such chunks of a key/value head, in backward by all-gather also
            what the other ranks give for dk and dv of a chunk of its own. 0: 4096 for "ring", all of a head for
            "all-gather"; "ulysses" computes whole heads: 0.
        causal: True or "top_left", "bottom_right", by positions in the whole sequence. mask, bias [B|1, H|1, Tq|1, Tk|1]: of the
            whole problem, the same on every rank; the gradient of bias is complete on every rank.
        dropout: probability on the weights; the pattern is one machine's. seed: by default rank 0 draws it.

    Returns:
        out [B, H, Tq_local, Dv], and with return_lse lse [B, H, Tq_local].

    Raises:
        qkv.Error: with the same text on every rank, where shapes, options, versions or instruction sets of ranks differ, or a rank is
            gone. ArgumentError, OptionError, TypeError: for arguments that cannot be right.

    Differentiable once; not under torch.compile, torch.func or forward mode.
    """
    ranks = ranks_of("parallel_attention", group)

    def checked() -> tuple[Rules, Any]:
        if mask is not None and not isinstance(mask, Mask):
            raise TypeError(f"[parallel_attention] mask must be a qkv.Mask: got {type(mask).__name__}; qkv.Mask.keep(array) makes one")
        if not direct(q, k, v, bias):
            raise NotImplementedError(
                "[parallel_attention] tensors must be plain: torch.compile, torch.func and subclasses are not supported"
            )
        require_shapes("parallel_attention", {"q": (q, "B H Tq_local D"), "k": (k, "B Hkv Tk_local D"), "v": (v, "B Hkv Tk_local Dv")})
        require_floats("parallel_attention", {"q": q, "k": k, "v": v}, {})
        require_numbers("parallel_attention", scale=scale, softcap=softcap, dropout=dropout)
        mine = int(draw_seed()) if seed is None and dropout > 0 else seed or 0
        rules = Rules(causal, scale, float(dropout), mine, empty_row, float(softcap), mask)
        rules.options(bias, None)
        return rules, _dist.ContextParallel(ranks, layout, method, BLOCK, turns, chunk)

    rules, cut = _agreed(ranks, checked, seed is None)
    out, lse = _attend.apply(*(_calls.inner_contiguous(x) for x in _calls.resolved(q, k, v)), *_calls.resolved(bias), rules, cut)
    return (out, lse) if return_lse else out


@contextmanager
def context_parallel(
    group: ProcessGroup | None = None,
    method: str = "all-gather",
    layout: str = "contiguous",
    turns: int = 1,
    chunk: int = 0,
) -> Iterator[None]:
    """Within the block, this thread's calls of torch.nn.functional.scaled_dot_product_attention are parallel_attention over the
    ranks of the group: q, k, v hold this rank's rows, is_causal means the whole sequence. Collective. Calls of other functions stay those
    of this rank's rows: qkv's own, flex_attention, torch.nn.MultiheadAttention with need_weights=True.

    Raises:
        NotImplementedError: at a call with attn_mask, whose rows and columns would have to be those of the whole problem: pass
            parallel_attention(mask=...) there.
    """
    ranks_of("context_parallel", group)
    cut: dict[str, Any] = {"method": method, "layout": layout, "turns": turns, "chunk": chunk}

    def attend(
        _function: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if attn_mask is not None:
            raise NotImplementedError(
                "[context_parallel] attn_mask is not supported: a mask of the whole sequence goes to parallel_attention(mask=...)"
            )
        if query.shape[1] != key.shape[1] and not enable_gqa:
            raise ArgumentError(
                f"[context_parallel] query has {query.shape[1]} heads, key {key.shape[1]}: pass enable_gqa=True"
            )
        out = parallel_attention(query, key, value, group, **cut, causal=is_causal, dropout=dropout_p, scale=scale)
        return out  # type: ignore[return-value]

    before = patch.watch_calls(attend)
    try:
        yield
    finally:
        patch.watch_calls(before)
