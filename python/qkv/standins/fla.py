"""flash-linear-attention's rules on qkv's linear attention: every function is a row of _TABLE and a call of qkv.torch's scan.

    S[t] = exp(g[t]) S[t-1] + k[t] u[t]^T      u[t] = v[t], or beta[t] (v[t] - (exp(g[t]) S[t-1])^T k[t])      out[t] = scale S[t]^T q[t]

q, k [B, T, H, K], v [B, T, HV, V], HV a multiple of H. Gates and sigmoids, computed before the rule, are float32 (float64 for
float64), and so are states. Beyond the package: float32 and float64 everywhere, any width, gradients of every function. chunk_size
changes no result; fused_chunk_gla and fused_chunk_delta_rule, which the package gave up, are their chunk forms.
"""

import functools
import inspect
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arrays import require_numbers
from ..torch._calls import require_shapes, sum_dtype
from ..torch._linear_calls import Rules
from ..torch.linear import _check, scan
from ._needs import bound, require_cpu, require_real

_NAME = "fla"
_STATES = "initial_state output_final_state"
_PACK = "cu_seqlens cu_seqlens_cpu"
_UNIT = "use_qk_l2norm_in_kernel"
_KERNEL = "use_beta_sigmoid_in_kernel allow_neg_eigval"
_KDA = "disable_recompute return_intermediate_states"
_GATE = f"{_UNIT} use_gate_in_kernel"
#: Family; forms; arguments in their order, beside q, k, v; "!": without a default.
_TABLE = f"""
linear_attn: chunk fused_chunk: scale {_STATES} normalize cu_seqlens
linear_attn: fused_recurrent: scale {_STATES} reverse normalize cu_seqlens
retention: chunk fused_chunk: scale {_STATES} cu_seqlens
retention: fused_recurrent: scale {_STATES} reverse state_v_first cu_seqlens
retention: parallel: scale output_attentions cu_seqlens
simple_gla: chunk: g g_gamma scale {_STATES} state_v_first {_PACK}
simple_gla: fused_chunk: g g_gamma scale {_STATES} cu_seqlens
simple_gla: fused_recurrent: g g_gamma scale {_STATES} reverse state_v_first cu_seqlens
simple_gla: parallel: g scale output_attentions {_PACK}
gla: chunk fused_chunk: g! scale {_STATES} state_v_first {_PACK}
gla: fused_recurrent: gk gv scale {_STATES} reverse state_v_first cu_seqlens
delta_rule: chunk fused_chunk: beta! scale {_STATES} {_UNIT} {_PACK}
delta_rule: fused_recurrent: beta scale {_STATES} {_UNIT} cu_seqlens
gated_delta_rule: chunk: g! beta! scale {_STATES} {_UNIT} {_KERNEL} state_v_first {_PACK} chunk_indices cp_context
gated_delta_rule: fused_recurrent: g gk gv beta scale {_STATES} {_GATE} A_log dt_bias {_KERNEL} state_v_first cu_seqlens
kda: chunk: g! beta! scale {_STATES} {_GATE} {_KERNEL} safe_gate lower_bound {_KDA} state_v_first {_PACK} cp_context
kda: fused_recurrent: g! beta! A_log dt_bias scale {_STATES} {_GATE} {_KERNEL} lower_bound state_v_first cu_seqlens
lightning_attn: chunk: layer_idx! num_layers! scale {_STATES} cu_seqlens
lightning_attn: fused_recurrent: layer_idx! num_layers! scale {_STATES} reverse cu_seqlens
"""
_DELTA = ("delta_rule", "gated_delta_rule", "kda")
_CHANNELS = ("gla", "kda")  # g is of every channel
_NOT_COMPUTED = ("cp_context", "gv", "return_intermediate_states")
_CHUNKS = {"delta_rule": (16, 32, 64), "gated_delta_rule": (16, 32, 64), "kda": (32, 64)}
# What a chunk form reads out of its keywords, and what changes no result.
_GATED = {"use_gate_in_kernel", "A_log", "dt_bias"}
_KEYWORDS = {"chunk_size", "cu_seqlens_cpu", "chunk_indices", "transpose_state_layout", "disable_recompute"}


def fused_kda_gate(
    g: Tensor, A_log: Tensor | None = None, dt_bias: Tensor | None = None, lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """Logarithm of KDA's decay, g [..., H, K]: -exp(A_log[h]) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log[h]) (g + dt_bias))."""
    require_cpu(_NAME, g=g, A_log=A_log, dt_bias=dt_bias)
    wide = sum_dtype(g)
    each = g.shape[-2:]
    if dt_bias is not None and dt_bias.numel() != each.numel():
        raise ValueError(f"[fla of qkv.standins] fused_kda_gate: dt_bias must have the size of g's {list(each)}: got {list(dt_bias.shape)}")
    g = g.to(wide) if dt_bias is None else g.to(wide) + dt_bias.to(wide).view(each)
    rate = None if A_log is None else A_log.to(wide).view(g.shape[-2], 1).exp()
    if lower_bound is not None:
        return (lower_bound * torch.sigmoid(g if rate is None else rate * g)).to(output_dtype)
    if rate is None:
        raise ValueError("[fla of qkv.standins] fused_kda_gate: A_log must be given unless lower_bound is")
    return (-rate * F.softplus(g)).to(output_dtype)


def fused_gdn_gate(g: Tensor, A_log: Tensor, dt_bias: Tensor | None = None, output_dtype: torch.dtype = torch.float32) -> Tensor:
    """Logarithm of the gated delta rule's decay, g [..., H]: -exp(A_log) softplus(g + dt_bias)."""
    return fused_kda_gate(g[..., None], A_log, dt_bias, None, output_dtype)[..., 0]


def _log_decay(name: str, family: str, a: dict[str, Any], q: Tensor) -> Tensor | None:
    """[B, T, HV] or [B, T, HV, K], the sum of all that are given; None without decay."""
    heads, wide = q.shape[2], sum_dtype(q)
    g, gk, rates = a.get("g"), a.get("gk"), a.get("g_gamma")
    if a.get("use_gate_in_kernel"):
        log, bias, low = a.get("A_log"), a.get("dt_bias"), a.get("lower_bound")
        if g is None or (log is None and low is None):
            raise ValueError(f"[fla of qkv.standins] {name}: use_gate_in_kernel needs g and, without a lower_bound, `A_log` must be provided")
        if a.get("safe_gate") and not (low is not None and -5 <= low < 0):
            raise ValueError(f"[fla of qkv.standins] {name}: safe_gate with use_gate_in_kernel needs `lower_bound` in [-5, 0): got {low}")
        g = fused_kda_gate(g, log, bias, low, wide) if family == "kda" else fused_gdn_gate(g, log, bias, wide)
    if family == "retention":
        rates = torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=torch.float64)))
    elif family == "lightning_attn":
        rates = -8 / heads * (1 - a["layer_idx"] / a["num_layers"]) * torch.arange(heads, dtype=torch.float64)
    if rates is not None:
        rates = rates.to(wide).expand(*q.shape[:2], -1)
        g = rates if g is None else g + rates
    return g if gk is None else gk if g is None else g[..., None] + gk


def _beta(name: str, a: dict[str, Any], v: Tensor) -> Tensor:
    beta = a.get("beta")
    if beta is None and a.get("use_beta_sigmoid_in_kernel"):
        raise ValueError(f"[fla of qkv.standins] {name}: use_beta_sigmoid_in_kernel needs beta")
    if beta is None:
        beta = v.new_ones(v.shape[:3])
    if a.get("use_beta_sigmoid_in_kernel"):
        return beta.to(sum_dtype(v)).sigmoid() * (2 if a.get("allow_neg_eigval") else 1)
    if a.get("allow_neg_eigval"):
        raise ValueError(f"[fla of qkv.standins] {name}: `allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`")
    return beta


def _scores(q: Tensor, k: Tensor, g: Tensor | None, scale: float) -> Tensor:
    """What parallel forms return on demand: scale q[i].k[j] exp(g[j+1] + ... + g[i]), [B, H, T, T]."""
    wide = sum_dtype(q)
    scores = scale * torch.einsum("bihd,bjhd->bhij", q.to(wide), k.to(wide))
    if g is not None:  # -inf, which keeps nothing of what was before, is counted, not added
        gone, log = (x.transpose(1, 2).cumsum(2) for x in (g == -torch.inf, g.double().masked_fill(g == -torch.inf, 0)))
        ahead = (gone[..., None] != gone[:, :, None]) | torch.ones(g.shape[1], g.shape[1], dtype=torch.bool).triu(1)
        scores = scores * (log[..., None] - log[:, :, None]).masked_fill(ahead, -torch.inf).exp().to(wide)
    return scores.tril().to(q.dtype)


def _compute(name: str, family: str, form: str, a: dict[str, Any]) -> Any:
    """The one implementation; a: arguments by name."""
    require_cpu(_NAME, **{x: y for x, y in a.items() if isinstance(y, Tensor)})
    q, k, v, offsets, state, reverse, size = (a.get(x) for x in ("q", "k", "v", "cu_seqlens", "initial_state", "reverse", "chunk_size"))
    if size is not None and family in _CHUNKS and size not in _CHUNKS[family]:
        raise ValueError(f"[fla of qkv.standins] {name}: `chunk_size` must be either {' or '.join(map(str, _CHUNKS[family]))}: got {size}")
    if a.get("output_attentions") and offsets is not None:
        raise NotImplementedError(
            f"[fla of qkv.standins] {name}: output_attentions is of sequences of one length, without cu_seqlens: got cu_seqlens "
            f"{list(offsets.shape)}; call it once a sequence"
        )
    v_first = a.get("state_v_first", False)
    if "transpose_state_layout" in a:
        if v_first:
            raise ValueError(f"[fla of qkv.standins] {name}: state_v_first and its old name transpose_state_layout are both given")
        warnings.warn(f"{name}: transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
        v_first = a["transpose_state_layout"]
    wide = "B T HV K" if family in _CHANNELS else "B T HV"
    axes = {"q": "B T H K", "v": "B T HV V", "g": wide, "gk": "B T HV K", "g_gamma": "HV", "beta": "B T HV"}
    states = dict(zip(("initial_state", "initial_state[1]"), state if isinstance(state, tuple) else (state,)))
    require_real(_NAME, name, **{x: a.get(x) for x in (*axes, "A_log", "dt_bias")}, **states)
    require_shapes(name, {x: (a.get(x), y) for x, y in axes.items()})
    require_numbers(name, scale=a.get("scale"))
    scale = k.shape[-1] ** -0.5 if a.get("scale") is None else float(a["scale"])
    want, normalize = bool(a.get("output_final_state")), family == "linear_attn" and a.get("normalize", form != "fused_recurrent")
    g, beta = _log_decay(name, family, a, q), _beta(name, a, v) if family in _DELTA else None
    state = state.transpose(-1, -2) if v_first and state is not None else state
    dtype = functools.reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype), sum_dtype(v) if normalize else v.dtype)
    q, k, u = q.to(dtype), k.to(dtype), v.to(dtype)
    if normalize:  # the sum of keys is one more column of the state
        u = F.pad(u, (0, 1), value=1.0)
        if isinstance(state, tuple):
            state = torch.cat((state[0], state[1][:, 0, :, :, None].to(state[0].dtype)), -1)
        elif state is not None:
            state = F.pad(state, (0, 1))
    if reverse:
        q, k, u, g, beta = (None if x is None else x.flip(1) for x in (q, k, u, g, beta))
        if offsets is not None:
            offsets, state = offsets[-1] - offsets.flip(0), None if state is None else state.flip(0)
    rules = Rules(scale, bool(a.get("use_qk_l2norm_in_kernel")))
    _check(name, {"q": q, "k": k, "v": u}, g, beta, state, offsets, g is not None and g.dim() == 4)
    out, final = scan(q, k, u, g, beta, state, offsets, rules, want or bool(normalize))
    if reverse:
        out, final = out.flip(1), final if final is None or offsets is None else final.flip(0)
    if normalize:
        assert final is not None
        out = (out[..., :-1] / (out[..., -1:] + 1e-10)).to(v.dtype)
        return out, (final[..., :-1] if want else None, final[..., -1][:, None])
    if form == "parallel":
        return out.to(v.dtype), _scores(q, k, g, scale) if a.get("output_attentions") else None
    return out.to(v.dtype), final.transpose(-1, -2) if v_first and final is not None else final


def _function(family: str, form: str, names: list[str]) -> Any:
    name = f"{form}_{family}"
    needs = {"q", "k", "v", *(x[:-1] for x in names if x[-1] == "!")}
    order = ["q", "k", "v", *(x.rstrip("!") for x in names)]
    known = {*order, *_KEYWORDS, *(_GATED if family in ("gated_delta_rule", "kda") else ())}

    def rule(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > len(order) or any(x in options for x in order[: len(arguments)]):
            raise TypeError(f"{name}() has {len(order)} arguments, each once: {', '.join(order)}")
        a = {**dict(zip(order, arguments)), **options}
        missing = [x for x in order if a.get(x) is None and x in needs]
        if missing:
            raise TypeError(f"{name}() needs {', '.join(missing)}")
        bound(_NAME, name, **{x: y for x, y in a.items() if x not in known or x in _NOT_COMPUTED})
        return _compute(name, family, form, a)

    rule.__name__ = rule.__qualname__ = name
    rule.__doc__ = f"fla.ops.{family}'s {name}({', '.join(order)}) on the CPU."
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [inspect.Parameter(x, kind, default=empty if x in needs else None) for x in order]
    rule.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    globals()[name] = rule  # where pickle looks for it
    return rule


def l2norm(x: Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> Tensor:
    """x / sqrt(|x|^2 + eps), rows of the last axis."""
    require_cpu(_NAME, x=x)
    wide = x.to(sum_dtype(x))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(output_dtype or x.dtype)


def _modules() -> dict[str, dict[str, Any]]:
    every: dict[str, dict[str, Any]] = {"fla": {}, "fla.ops": {}, "fla.modules": {}}
    for row in _TABLE.strip().splitlines():
        family, forms, names = row.split(": ")
        for form in forms.split():
            made = {f"{form}_{family}": _function(family, form, names.split())}
            if family == "gated_delta_rule":
                made[f"{form}_gdn"] = made[f"{form}_{family}"]
            for module in ("fla.ops", f"fla.ops.{family}", f"fla.ops.{family}.{form}"):
                every.setdefault(module, {}).update(made)
    return every


MODULES = _modules() | {
    "fla.ops.kda.gate": {"fused_kda_gate": fused_kda_gate},
    "fla.ops.gated_delta_rule.gate": {"fused_gdn_gate": fused_gdn_gate},
    "fla.modules.l2norm": {"l2norm": l2norm, "l2_norm": l2norm},
}
