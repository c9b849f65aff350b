"""Mamba's selective scan and the short convolution before it, on qkv's kernels, for tensors on the CPU."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _scan_calls
from ._calls import FLOATS, ArgumentError, require_floats, require_shapes, require_tensors
from ._overrides import any_override, require_plain
from .sdpa import direct

__all__ = ["selective_scan", "short_convolution"]


def recorded(*tensors: Tensor | None) -> bool:
    """Whether a graph, a trace or a transform needs the operator."""
    grads = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return grads or forward_ad._current_level >= 0 or not direct(*tensors)


def _require(name: str, given: dict[str, Tensor | None], needed: int) -> None:
    """Raises TypeError or ArgumentError unless the first `needed` are tensors of floats on the CPU, the others too or None."""
    if any_override(*given.values()):
        require_plain(name, given)
    for n, (key, x) in enumerate(given.items()):
        if (x is not None or n < needed) and not (isinstance(x, Tensor) and x.dtype in FLOATS and x.is_cpu):
            require_floats(name, {key: x}, {})


def selective_scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Mamba's recurrence, h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t], out[t] = C[t] h[t] + D u[t]. Gu and Dao 2023 (arXiv:2312.00752).

    Args:
        u, dt: [B, T, C], float32, float64, bfloat16 or float16, on the CPU. Memory with another axis innermost is copied. dt is what
            multiplies: bias and softplus are the caller's.
        A: [C, N], normally below 0. B, C: [B, T, G, N], or [B, T, N] for one group: channel c reads group c // (C // G). Any
            strides: what does not depend on the token is expanded.
        D: [C]. initial_state: [B, C, N], default zeros.

    Returns:
        out [B, T, C] of u's type, and the state after the last token [B, C, N] (float32; float64 for float64) or None.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for wrong shapes or devices. TypeError: for element types.

    Sums are float32 for 16-bit tensors. Differentiable once in all tensors and in both results; bit-identical for any number of
    threads; works under torch.compile(fullgraph=True), torch.func.grad and vmap. Backward keeps a state for every 16 tokens.
    """
    tensors = (u, dt, A, B, C, D, initial_state)
    _require("selective_scan", dict(zip(("u", "dt", "A", "B", "C", "D", "initial_state"), tensors)), 5)
    B, C = (x.unsqueeze(2) if x.dim() == 3 else x for x in (B, C))
    shapes = {"u": (u, "B T C"), "dt": (dt, "B T C"), "A": (A, "C N"), "B": (B, "B T G N"), "C": (C, "B T G N"), "D": (D, "C")}
    sizes = require_shapes("selective_scan", {**shapes, "initial_state": (initial_state, "B C N")})
    if sizes["G"] == 0 or sizes["N"] == 0 or sizes["C"] % sizes["G"]:
        raise ArgumentError(f"[selective_scan] the groups of B and C must divide the channels of u: got {list(B.shape)} for {list(u.shape)}")
    tensors = (u, dt, A, B, C, D, initial_state)
    out, final, _ = _scan_calls.selective_scan(*tensors) if recorded(*tensors) else _scan_calls.scan(*tensors, keep=False)
    return out, final if output_final_state else None


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, before: Tensor | None = None, sequence: Tensor | None = None,
    activation: str | None = None, return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """A causal depthwise convolution of few taps on [B, T, C] memory: out[t] = bias + sum_k weight[:, k] x[t - W + 1 + k]. Dao 2023.

    Args:
        x: [B, T, C], float32, float64, bfloat16 or float16, on the CPU. weight: [C, W]. bias: [C].
        before: [B, W - 1, C], the rows before the first token, default zeros.
        sequence: [B, T] integers instead: a token reads those of its own number alone; below 0: its result is 0.
        activation: "silu" or "swish", on the result.
        return_last: also return the last W - 1 rows [B, W - 1, C], which the next call takes as `before`.

    Returns:
        out [B, T, C] of x's type, or (out, the last rows) with return_last.

    Raises:
        ArgumentError (a ValueError and RuntimeError): for wrong shapes, devices or activations. TypeError: for element types.

    As :func:`selective_scan` otherwise.
    """
    if activation not in (None, "silu", "swish"):
        raise ArgumentError(f"[short_convolution] activation must be None, 'silu' or 'swish': got {activation!r}")
    if before is not None and sequence is not None:
        raise ArgumentError("[short_convolution] before and sequence exclude each other: a pack begins with its first sequence")
    _require("short_convolution", {"x": x, "weight": weight, "bias": bias, "before": before}, 2)
    require_tensors("short_convolution", {}, {"sequence": sequence})
    sizes = require_shapes("short_convolution", {"x": (x, "B T C"), "weight": (weight, "C W"), "bias": (bias, "C"), "sequence": (sequence, "B T")})
    if sizes["W"] == 0:
        raise ArgumentError(f"[short_convolution] weight must have at least one tap: got {list(weight.shape)}")
    require_shapes("short_convolution", {"before": (before, "B taps C")}, B=sizes["B"], taps=sizes["W"] - 1, C=sizes["C"])
    tensors = (x, weight, bias, before, sequence)
    if recorded(*tensors):
        out, last = _scan_calls.short_convolution(*tensors, activation is not None)
        return (out, last) if return_last else out
    return (_scan_calls.convolution if return_last else _scan_calls.convolved)(*tensors, activation is not None)
