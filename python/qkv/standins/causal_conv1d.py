"""causal_conv1d 1.7's functions on qkv.torch.short_convolution. x is [B, C, T]; memory whose channels lie innermost, as a linear layer
leaves it, is read where it lies, and the result has that memory.

Beyond the package: any width, float64, states and gradients of states on every layout.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch import short_convolution
from ..torch._calls import require_shapes, sum_dtype
from ..torch._scan_calls import convolved
from ._needs import bound, named, require_cpu, require_integers, require_real, require_within

_NAME = "causal_conv1d"


def _silu(activation: str | None) -> str | None:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"[{_NAME} of qkv.standins] activation must be None, 'silu' or 'swish': got {activation!r}")
    return activation


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None, initial_states: Tensor | None = None,
    return_final_states: bool = False, final_states_out: Tensor | None = None, activation: str | None = None,
) -> Any:  # fmt: skip
    """x [B, C, T], weight [C, W], bias [C], seq_idx [B, T], below 0: padding; states [B, C, W - 1] -> out [B, C, T], or (out, final)."""
    require_cpu(_NAME, x=x, weight=weight, bias=bias, initial_states=initial_states)
    require_real(_NAME, "causal_conv1d_fn", x=x, weight=weight, bias=bias, initial_states=initial_states)
    shapes = {"x": (x, "B C T"), "weight": (weight, "C W"), "bias": (bias, "C"), "seq_idx": (seq_idx, "B T")}
    taps = require_shapes("causal_conv1d_fn", shapes)["W"] - 1
    require_shapes("causal_conv1d_fn", {"initial_states": (initial_states, "B C W-1")}, **{"B": x.shape[0], "C": x.shape[1], "W-1": taps})
    if seq_idx is not None:
        bound(_NAME, "causal_conv1d_fn with seq_idx", return_final_states=return_final_states)
    plain = taps >= 0 and seq_idx is None and initial_states is None and not return_final_states and not torch.is_autocast_enabled("cpu")
    if plain and x.stride(2) == 1 != x.stride(1):
        # Tokens innermost: PyTorch's convolution is as fast, and a copy costs twice as much. Sums and SiLU are wide, rounded once.
        wide, bias, weight = (None if t is None else t.to(sum_dtype(x)) for t in (x, bias, weight))
        rows = F.conv1d(wide, weight[:, None], bias, padding=taps, groups=x.shape[1])[..., : x.shape[2]]  # type: ignore[index]
        return (rows if _silu(activation) is None else F.silu(rows)).to(x.dtype)
    rows, before = x.transpose(1, 2), None if initial_states is None else initial_states.transpose(1, 2)
    if before is not None and seq_idx is not None:  # rows of the first sequence
        numbers = torch.cat((seq_idx[:, :1].expand(before.shape[:2]), seq_idx), 1)
        out = short_convolution(torch.cat((before, rows), 1), weight, bias, sequence=numbers, activation=_silu(activation))
        return out[:, before.shape[1] :].transpose(1, 2).to(x.dtype)  # type: ignore[call-overload,union-attr]
    made = short_convolution(rows, weight, bias, before, seq_idx, _silu(activation), return_last=return_final_states)
    if not return_final_states:
        return made.transpose(1, 2)  # type: ignore[union-attr]
    out, final = (one.transpose(1, 2) for one in made)
    return out, final if final_states_out is None else final_states_out.copy_(final)


@torch.no_grad()
def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None,
    cache_seqlens: Tensor | None = None, conv_state_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x [B, C] or [B, C, T] behind conv_state [B, C, at least W - 1], which is updated: shifted, or with cache_seqlens [B] a ring whose next
    slot that is. conv_state_indices [B]: the rows of a larger conv_state; where below 0 the result is 0. No gradients."""
    tensors = {"x": x, "conv_state": conv_state, "weight": weight, "bias": bias}
    require_cpu(_NAME, **tensors)
    silu = _silu(activation) is not None
    if x.dim() == 2:
        return causal_conv1d_update(x[..., None], conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)[..., 0]
    indices = {"cache_seqlens": cache_seqlens, "conv_state_indices": conv_state_indices}
    require_real(_NAME, "causal_conv1d_update", **tensors)
    require_integers(_NAME, "causal_conv1d_update", **indices)
    axes = {"x": "B C T", "conv_state": "B C length" if conv_state_indices is None else "rows C length", "weight": "C W", "bias": "C"}
    require_shapes("causal_conv1d_update", {name: (t, axes.get(name, "B")) for name, t in (tensors | indices).items()})
    taken, length, taps = conv_state, conv_state.shape[2], weight.shape[1] - 1
    if length < taps:
        raise ValueError(f"[{_NAME} of qkv.standins] causal_conv1d_update: conv_state must hold at least {taps} tokens: got {length}")
    if conv_state_indices is not None:
        used = conv_state_indices >= 0
        if not bool(used.all()):
            out = torch.zeros_like(x)
            lengths = None if cache_seqlens is None else cache_seqlens[used]
            out[used] = causal_conv1d_update(x[used], conv_state, weight, bias, activation, lengths, conv_state_indices[used])
            return out
        require_within(_NAME, "causal_conv1d_update", len(conv_state), conv_state_indices=conv_state_indices)
        taken = conv_state[conv_state_indices.long()]
    rows = x.transpose(1, 2)
    if cache_seqlens is None:
        read = torch.cat((taken.transpose(1, 2), rows.to(taken.dtype)), 1)
        before, after = read[:, length - taps : length], read[:, x.shape[2] :].transpose(1, 2)
    else:
        at = cache_seqlens.long()[:, None] + torch.arange(-taps, x.shape[2])
        at = (at % length)[:, None].expand(-1, x.shape[1], -1)
        before = taken.gather(2, at[..., :taps]).transpose(1, 2)
        after = taken.scatter(2, at[..., taps:][..., -length:], x[..., -length:].to(taken.dtype))  # each slot once
    out = convolved(rows, weight, bias, before, None, silu).transpose(1, 2)  # what it refuses leaves the state as it was
    if conv_state_indices is None:
        conv_state.copy_(after)
    else:
        conv_state[conv_state_indices.long()] = after
    return out


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last state_len rows of each sequence of x [total, C], zeros where it is shorter -> [sequences, C, state_len]."""
    require_cpu(_NAME, x=x, cu_seqlens=cu_seqlens)
    at = cu_seqlens[1:, None].long() + torch.arange(-state_len, 0)
    inside = at >= cu_seqlens[:-1, None]
    return torch.where(inside[..., None], x[at.clamp(min=0)], 0).transpose(1, 2)


_FUNCTIONS = named(causal_conv1d_fn, causal_conv1d_update)
MODULES: dict[str, dict[str, Any]] = {
    "causal_conv1d": _FUNCTIONS,
    "causal_conv1d.causal_conv1d_interface": _FUNCTIONS,
    "causal_conv1d.causal_conv1d_varlen": named(causal_conv1d_varlen_states),
}
