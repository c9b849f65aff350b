"""The linear-attention layers of transformers' models on qkv's kernels: the gated delta rule, Kimi's, Mamba's scans and Mamba-2's step,
and the convolutions beside them.

Each function takes the original and returns its replacement, which computes what the original's PyTorch code computes, for
tensors on the CPU, and leaves other devices and torch.export to the original.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from .._arrays import has_tangent
from ..standins.mamba_ssm import selective_scan_fn
from ..torch import (
    ArgumentError,
    chunk_gated_delta_rule,
    chunk_kimi_delta_attention,
    fused_recurrent_gated_delta_rule,
    recurrent_kimi_delta_attention,
    short_convolution,
)
from ..torch._calls import sum_dtype
from ..torch._linear_calls import Rules, step
from ..torch.linear import check_known, scan
from ..torch.sdpa import direct

Function = Callable[..., Any]


def _ours(x: Tensor) -> bool:
    return x.is_cpu and not torch.compiler.is_exporting()


def _offsets(options: dict[str, Any], batch: int, cu_seqlens: Tensor | None = None) -> Tensor | None:
    """Where packed sequences begin and the last ends, from what the model was passed; None: one sequence a row."""
    cu_seqlens = options.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens
    seq_idx = options.get("seq_idx")
    if batch != 1 and (cu_seqlens is not None or seq_idx is not None):
        name, given = ("seq_idx", seq_idx) if cu_seqlens is None else ("cu_seq_lens_q", cu_seqlens)
        raise ArgumentError(
            f"[qkv.transformers] packed sequences ({name}) lie in one row, B = 1: got {name} {list(given.shape)} with {batch} rows; "
            "pass the rows one by one"
        )
    if cu_seqlens is not None or seq_idx is None:
        return cu_seqlens
    changes = (seq_idx[0, 1:] != seq_idx[0, :-1]).nonzero()[:, 0] + 1
    return F.pad(F.pad(changes, (1, 0)), (0, 1), value=seq_idx.shape[1])


# Arguments of flash-linear-attention that would change a result; models do not pass them.
_NOT_COMPUTED = ("use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "head_first", "transpose_state_layout")


def _delta_rule(rule: Function, original: Function) -> Function:
    names = list(inspect.signature(original).parameters)[5:]  # of four functions, which differ in their order

    @functools.wraps(original)
    def replaced(
        query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *positional: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        options = {**dict(zip(names, positional)), **kwargs}
        if not _ours(query):
            return original(query, key, value, g=g, beta=beta, **options)
        check_known(rule.__name__, {name: options[name] for name in _NOT_COMPUTED if name in options})
        return rule(
            query, key, value, g, beta, scale=options.get("scale"), initial_state=options.get("initial_state"),
            output_final_state=options.get("output_final_state", False),
            use_qk_l2norm_in_kernel=options.get("use_qk_l2norm_in_kernel", False),
            cu_seqlens=_offsets(options, query.shape[0], options.get("cu_seqlens")),
        )  # fmt: skip

    return replaced


def _convolution(original: Function) -> Function:
    """causal_conv1d_fn: on each packed sequence alone. Models pass [B, T, C] memory, which qkv's kernel reads as it lies; other memory of one
    sequence is PyTorch's, whose convolution is as fast there."""
    pytorchs = inspect.unwrap(original)

    @functools.wraps(original)
    def replaced(
        hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
    ) -> Tensor:
        if not _ours(hidden_states):
            return original(hidden_states, weight, bias, activation=activation, **kwargs)
        offsets, length = _offsets(kwargs, hidden_states.shape[0]), hidden_states.shape[2]
        if offsets is None and hidden_states.stride(1) != 1:
            return pytorchs(hidden_states, weight, bias, activation=activation)
        sequence = None
        if offsets is not None:  # columns that a cache puts before the first sequence are of it
            sequence = torch.bucketize(torch.arange(length), offsets[1:-1] + (length - offsets[-1]), right=True)[None]
        fused = activation if activation in ("silu", "swish") else None
        out: Any = short_convolution(hidden_states.transpose(1, 2), weight, bias, sequence=sequence, activation=fused)
        out = out.transpose(1, 2)
        return out if activation == fused else ACT2FN[activation](out)

    return replaced


def _stand_in(function: Function, original: Function) -> Function:
    """A function of mamba_ssm, whose arguments transformers passes by position, and others that only its own code reads."""

    @functools.wraps(original)
    def replaced(x: Tensor, *args: Any, use_mambapy: bool = False, use_associative_scan: bool = False, **kwargs: Any) -> Any:
        if not _ours(x):
            return original(x, *args, use_mambapy=use_mambapy, use_associative_scan=use_associative_scan, **kwargs)
        return function(x, *args, **kwargs)

    return replaced


def _convolution_step(original: Function) -> Function:
    """causal_conv1d_update: of one token a sum of a few products, which PyTorch's convolution takes several times as long for."""
    pytorchs = inspect.unwrap(original)

    @functools.wraps(original)
    def replaced(
        hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
    ) -> Tensor:
        arguments = (hidden_states, conv_state, weight, bias)
        if not _ours(hidden_states):
            return original(*arguments, activation=activation)
        if hidden_states.shape[2] != 1 or not _plain(*arguments):
            return pytorchs(*arguments, activation=activation)
        window = torch.cat([conv_state, hidden_states], -1)
        conv_state.copy_(window[..., -conv_state.shape[-1] :])
        window = window[..., -weight.shape[-1] :]
        if weight.dtype in (torch.float32, torch.float64):
            out = torch.linalg.vecdot(window.to(weight.dtype), weight)
        else:
            out = (window.to(weight.dtype).float() * weight).sum(-1)
        out = (out if bias is None else out + bias).to(weight.dtype)[..., None]
        return (out if activation is None else ACT2FN[activation](out)).to(hidden_states.dtype)

    return replaced


def _plain(*tensors: Tensor | None) -> bool:
    """Whether nothing is differentiated or traced."""
    if not direct(*tensors) or any(x is not None and has_tangent(x) for x in tensors):
        return False
    return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def _repeats(x: Tensor | None, *axes: int) -> bool:
    """Whether x holds one number along these axes."""
    return x is None or all(x.shape[axis] == 1 or x.stride(axis) == 0 for axis in axes)


def _selective_step(original: Function) -> Function:
    """Mamba-2's step: one token of :func:`_chunk_scan`, the state [B, H, P, N] updated in place. Models repeat dt, A and dt_bias over
    the channels of a head; where they do not, PyTorch's code computes it."""
    pytorchs = inspect.unwrap(original)

    @functools.wraps(original)
    def replaced(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        tensors = (state, hidden_states, dt, A, B, C, D, dt_bias)
        if not (_ours(state) and _plain(*tensors, z) and _repeats(dt, 2) and _repeats(A, 1, 2) and _repeats(dt_bias, 1)):
            return (pytorchs if _ours(state) else original)(*tensors, dt_softplus=dt_softplus, z=z, **kwargs)
        wide = sum_dtype(state)
        dt = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[:, 0].to(dt.dtype)
        dt = (F.softplus(dt) if dt_softplus else dt).to(wide)
        x, sums = hidden_states.to(wide), state.to(wide)
        decay = (dt * A[:, 0, 0].to(wide))[:, None]
        rows = (C.to(wide)[:, None], B.to(wide)[:, None], (x * dt[..., None])[:, None])
        out = step(*rows, decay, sums.transpose(-1, -2), Rules(1.0, False))[:, 0]
        if sums is not state:
            state.copy_(sums)
        if D is not None:
            out = out + x * D
        return (out if z is None else out * F.silu(z)).to(hidden_states.dtype)

    return replaced


def _chunk_scan(original: Function) -> Function:
    """Mamba-2 (arXiv:2405.21060): linear attention of C on B with values dt x and decay exp(dt A); heads share B and C in groups."""

    @functools.wraps(original)
    def replaced(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not _ours(hidden_states) or kwargs.get("z") is not None:
            more = {"D": D, "dt_bias": dt_bias, "initial_states": initial_states, "dt_softplus": dt_softplus}
            more |= {"dt_limit": dt_limit, "return_final_states": return_final_states}
            return original(hidden_states, dt, A, B, C, chunk_size, **more, **kwargs)
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            dt = F.softplus(dt)
        wide = sum_dtype(hidden_states)
        dt = torch.clamp(dt, dt_limit[0], dt_limit[1]).to(wide)
        x = hidden_states.to(wide)
        state = None if initial_states is None else initial_states.transpose(-1, -2)
        offsets = _offsets(kwargs, x.shape[0])
        tensors = (C.to(wide), B.to(wide), x * dt[..., None], A.to(wide) * dt, None, state, offsets)
        out, final = scan(*tensors, Rules(1.0, False), return_final_states)
        if D is not None:
            out = out + D[..., None] * x
        return (out, final.transpose(-1, -2)) if return_final_states and final is not None else out

    return replaced


def _split_scan(original: Function) -> Function:
    """Everything between two projections at once, which no CPU code computes: None sends the model to the functions above."""

    @functools.wraps(original)
    def replaced(zxbcdt: Tensor, *args: Any, **kwargs: Any) -> Any:
        return None if _ours(zxbcdt) else original(zxbcdt, *args, **kwargs)

    return replaced


#: Replaced functions, by their name in the modelling files.
REPLACEMENTS: dict[str, Callable[[Function], Function]] = {
    "torch_chunk_gated_delta_rule": functools.partial(_delta_rule, chunk_gated_delta_rule),
    "torch_recurrent_gated_delta_rule": functools.partial(_delta_rule, fused_recurrent_gated_delta_rule),
    "chunk_kimi_delta_attention": functools.partial(_delta_rule, chunk_kimi_delta_attention),
    "recurrent_kimi_delta_attention": functools.partial(_delta_rule, recurrent_kimi_delta_attention),
    "mamba2_chunk_scan": _chunk_scan,
    "mamba2_selective_state_update": _selective_step,
    "mamba2_split_conv1d_scan_combined": _split_scan,
    "mamba_selective_scan": functools.partial(_stand_in, selective_scan_fn),
}
#: Replaced beside them.
BESIDE: dict[str, Callable[[Function], Function]] = {
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": _convolution_step,
}
