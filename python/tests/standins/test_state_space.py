"""The stand-ins of causal_conv1d and mamba_ssm: layouts, sequences, states and steps against plain PyTorch. Their own tests run by
tests/peers/run.py."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from qkv import standins
from support_torch import compare, numbers
from torch import Tensor


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    standins.install("causal_conv1d", "mamba_ssm", quiet=True)
    yield
    standins.uninstall()


def near(a: Tensor, b: Tensor, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-11 if a.dtype is torch.float64 else 1e-5)


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1])[..., : x.shape[2]])


def test_convolutions_of_every_layout_sequence_and_step() -> None:
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

    x, weight, bias = numbers(1, 2, 5, 9), numbers(2, 5, 4), numbers(3, 5)
    wanted = convolved(x, weight, bias)
    inner = x.transpose(1, 2).contiguous().transpose(1, 2)
    for rows in (x, inner):
        near(causal_conv1d_fn(rows, weight, bias, activation="silu"), wanted)
        seq_idx = torch.tensor([[0] * 4 + [1] * 3 + [-1] * 2, [5] * 9], dtype=torch.int32)
        packed = causal_conv1d_fn(rows, weight, bias, seq_idx, activation="swish")
        near(packed[0, :, 4:7], convolved(x[:1, :, 4:7], weight, bias)[0])
        assert not packed[0, :, 7:].any()
        near(packed[1], wanted[1])
        first = torch.zeros(2, 5, 3, dtype=torch.float64).index_copy(0, torch.tensor([0]), numbers(4, 1, 5, 3))
        begun = causal_conv1d_fn(rows, weight, bias, seq_idx, first, activation="silu")
        assert torch.equal(begun[1:], packed[1:]) and torch.equal(begun[:1, :, 4:], packed[:1, :, 4:])
        near(begun[:1, :, :4], convolved(torch.cat((first[:1], x[:1, :, :4]), 2), weight, bias)[..., 3:])
        head, states = causal_conv1d_fn(rows[..., :5], weight, bias, return_final_states=True, activation="silu")
        near(head, wanted[..., :5])
        near(causal_conv1d_fn(rows[..., 5:], weight, bias, initial_states=states, activation="silu"), wanted[..., 5:])
    wanted = causal_conv1d_fn(inner, weight, bias, activation="silu")
    state = torch.zeros(4, 5, 6, dtype=torch.float64)
    ring, at = state.clone(), torch.tensor([2, 0])
    for t in range(9):
        assert torch.equal(causal_conv1d_update(x[..., t], state, weight, bias, "silu", conv_state_indices=at), wanted[..., t])
        used = torch.tensor([t, t], dtype=torch.int32)
        assert torch.equal(causal_conv1d_update(x[..., t : t + 1], ring, weight, bias, "silu", used, at)[..., 0], wanted[..., t])
    assert torch.equal(state[at], x[..., 3:]) and torch.equal(ring[at][..., [2, 1, 0]], x[..., [8, 7, 6]])
    long = torch.zeros(2, 5, 4, dtype=torch.float64)  # fewer slots than tokens: the last stay
    assert torch.equal(causal_conv1d_update(x, long, weight, bias, "silu", torch.tensor([0, 2])), wanted)
    assert torch.equal(long[0], x[0][..., [8, 5, 6, 7]]) and torch.equal(long[1], x[1][..., [6, 7, 8, 5]])
    none = causal_conv1d_update(x[..., 0], state, weight, bias, "silu", conv_state_indices=torch.tensor([-1, 2]))
    assert not none[0].any() and none[1].any()
    made = causal_conv1d_varlen_states(x[0].T, torch.tensor([0, 2, 9]), 3)
    assert torch.equal(made[1], x[0, :, 6:9]) and torch.equal(made[0], F.pad(x[0, :, :2], (1, 0)))


def scanned(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """u, dt [B, D, T], B, C [B, D, N, T]."""
    state, outs = A.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        state = torch.exp(dt[..., t, None] * A) * state + (dt * u)[..., t, None] * B[..., t]
        outs.append((state * C[..., t]).sum(-1))
    return torch.stack(outs, -1) + D[:, None] * u, state


def test_mamba_1_of_every_shape_of_b_and_c_and_its_steps() -> None:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    u, delta, z = numbers(1, 2, 6, 7), numbers(2, 2, 6, 7), numbers(3, 2, 6, 7)
    A, D, bias = -numbers(4, 6, 3).abs(), numbers(5, 6), numbers(6, 6)
    dt = F.softplus(delta + bias[:, None])
    shapes = {(6, 3): (1, 6, 3, 1), (2, 3, 7): (2, 1, 3, 7), (2, 2, 3, 7): (2, 2, 3, 7)}
    for b_shape in shapes:
        for c_shape in shapes:
            B, C = numbers(7, *b_shape), numbers(8, *c_shape)
            whole = [x.view(s).repeat_interleave(6 // s[1], 1).expand(2, 6, 3, 7) for x, s in ((B, shapes[b_shape]), (C, shapes[c_shape]))]
            wanted, last = scanned(u, dt, A, *whole, D)
            out, state = selective_scan_fn(u, delta, A, B, C, D, z, bias, True, True)
            near(out, wanted * F.silu(z))
            near(state, last)
    steps, before = torch.zeros(4, 6, 3, dtype=torch.float64), torch.tensor([3, 1])
    B, C = numbers(7, 2, 3, 7), numbers(8, 2, 3, 7)
    out, state = selective_scan_fn(u, delta, A, B, C, D, z, bias, True, return_last_state=True)
    for t in range(7):
        token = [x[..., t] for x in (u, delta, B, C, z)]
        made = selective_state_update(steps, *token[:2], A, *token[2:4], D, token[4], bias, True, before)
        near(made, out[..., t])
    near(steps[before], state)
    real = selective_scan_fn(u.float(), dt.float(), A.to(torch.complex64), *(torch.stack((x, 0 * x), -1).flatten(-2).float() for x in (B, C)))
    near(real, 2 * scanned(u, dt, A, *(x[:, None].expand(2, 6, 3, 7) for x in (B, C)), 0 * D)[0].float(), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("one_decay,gated", [(True, False), (True, True), (False, True)])
def test_steps_of_heads_are_the_recurrence(dtype: torch.dtype, one_decay: bool, gated: bool) -> None:
    """Mamba-2's, one decay a head, and channels with their own dt; B and C of two groups; a state of the type itself."""
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    x, z, state, dt = numbers(1, 2, 4, 5), numbers(2, 2, 4, 5), numbers(3, 2, 4, 5, 7), numbers(4, 2, 4, 1 if one_decay else 5)
    A, D, bias, B, C = -numbers(5, 4, 1, 1).abs(), numbers(6, 4, 1), numbers(7, 4, 1), numbers(8, 2, 2, 7), numbers(9, 2, 2, 7)

    def ours(x: Tensor, z: Tensor, state: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        shared = A.expand(4, 5, 7), B, C, D.expand(4, 5), z if gated else None, bias.expand(4, 5)
        out = selective_state_update(state, x, dt.expand(2, 4, 5), *shared, dt_softplus=True)
        return out, state

    def theirs(x: Tensor, z: Tensor, state: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        dt, (B, C) = F.softplus(dt + bias)[..., None], (y.repeat_interleave(2, 1)[:, :, None] for y in (B, C))
        after = state * (dt * A).exp() + dt * x[..., None] * B
        out = (after * C).sum(-1) + D * x
        return out * F.silu(z) if gated else out, after

    compare(ours, theirs, (x, z, state, dt, A, B, C, D, bias), dtype)


def test_mamba_2_of_packs_is_each_sequence_alone() -> None:
    from mamba_ssm.ops.triton.layernorm_gated import RMSNorm, rmsnorm_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined

    x, dt, A, D = numbers(1, 2, 8, 4, 3), numbers(2, 2, 8, 4), -numbers(3, 4).abs(), numbers(4, 4)
    B, C, bias, first = numbers(5, 2, 8, 2, 5), numbers(6, 2, 8, 2, 5), numbers(7, 4), numbers(8, 2, 4, 3, 5)
    options = {"D": D, "z": numbers(9, *x.shape), "dt_bias": bias, "dt_softplus": True, "dt_limit": (0.1, 0.9)}

    def alone(row: int, begin: int, end: int, state: Tensor | None) -> tuple[Tensor, Tensor]:
        part = [t[row : row + 1, begin:end] for t in (x, dt, B, C, options["z"])]
        more = {**options, "z": part[4], "initial_states": state, "return_final_states": True}
        return mamba_chunk_scan_combined(*part[:2], A, *part[2:4], 4, **more)

    wide = [t.repeat_interleave(6, 2).permute(0, 2, 3, 1) for t in (B, C)]
    steps = F.softplus(dt + bias).clamp(0.1, 0.9).repeat_interleave(3, 2).transpose(1, 2)
    wanted, _ = scanned(x.flatten(2).transpose(1, 2), steps, A.repeat_interleave(3)[:, None].expand(12, 5), *wide, D.repeat_interleave(3))
    out = mamba_chunk_scan_combined(x, dt, A, B, C, 4, **options)
    near(out, wanted.transpose(1, 2).view(x.shape) * F.silu(options["z"]))
    seq_idx = torch.tensor([[0] * 3 + [1] * 5, [2] * 8], dtype=torch.int32)
    packed, final = mamba_chunk_scan_combined(x, dt, A, B, C, 4, **options, initial_states=first, seq_idx=seq_idx, return_final_states=True)
    for row, begin, end, state in ((0, 0, 3, first[:1]), (0, 3, 8, None), (1, 0, 8, first[1:])):
        each, last = alone(row, begin, end, state)
        near(packed[row, begin:end], each[0])
        if end == 8:
            near(final[row], last[0])
    options["z"] = options["z"][:1]
    rest = {"cu_seqlens": torch.tensor([0, 3, 8]), "seq_idx": seq_idx[:1], "return_varlen_states": True}
    _, states = mamba_chunk_scan_combined(x[:1], dt[:1], A, B[:1], C[:1], 4, **options, **rest)
    near(states, torch.cat([alone(0, 0, 3, None)[1], alone(0, 3, 8, None)[1]]))
    for more in ({}, {"seq_idx": seq_idx[:1]}):  # sequences without tokens
        given = {**options, "cu_seqlens": torch.tensor([0, 0, 3, 8, 8]), "initial_states": first[:1], "return_final_states": True, **more}
        part, final, states = mamba_chunk_scan_combined(x[:1], dt[:1], A, B[:1], C[:1], 4, **given, return_varlen_states=True)
        near(part[:, :3], alone(0, 0, 3, first[:1])[0])
        near(final, alone(0, 3, 8, None)[1])
        assert torch.equal(final[0], states[2]) and not states[0].any() and not states[3].any()
    none = mamba_chunk_scan_combined(x[:, :0], dt[:, :0], A, B[:, :0], C[:, :0], 4, seq_idx=seq_idx[:, :0], return_final_states=True)
    assert none[0].shape == (2, 0, 4, 3) and none[1].shape == first.shape and not none[1].any()
    parts = torch.cat([alone(0, 0, 3, None)[0], alone(0, 3, 8, None)[0]], 1)
    near(mamba_chunk_scan_combined(x[:1], dt[:1], A, B[:1], C[:1], 4, **options, cu_seqlens=torch.tensor([0, 3, 3, 8])), parts)
    for cut in ({"cu_seqlens": torch.tensor([0, 4, 8]), "seq_idx": seq_idx[:1]}, {"cu_seqlens": torch.tensor([0, 8])}):
        rows = 1 if "seq_idx" in cut else 2
        with pytest.raises(ValueError, match="cu_seqlens"):
            mamba_chunk_scan_combined(x[:rows], dt[:rows], A, B[:rows], C[:rows], 4, **cut)

    zxbcdt, weight, norm = numbers(10, 1, 8, 2 * 7 + 2 * 12 + 20 + 4), numbers(11, 32, 4), numbers(12, 12)
    up, z, xBC, step = zxbcdt.split((14, 12, 32, 4), -1)
    xs, Bs, Cs = convolved(xBC.transpose(1, 2), weight, numbers(13, 32)).transpose(1, 2).split((12, 10, 10), -1)
    inner = mamba_chunk_scan_combined(
        xs.unflatten(-1, (4, 3)), step, A, Bs.unflatten(-1, (2, 5)), Cs.unflatten(-1, (2, 5)), 4, D, dt_bias=bias, dt_softplus=True
    ).flatten(2)
    groups = (inner * F.silu(z)).unflatten(-1, (2, 6))
    normed = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + 1e-6)).flatten(2) * norm
    near(rmsnorm_fn(inner, norm, None, z, 1e-6, 6, False), normed)
    assert torch.equal(RMSNorm(12, norm_before_gate=False).double()(inner, z), rmsnorm_fn(inner, torch.ones(12), None, z, 1e-5, None, False))
    wanted = torch.cat((F.silu(up[..., :7]) * up[..., 7:], normed), -1)
    project = numbers(14, 3, 19)
    given = {"rmsnorm_weight": norm, "headdim": 3, "ngroups": 2, "norm_before_gate": False, "outproj_weight": project}
    near(mamba_split_conv1d_scan_combined(zxbcdt, weight, numbers(13, 32), bias, A, D, 4, **given), wanted @ project.T)


@pytest.mark.parametrize("given,text", [
    ({"x": torch.ones(2, 3, 5).long()}, "x must hold real"), ({"weight": torch.ones(3, 4) + 0j}, "weight must hold real"),
    ({"initial_states": torch.ones(2, 3, 2)}, "initial_states must be"), ({"bias": torch.ones(1)}, "bias must be"),
    ({"initial_states": torch.ones(2, 1, 3), "seq_idx": torch.zeros(2, 5).int()}, "initial_states must be"),
])  # fmt: skip
def test_a_convolution_refuses_other_types_and_shapes(given: dict[str, Any], text: str) -> None:
    from causal_conv1d import causal_conv1d_fn

    with pytest.raises((ValueError, TypeError), match=text):
        causal_conv1d_fn(**{"x": torch.ones(2, 3, 5), "weight": torch.ones(3, 4), **given})


def test_a_convolution_of_16_bits_is_rounded_once() -> None:
    from causal_conv1d import causal_conv1d_fn

    x, weight, bias = 4 * numbers(1, 2, 3, 9), numbers(2, 3, 4), 100 * numbers(3, 3)
    wanted = convolved(x, weight, bias).bfloat16()
    for inner in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        torch.testing.assert_close(causal_conv1d_fn(inner.bfloat16(), weight.bfloat16(), bias.float(), activation="silu"), wanted, rtol=2**-8, atol=0)
    more = {"seq_idx": torch.zeros(2, 9).int(), "initial_states": torch.zeros(2, 3, 3)}
    assert causal_conv1d_fn(x.bfloat16(), weight, **more).dtype is torch.bfloat16


def test_mamba_2_keeps_dt_in_its_limit_and_mamba_1_has_none() -> None:
    from mamba_ssm import selective_scan_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, dt, A, B, C = numbers(1, 1, 8, 4, 3), numbers(2, 1, 8, 4), -numbers(3, 4).abs(), numbers(5, 1, 8, 2, 5), numbers(6, 1, 8, 2, 5)
    assert bool((dt < 0).any())
    assert torch.equal(mamba_chunk_scan_combined(x, dt, A, B, C, 4), mamba_chunk_scan_combined(x, dt.clamp(min=0), A, B, C, 4))
    u, dt, A, B = numbers(1, 1, 4, 8), numbers(2, 1, 4, 8), -numbers(3, 4, 5).abs(), numbers(5, 4, 5)
    assert not torch.equal(selective_scan_fn(u, dt, A, B, B), selective_scan_fn(u, dt.clamp(min=0), A, B, B))


def test_a_state_is_as_it_was_where_a_step_is_refused() -> None:
    from causal_conv1d import causal_conv1d_update
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    def refused(call: Any, state: Tensor, *arguments: Any, **options: Any) -> None:
        before = state.clone()
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            call(*arguments, **options)
        assert torch.equal(state, before)

    state, weight, x = numbers(1, 2, 6, 3), numbers(2, 6, 4), numbers(3, 2, 6)
    refused(causal_conv1d_update, state, x, state, weight[:5])
    refused(causal_conv1d_update, state, x, state, weight, numbers(4, 5))
    refused(causal_conv1d_update, state[..., :2], x, state[..., :2], weight)
    at = {"cache_seqlens": torch.tensor([0, 1])}
    refused(causal_conv1d_update, state[..., :2], x, state[..., :2], weight, **at)
    refused(causal_conv1d_update, state, x, state, weight, cache_seqlens=torch.tensor([1.9, 0]))
    refused(causal_conv1d_update, state, x, state, weight, conv_state_indices=torch.tensor([2, 0]))
    refused(causal_conv1d_update, state[:1], x, state[:1], weight, **at)
    refused(causal_conv1d_update, state[:, :1], x, state[:, :1], weight, **at)
    refused(causal_conv1d_update, whole := (9 * state).long(), x, whole, weight)
    refused(causal_conv1d_update, state, x.long(), state, weight)
    x, A, B = numbers(1, 2, 4, 3), -numbers(2, 4).abs()[:, None, None].expand(4, 3, 5), numbers(3, 2, 2, 5)
    state, dt = numbers(4, 2, 4, 3, 5), numbers(5, 2, 4)[..., None].expand(2, 4, 3)
    refused(selective_state_update, state, state, x, dt, A, B, B, z=numbers(6, 2, 4, 1))
    refused(selective_state_update, state, state, x, dt, A, B, B, D=numbers(6, 3))
    for rows in ([-1, 0], [0, 2], [1.7, 0], [0]):
        refused(selective_state_update, state, state, x, dt, A, B, B, state_batch_indices=torch.tensor(rows))
    refused(selective_state_update, twice := torch.cat((state, state)), twice, x, dt, A, B, B)
    refused(selective_state_update, state[:, 0], state[:, 0], x[:, 0], dt[:, 0], A[0], B[:, 0], B[:, 0], z=numbers(6, 3, 3))


def test_what_is_not_computed_is_named() -> None:
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm import selective_scan_fn

    x, weight, idx = numbers(1, 1, 2, 3), numbers(2, 2, 4), torch.zeros(1, 3, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"\[causal_conv1d of qkv.standins\].*return_final_states"):
        causal_conv1d_fn(x, weight, seq_idx=idx, return_final_states=True)
    with pytest.raises(NotImplementedError, match="activation.*'gelu'"):
        causal_conv1d_fn(x, weight, activation="gelu")
    with pytest.raises(NotImplementedError, match="mamba_ssm.*u on meta"):
        selective_scan_fn(x.to("meta"), x, x[0], x, x)
    with pytest.raises(ModuleNotFoundError, match="mamba_ssm.modules"):
        import mamba_ssm.modules.mamba2  # noqa: F401


def test_shapes_and_types_are_refused_before_a_state_changes() -> None:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    state = numbers(1, 2, 3, 4, 5)
    given: dict[str, Any] = {
        "x": numbers(2, 2, 3, 4), "dt": numbers(3, 2, 3, 1).expand(2, 3, 4), "A": numbers(4, 3, 1, 1).expand(3, 4, 5), "B": numbers(5, 2, 1, 5),
        "C": numbers(6, 2, 1, 5),
    }  # fmt: skip
    wrong = {"A": given["A"][:1], "dt": given["dt"][..., :1], "dt_bias": numbers(7, 1, 4), "D": numbers(7, 3, 4) + 0j, "z": torch.ones(2, 3, 4).int()}
    for name, tensor in wrong.items():
        kept = state.clone()
        with pytest.raises((ValueError, TypeError), match=name):
            selective_state_update(kept, **(given | {name: tensor}))
        assert torch.equal(kept, state)
    rows = numbers(1, 2, 6, 3, 4), numbers(2, 2, 6, 3), numbers(3, 3), numbers(4, 2, 6, 1, 5), numbers(5, 2, 6, 1, 5)
    for n, name in ((1, "dt"), (2, "A")):
        with pytest.raises(ValueError, match=name):
            mamba_chunk_scan_combined(*rows[:n], rows[n][..., :1], *rows[n + 1 :], 4)
    for name, tensor in (("initial_states", state[:1]), ("initial_states", state + 0j), ("seq_idx", torch.zeros(2, 6)), ("seq_idx", torch.zeros(1, 6).int())):
        with pytest.raises((ValueError, TypeError), match=rf"mamba_chunk_scan_combined\W+{name} must"):
            mamba_chunk_scan_combined(*rows, 4, **{name: tensor})


@pytest.mark.parametrize("name,shape,text", [
    ("z", (2, 1, 5), "z must be"), ("delta_bias", (1,), "delta_bias must be"), ("D", (1,), "D must be"), ("delta", (2, 1, 5), "delta must be"),
    ("A", (1, 3), "A must be"), ("B", (1, 3, 10), "B must be"), ("D", (4,), "D must hold real"), ("z", (2, 4, 5), "z must hold real"),
])  # fmt: skip
@pytest.mark.parametrize("real", [True, False])
def test_a_selective_scan_refuses_other_shapes_and_types(name: str, shape: tuple[int, ...], text: str, real: bool) -> None:
    from mamba_ssm import selective_scan_fn

    tokens = numbers(1, 2, 4, 5)
    given = {"u": tokens, "delta": tokens, "A": -numbers(2, 4, 3).abs(), "B": numbers(3, 2, 3, 5 if real else 10)}
    given |= {"C": given["B"]} | ({} if real else {"A": given["A"] + 0j})
    selective_scan_fn(**given)
    with pytest.raises((ValueError, TypeError), match=rf"selective_scan_fn\W+{text}"):
        selective_scan_fn(**given | {name: numbers(4, *shape) + (0j if "real" in text else 0)})


def test_gates_projections_and_taps_of_other_shapes_are_refused() -> None:
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

    x, w = numbers(1, 2, 5, 8), numbers(2, 8)
    for given, text in (({"z": x[:1]}, "z must be"), ({"weight": w[:1]}, "weight must be"), ({"z": x.long()}, "z must hold real")):
        with pytest.raises((ValueError, TypeError), match=rf"rmsnorm_fn\W+{text}"):
            rmsnorm_fn(**{"x": x, "weight": w, "bias": None, **given})
    with pytest.raises(ValueError, match="an even rest: got.*25"):
        mamba_split_conv1d_scan_combined(numbers(1, 1, 4, 25), numbers(2, 14, 3), None, numbers(3, 2), -numbers(4, 2).abs(), numbers(5, 2), 8, headdim=3)
    rest = numbers(4, 4, 2), numbers(5, 6, 4), None, -numbers(6, 4, 3).abs()
    for xz, taps, project in (((1, 8, 5), (4, 2, 3), (8, 4)), ((1, 9, 5), (4, 1, 3), (8, 4)), ((1, 8, 5), (4, 1, 3), (6, 4))):
        with pytest.raises(ValueError, match="mamba_inner_fn"):
            mamba_inner_fn(numbers(1, *xz), numbers(2, *taps), None, numbers(3, *project), *rest)


def test_views_that_are_negated_are_read_so() -> None:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    given: dict[str, Any] = {"x": numbers(2, 2, 4), "dt": numbers(3, 2, 4), "A": numbers(4, 4, 5), "B": numbers(5, 2, 5), "C": numbers(6, 2, 5)}
    state = numbers(1, 2, 4, 5)
    wanted = selective_state_update(after := state.clone(), **given)
    for name in ("state", "B", "C"):
        tensors = {"state": state, **given}
        negated = torch.complex(torch.zeros_like(tensors[name]), -tensors[name]).conj().imag
        assert negated.is_neg() and torch.equal(negated, tensors[name])
        tensors = {name: x.clone() for name, x in tensors.items()} | {name: negated}
        near(selective_state_update(tensors.pop("state"), **tensors), wanted)
        near(negated if name == "state" else after, after)


def test_infinity_reaches_no_other_sequence() -> None:
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

    x = numbers(1, 5, 3)
    x[1] = torch.inf
    states = causal_conv1d_varlen_states(x, torch.tensor([0, 2, 5]), 4)
    assert torch.equal(states[1], torch.cat((torch.zeros(1, 3, dtype=x.dtype), x[2:])).T)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_16_bits_under_any_default_type(default: torch.dtype) -> None:
    import qkv.torch as qt

    rows = [numbers(n, 1, 4, 2, 8, dtype=torch.float32).bfloat16() for n in range(3)]
    of_tokens = [-numbers(n, 1, 4, 2, dtype=torch.float32).abs().bfloat16() for n in (4, 5)]
    wanted = qt.chunk_gated_delta_rule(*rows, *of_tokens)[0]
    vars(qt._linear_calls._kept).clear()  # memory that a thread keeps
    torch.set_default_dtype(default)
    try:
        assert torch.equal(qt.chunk_gated_delta_rule(*rows, *of_tokens)[0], wanted)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(qt.chunk_gated_delta_rule(*rows, *of_tokens)[0], wanted)
