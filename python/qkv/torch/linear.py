"""The gated delta rule and Kimi Delta Attention with flash-linear-attention's arguments, on qkv's kernels, for tensors on the CPU.

    S[t] = exp(g[t]) S[t-1] + beta[t] k[t] (v[t] - (exp(g[t]) S[t-1])^T k[t])^T        out[t] = scale S[t]^T q[t]

Yang 2024 (arXiv:2412.06464): exp(g[t]) is a number. Kimi Team 2025 (arXiv:2510.26692): one for each row of S. Forward and backward
are bit-identical for any number of threads; a sequence of a pack has the bits that it has alone.
"""

from typing import Any

import torch
from torch import Tensor

from .._arrays import require_numbers
from ._calls import ArgumentError, autocast_where_mixed, require_floats, require_real, require_shapes
from ._linear_calls import Rules, forward, linear_scan, numbers_of
from ._overrides import any_override, require_plain
from .scan import recorded

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "fused_recurrent_gated_delta_rule",
    "recurrent_kimi_delta_attention",
]

# Arguments of transformers to every layer, and how long a chunk of other kernels is: nothing that a result depends on, but for
# cu_seq_lens_q, its name of cu_seqlens.
_HARMLESS = frozenset((
    "chunk_size", "cu_seqlens_cpu", "cu_seq_lens_q", "cu_seq_lens_k", "is_causal", "max_length_q", "max_length_k",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits", "position_ids", "return_dict",
    "use_cache",
))  # fmt: skip


_GATED = """The gated delta rule. Yang 2024 (arXiv:2412.06464), eq. 10.

Args:
    q, k: [B, T, Hk, K], v: [B, T, Hv, V], float32, float64, bfloat16 or float16, on the CPU. Hv is a multiple of Hk: head h of
        v reads head h // (Hv // Hk). Any strides; a last axis whose stride is not 1 is copied.
    g: [B, T, Hv], logarithm of the decay, normally at most 0; None: no decay. beta: [B, T, Hv]; stable where beta |k|^2 < 2.
    scale: multiplies q.k, default K ** -0.5.
    initial_state: [N, Hv, K, V], the state before the first token (default zeros). N is B, or the number of packed sequences.
    use_qk_l2norm_in_kernel: divides rows of q and k by sqrt(|x|^2 + 1e-6) first.
    cu_seqlens: [N + 1] integers, where each sequence of a pack (B = 1) begins and the last ends.
    kwargs: what transformers passes to all its layers is accepted. cu_seq_lens_q is read where cu_seqlens is None; the others
        have no effect.

Returns:
    out [B, T, Hv, V] of v's type, and the state after the last token [N, Hv, K, V] (float32; float64 for float64) or None
    unless output_final_state. Sums are float32 for 16-bit tensors.

Raises:
    ArgumentError (a ValueError and RuntimeError): for wrong shapes or devices. TypeError: for element types, unknown arguments.

Differentiable once in all tensors; works under torch.compile(fullgraph=True), torch.func.grad and vmap. Under autocast q, k and v
of different types are cast to its type.
"""
_STEP = "\nThe same function for the steps of generation: one token takes a pass over the state; more run in chunks."
_KIMI = """Kimi Delta Attention: the gated delta rule with a decay for each channel of k. Kimi Team 2025 (arXiv:2510.26692), eq. 1.

As :func:`chunk_gated_delta_rule`, but for g: [B, T, Hv, K], the logarithm of each channel's decay, normally at most 0; strong
decay (-20 a token) loses no accuracy and overflows nowhere. The gate's activation, softplus or sigmoid, is the caller's:
flash-linear-attention's use_gate_in_kernel is refused.
"""


def _rule(name: str, doc: str, channels: bool = False) -> Any:
    def rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        state, unit = initial_state, use_qk_l2norm_in_kernel
        return _delta_rule(name, q, k, v, g, beta, scale, state, output_final_state, unit, cu_seqlens, kwargs, channels)

    rule.__name__ = rule.__qualname__ = name
    rule.__doc__ = doc
    return rule


chunk_gated_delta_rule = _rule("chunk_gated_delta_rule", _GATED)
fused_recurrent_gated_delta_rule = _rule("fused_recurrent_gated_delta_rule", _GATED + _STEP)
chunk_kimi_delta_attention = _rule("chunk_kimi_delta_attention", _KIMI, True)
recurrent_kimi_delta_attention = _rule("recurrent_kimi_delta_attention", _KIMI + _STEP, True)


def _delta_rule(
    name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None, state: Tensor | None,
    want_state: bool, unit: bool, cu_seqlens: Tensor | None, more: dict[str, Any], channels: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    if more:
        check_known(name, more)
        cu_seqlens = more.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens
    if beta is None:
        raise TypeError(f"[{name}] beta must be a tensor [B, T, Hv]: got None; the delta rule without it is v.new_ones(v.shape[:3])")
    require_numbers(name, scale=scale)
    q, k, v = autocast_where_mixed(q, k, v)
    _check(name, {"q": q, "k": k, "v": v}, g, beta, state, cu_seqlens, channels)
    rules = Rules(q.shape[3] ** -0.5 if scale is None else float(scale), unit)
    return scan(q, k, v, g, beta, state, cu_seqlens, rules, want_state)


def scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor | None,
    offsets: Tensor | None, rules: Rules, want_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out and the final state (None unless wanted); chooses between kernels and operators."""
    tensors = (q, k, v, log_decay, beta, state)
    if recorded(*tensors):
        out, final = linear_scan(*tensors, offsets, *rules)
        return out, final if want_state else None
    return forward(*tensors, numbers_of(offsets, q), rules, want_state)


def check_known(name: str, more: dict[str, Any], harmless: frozenset[str] = _HARMLESS) -> None:
    """Raises TypeError for the first argument that would change a result. None and False ask for nothing."""
    for key, value in more.items():
        if key not in harmless and value is not None and value is not False:
            raise TypeError(
                f"[{name}] {key} is not computed here: got {key}={value!r}; leave it out, or use the original function"
            )


def _check(
    name: str, rows: dict[str, Tensor], g: Tensor, beta: Tensor, state: Tensor | None, cu_seqlens: Tensor | None, channels: bool
) -> None:
    """Raises ArgumentError or TypeError unless q, k, v, g, beta, state and cu_seqlens fit each other."""
    given = {**rows, "g": g, "beta": beta, "initial_state": state}
    if any_override(*given.values()):
        require_plain(name, given)
    require_floats(name, rows, {**given, "cu_seqlens": cu_seqlens})
    require_real(name, g=g, beta=beta, initial_state=state)
    q, k, v = rows.values()
    sizes = require_shapes(name, {"q": (q, "B T Hk K"), "k": (k, "B T Hk K"), "v": (v, "B T Hv V")})
    if sizes["K"] == 0:
        raise ArgumentError(f"[{name}] q and k must have heads of at least 1: got q {list(q.shape)}, k {list(k.shape)}")
    if sizes["Hk"] == 0 or sizes["Hv"] % sizes["Hk"] or sizes["Hv"] == 0:
        got = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ArgumentError(f"[{name}] the heads of v must be a multiple of those of q and k: got {got}")
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64)):
        raise ArgumentError(
            f"[{name}] cu_seqlens must be [N + 1] of int32 or int64: got {list(cu_seqlens.shape)} of {cu_seqlens.dtype}"
        )
    if cu_seqlens is not None and sizes["B"] != 1:
        raise ArgumentError(f"[{name}] packed sequences (cu_seqlens) lie in one row, B = 1: got q {list(q.shape)}")
    of_tokens = {"g": (g, "B T Hv K" if channels else "B T Hv"), "beta": (beta, "B T Hv"), "initial_state": (state, "N Hv K V")}
    require_shapes(name, of_tokens, **sizes, N=sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1)
