"""mamba_ssm 2.3's functions on qkv.torch.selective_scan (Mamba-1), on its scan of linear attention (Mamba-2) and its short convolution.

Rows [B, C, T] whose channels lie innermost are read where they lie. Beyond the package: float64, gradients of states. A complex A of
Mamba-1 has no kernel: it is computed token by token in PyTorch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch import selective_scan, short_convolution
from ..torch._calls import require_shapes, sum_dtype
from ..torch._linear_calls import Rules
from ..torch._linear_calls import step as step_of_heads
from ..torch._scan_calls import step
from ..torch.linear import scan
from ._needs import bound, named, require_cpu, require_integers, require_real, require_within
from ._norms import GatedRMSNorm, MambaRMSNorm, gated_norm, layernorm_fn, mamba_layer_norm_fn, mamba_rms_norm_fn, rmsnorm_fn
from .causal_conv1d import causal_conv1d_fn

_NAME = "mamba_ssm"


def _step(dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float] | None = None) -> Tensor:
    """dt of at least float32 as it multiplies. Mamba-2 keeps it in a limit, (0, inf) where none is given; Mamba-1 has none."""
    dt = dt.to(sum_dtype(dt))
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = F.softplus(dt) if softplus else dt
    return dt if limit is None or (softplus and limit == (0.0, float("inf"))) else dt.clamp(*limit)


def _of_tokens(x: Tensor, tokens: tuple[int, int, int]) -> Tensor:
    """B or C of selective_scan_fn, [D, N], [B, N, T] or [B, G, N, T], as [B, T, G, N]."""
    if x.dim() == 2:
        return x.expand(*tokens[:2], *x.shape)
    return x.transpose(1, 2).unsqueeze(2) if x.dim() == 3 else x.permute(0, 3, 1, 2)


def _same_groups(x: Tensor, groups: int) -> Tensor:
    if x.shape[2] == groups:
        return x
    return x.expand(-1, -1, groups, -1) if x.shape[2] == 1 else x.repeat_interleave(groups // x.shape[2], 2)


def _complex_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba-1 with a complex state, whose real part counts twice. B, C [B, T, C, N], complex."""
    state, outs = A.new_zeros(u.shape[0], *A.shape), []
    for i in range(u.shape[1]):
        state = torch.exp(dt[:, i, :, None] * A) * state + (dt[:, i] * u[:, i])[..., None] * B[:, i]
        outs.append(2 * (state * C[:, i]).sum(-1).real)
    return torch.stack(outs, 1), state


def _scan_rows(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rows [B, T, C] and B, C [B, T, G, N] -> out of the type of sums, gated, and the last state."""
    u = u.to(sum_dtype(u))
    groups = max(B.shape[2], C.shape[2])
    B, C = _same_groups(B, groups), _same_groups(C, groups)
    if A.is_complex():
        out, state = _complex_scan(u, dt, A, _same_groups(B, u.shape[2]), _same_groups(C, u.shape[2]))
        out = out if D is None else out + D * u
    else:
        out, state = selective_scan(u, dt, A, B, C, D, output_final_state=True)  # type: ignore[assignment]
    return out if z is None else out * F.silu(z.to(out.dtype)), state


def _pairs(x: Tensor, A: Tensor) -> Tensor:
    """Rows [.., 2 n] of B or C that depend on the token, of a complex A as complex [.., n]."""
    return torch.view_as_complex(x.to(sum_dtype(x)).unflatten(-1, (-1, 2)).contiguous()) if A.is_complex() else x


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """u, delta, z [B, D, T], A [D, N], B, C [D, N], [B, N, T] or [B, G, N, T] -> out [B, D, T] (and the last state [B, D, N])."""
    require_cpu(_NAME, u=u, delta=delta, A=A, B=B, C=C, D=D, z=z, delta_bias=delta_bias)
    tokens = "2T" if A.is_complex() else "T"  # pairs
    shapes = {"u": (u, "B D T"), "delta": (delta, "B D T"), "z": (z, "B D T"), "A": (A, "D N"), "D": (D, "D"), "delta_bias": (delta_bias, "D")}
    for name, x in (("B", B), ("C", C)):
        shapes[name] = (x, "D N" if x.dim() == 2 else f"B N {tokens}" if x.dim() == 3 else f"B G_{name} N {tokens}")
    require_shapes("selective_scan_fn", shapes, **{"2T": 2 * u.shape[-1]})
    complex_too = {name for name in ("A", "B", "C") if A.is_complex() and shapes[name][0].dim() == 2}
    require_real(_NAME, "selective_scan_fn", **{name: x for name, (x, _) in shapes.items() if name not in complex_too})
    rows = u.transpose(1, 2)
    B, C = (_of_tokens(_pairs(x, A) if x.dim() > 2 else x, rows.shape) for x in (B, C))
    gate = None if z is None else z.transpose(1, 2)
    out, state = _scan_rows(rows, _step(delta.transpose(1, 2), delta_bias, delta_softplus), A, B, C, D, gate)
    out = out.to(u.dtype).transpose(1, 2)
    return (out, state) if return_last_state else out


def mamba_inner_fn(
    xz: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, x_proj_weight: Tensor, delta_proj_weight: Tensor,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, A: Tensor, B: Tensor | None = None, C: Tensor | None = None,
    D: Tensor | None = None, delta_bias: Tensor | None = None, B_proj_bias: Tensor | None = None, C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True, checkpoint_lvl: int = 1, b_rms_weight: Tensor | None = None, c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None, b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """Mamba's layer between its first projection, xz [B, 2 D, T], and its last one's result [B, T, ...]."""
    require_cpu(_NAME, xz=xz, A=A)
    rank, states = delta_proj_weight.shape[1], A.shape[1] * (2 if A.is_complex() else 1)
    shapes = {"conv1d_weight": (conv1d_weight, "D 1 W"), "xz": (xz, "B 2D T"), "A": (A, "D N"), "D": (D, "D"), "delta_bias": (delta_bias, "D")}
    shapes |= {"x_proj_weight": (x_proj_weight, "rank+B+C D"), "delta_proj_weight": (delta_proj_weight, "D rank")}
    projected_to = rank + states * ((B is None) + (C is None))
    require_shapes("mamba_inner_fn", shapes, **{"1": 1, "2D": 2 * conv1d_weight.shape[0], "rank+B+C": projected_to})
    x, z = xz.chunk(2, 1)
    x = causal_conv1d_fn(x, conv1d_weight[:, 0], conv1d_bias, activation="silu").transpose(1, 2).contiguous()
    projected = F.linear(x, x_proj_weight)

    def normed(rows: Tensor, weight: Tensor | None) -> Tensor:
        return rows if weight is None else F.rms_norm(rows, rows.shape[-1:], weight.to(rows.dtype), b_c_dt_rms_eps)

    def shared(given: Tensor | None, rows: Tensor, bias: Tensor | None, weight: Tensor | None) -> Tensor:
        if given is not None:
            return _of_tokens(given, x.shape)
        rows = normed(rows if bias is None else rows + bias.to(rows.dtype), weight)
        return _pairs(rows, A)[:, :, None]

    B = shared(B, projected[..., rank : rank + states], B_proj_bias, b_rms_weight)
    C = shared(C, projected[..., projected.shape[-1] - states :], C_proj_bias, c_rms_weight)
    dt = _step(normed(F.linear(projected[..., :rank], delta_proj_weight), dt_rms_weight), delta_bias, delta_softplus)
    out, _ = _scan_rows(x, dt, A, B, C, D, z.transpose(1, 2))
    return F.linear(out.to(projected.dtype), out_proj_weight, out_proj_bias)


def _repeats(x: Tensor | None, *axes: int) -> bool:
    """Whether x holds one number along these axes."""
    return x is None or all(x.shape[axis] == 1 or x.stride(axis) == 0 for axis in axes)


@torch.no_grad()
def selective_state_update(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, dt_softplus: bool = False, state_batch_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One token: state [B, D, N], which is updated, x, dt, z [B, D], A [D, N], B, C [B, N], D, dt_bias [D] -> out [B, D]; or of heads,
    [B, H, D, N] and so on, B, C [B, G, N]. state_batch_indices [B]: the rows of a larger state, none below 0. No gradients."""
    require_cpu(_NAME, state=state, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    require_integers(_NAME, "selective_state_update", state_batch_indices=state_batch_indices)
    x, dt, A, B, C, D, z, dt_bias = (None if t is None else t.resolve_neg() for t in (x, dt, A, B, C, D, z, dt_bias))  # type: ignore[assignment]
    row = "B H P" if x.dim() == 3 else "B P"  # everything is checked before the state changes
    shapes = {"x": (x, row), "dt": (dt, row), "z": (z, row), "D": (D, row[2:]), "dt_bias": (dt_bias, row[2:]), "A": (A, row[2:] + " N")}
    shapes |= {name: (t, "B N" if t.dim() == 2 else f"B G_{name} N") for name, t in (("B", B), ("C", C))}
    shapes["state_batch_indices"] = (state_batch_indices, "B")
    require_shapes("selective_state_update", shapes | {"state": (state, f"{'B' if state_batch_indices is None else 'rows'} {row[2:]} N")})
    if state_batch_indices is not None:
        require_within(_NAME, "selective_state_update", len(state), state_batch_indices=state_batch_indices)
    require_real(_NAME, "selective_state_update", x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, state=state)
    wide = torch.promote_types(sum_dtype(x), state.dtype)
    taken = state if state_batch_indices is None else state[state_batch_indices.long()]
    after = taken.resolve_neg().to(wide)  # the state itself, where it is of this type
    rows = x.to(wide)
    if x.dim() == 3 and _repeats(dt, 2) and _repeats(A, 1, 2) and _repeats(dt_bias, 1):  # Mamba-2: one decay a head
        steps = _step(dt[..., 0], None if dt_bias is None else dt_bias[:, 0], dt_softplus).to(wide)
        heads = (C.to(wide)[:, None], B.to(wide)[:, None], (rows * steps[..., None])[:, None], (steps * A[:, 0, 0].to(wide))[:, None])
        out = step_of_heads(*heads, after.transpose(-1, -2), Rules(1.0, False))[:, 0]
        out = out if D is None else out + rows * D
    else:
        token, channels = (x.shape[0], 1, -1), after.flatten(1, -2)
        steps = _step(dt.reshape(token), None if dt_bias is None else dt_bias.flatten(), dt_softplus).to(wide).contiguous()
        B, C = (t.reshape(x.shape[0], 1, -1, t.shape[-1]).to(wide) for t in (B, C))
        D = None if D is None else D.flatten().to(wide)
        out = step(rows.reshape(token).contiguous(), steps, A.reshape(-1, A.shape[-1]).to(wide), B, C, D, channels).view(x.shape)
        after = channels.view(taken.shape)
    if state_batch_indices is not None:
        state[state_batch_indices.long()] = after.to(state.dtype)
    elif after.data_ptr() != state.data_ptr():
        state.copy_(after)
    return (out if z is None else out * F.silu(z.to(wide))).to(x.dtype)


def _starts(seq_idx: Tensor) -> Tensor:
    """Where the sequences of all rows begin and the last ends, as if one row followed the other."""
    new = torch.ones_like(seq_idx, dtype=torch.bool)
    new[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return F.pad(new.flatten().nonzero()[:, 0], (0, 1), value=seq_idx.numel())


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, return_varlen_states: bool = False, state_dtype: Any = None,
) -> Any:  # fmt: skip
    """Mamba-2's scan: x, z [B, T, H, P], dt [B, T, H], A, dt_bias [H], B, C [B, T, G, N], D [H] or [H, P] -> out [B, T, H, P], with
    return_final_states (after each row's last token) and return_varlen_states (cu_seqlens of one row) states [.., H, P, N]. cu_seqlens of one
    row, or seq_idx [B, T], begin sequences; initial_states [B, H, P, N] are before each row's first token: sequences without tokens have 0."""
    require_cpu(_NAME, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states)
    shapes = {"x": (x, "B T H P"), "z": (z, "B T H P"), "dt": (dt, "B T H"), "A": (A, "H"), "dt_bias": (dt_bias, "H")}
    shapes |= {"B": (B, "B T G N"), "C": (C, "B T G N"), "D": (D, "H P" if D is not None and D.dim() == 2 else "H")}
    shapes["initial_states"] = (initial_states, "B H P N")
    require_real(_NAME, "mamba_chunk_scan_combined", **{name: t for name, (t, _) in shapes.items()})
    require_integers(_NAME, "mamba_chunk_scan_combined", seq_idx=seq_idx, cu_seqlens=cu_seqlens)
    require_shapes("mamba_chunk_scan_combined", shapes | {"seq_idx": (seq_idx, "B T"), "cu_seqlens": (cu_seqlens, "sequences+1")})
    if return_varlen_states and (cu_seqlens is None or x.shape[0] != 1):
        raise ValueError(f"[{_NAME} of qkv.standins] return_varlen_states needs cu_seqlens and one row: got x {list(x.shape)}")
    if cu_seqlens is not None and x.shape[0] != 1:
        raise ValueError(f"[{_NAME} of qkv.standins] cu_seqlens cuts one row: got x {list(x.shape)}")
    if cu_seqlens is not None and seq_idx is not None and not torch.equal(_starts(seq_idx), cu_seqlens.long().unique()):
        raise ValueError(f"[{_NAME} of qkv.standins] seq_idx must begin its sequences where cu_seqlens does: got {cu_seqlens.tolist()}")
    wide = sum_dtype(x)
    dt = _step(dt, dt_bias, dt_softplus, tuple(dt_limit)).to(wide)
    state = None if initial_states is None else initial_states.transpose(-1, -2)
    offsets = cu_seqlens if seq_idx is None or return_varlen_states else _starts(seq_idx) if seq_idx.numel() else None
    rows: list[Any] = [C.to(wide), B.to(wide), x.to(wide) * dt[..., None], A.to(wide) * dt]
    first = last = None
    if offsets is not None:
        begins = torch.arange(x.shape[0], dtype=offsets.dtype) * x.shape[1]
        first = (torch.searchsorted(offsets, begins, right=True) - 1).clamp(0, len(offsets) - 2)
        last = (torch.searchsorted(offsets, begins + x.shape[1]) - 1).clamp(min=0)
        rows = [r.flatten(0, 1)[None] for r in rows]
        if state is not None:
            state = state.new_zeros(len(offsets) - 1, *state.shape[1:]).index_copy(0, first, state)
    out, final = scan(*rows, None, state, offsets, Rules(1.0, False), return_final_states or return_varlen_states)
    out = out.view(x.shape)
    if D is not None:
        out = out + (D if D.dim() == 2 else D[:, None]).to(wide) * x
    out = (out if z is None else out * F.silu(z.to(wide))).to(x.dtype)
    if final is None:
        return out
    states = final.transpose(-1, -2)
    states = states if state_dtype is None else states.to(state_dtype)
    finals = (states if last is None else states[last],) if return_final_states else ()
    return (out, *finals, states) if return_varlen_states else (out, *finals)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor, chunk_size: int,
    initial_states: Tensor | None = None, seq_idx: Tensor | None = None, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, activation: str | None = "silu", rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6, outproj_weight: Tensor | None = None, outproj_bias: Tensor | None = None,
    headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True, state_dtype: Any = None,
) -> Any:  # fmt: skip
    """Mamba-2's layer between its projections: zxbcdt [B, T, (an MLP's 2 M) + 2 H P + 2 G N + H] -> [B, T, (M +) H P], or projected."""
    require_cpu(_NAME, zxbcdt=zxbcdt, conv1d_weight=conv1d_weight, A=A)
    bound(_NAME, "mamba_split_conv1d_scan_combined without outproj_weight", outproj_bias=outproj_bias if outproj_weight is None else None)
    heads = D.shape[0]
    width = D.shape[1] if D.dim() == 2 else headdim
    if width is None or headdim not in (None, width):
        raise ValueError(f"[{_NAME} of qkv.standins] headdim must be given where D is [H], P where it is [H, P]: got {headdim}, D {list(D.shape)}")
    inner, channels = heads * width, conv1d_weight.shape[0]
    mlp = zxbcdt.shape[-1] - inner - channels - heads
    if mlp < 0 or mlp % 2:
        raise ValueError(
            f"[{_NAME} of qkv.standins] mamba_split_conv1d_scan_combined: zxbcdt must be of {inner + channels + heads} numbers a token and an "
            f"even rest: got {list(zxbcdt.shape)}"
        )
    up, z, xBC, dt = zxbcdt.split((mlp, inner, channels, heads), -1)
    xBC = short_convolution(xBC, conv1d_weight, conv1d_bias, sequence=seq_idx, activation=activation)  # type: ignore[assignment]
    x, B, C = xBC.split((inner, (channels - inner) // 2, (channels - inner) // 2), -1)
    gate = z if rmsnorm_weight is None else None
    out = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, width)), dt, A, B.unflatten(-1, (ngroups, -1)), C.unflatten(-1, (ngroups, -1)), chunk_size, D,
        None if gate is None else gate.unflatten(-1, (heads, width)), dt_bias, initial_states, seq_idx, dt_softplus=True,
        dt_limit=dt_limit, return_final_states=return_final_states, state_dtype=state_dtype,
    )  # fmt: skip
    out, final = out if return_final_states else (out, None)
    out = out.flatten(-2)
    if rmsnorm_weight is not None:
        out = gated_norm(out, rmsnorm_weight, None, z, rmsnorm_eps, inner // ngroups, norm_before_gate, True)
    if mlp:
        a, b = up.chunk(2, -1)
        out = torch.cat((F.silu(a) * b, out), -1)
    if outproj_weight is not None:
        out = F.linear(out, outproj_weight, outproj_bias)
    return (out, final) if return_final_states else out


_MAMBA_1 = named(selective_scan_fn, mamba_inner_fn)
MODULES: dict[str, dict[str, Any]] = {
    "mamba_ssm": _MAMBA_1,
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.selective_scan_interface": _MAMBA_1,
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layer_norm": {
        "layer_norm_fn": mamba_layer_norm_fn, "rms_norm_fn": mamba_rms_norm_fn, "RMSNorm": MambaRMSNorm,
    },  # fmt: skip
    "mamba_ssm.ops.triton.layernorm_gated": named(layernorm_fn, rmsnorm_fn) | {"RMSNorm": GatedRMSNorm},
    "mamba_ssm.ops.triton.selective_state_update": named(selective_state_update),
    "mamba_ssm.ops.triton.ssd_combined": named(mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined),
}
