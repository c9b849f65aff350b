"""qkv.torch's gated delta rule and Kimi Delta Attention: values and gradients against a textbook recurrence in float64, packed sequences bit for bit, tracing,
errors. Not: models (bridges/test_transformers_linear.py), the kernels' own cases (tests/linear).
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv.torch
from support_torch import compare, delta_rule, numbers
from torch import Tensor
from torch.autograd import forward_ad

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LENGTHS = [1, 63, 64, 65, 200]


RULES = {
    False: (qkv.torch.chunk_gated_delta_rule, qkv.torch.fused_recurrent_gated_delta_rule),
    True: (qkv.torch.chunk_kimi_delta_attention, qkv.torch.recurrent_kimi_delta_attention),
}
channels = pytest.mark.parametrize("channels", [False, True])


def problem(
    seed: int, batch: int, length: int, heads: int, v_heads: int, width: int, v_width: int, channels: bool = False
) -> list[Tensor]:
    """q, k, v, g (of each channel if asked for), beta, state; keys of a length at which the rule without normalisation is stable."""
    shape = (batch, length, v_heads, *([width] if channels else []))
    made = [
        numbers(seed, batch, length, heads, width),
        numbers(seed + 1, batch, length, heads, width) / (4 * width**0.5),
        numbers(seed + 2, batch, length, v_heads, v_width),
        -numbers(seed + 3, *shape).abs(),
        numbers(seed + 4, batch, length, v_heads).abs().clamp(max=1),
        numbers(seed + 5, batch, v_heads, width, v_width),
    ]
    return [x.half().bfloat16().double().requires_grad_() for x in made]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 5, 130])
@pytest.mark.parametrize("group,unit,state", [(1, True, False), (3, True, True), (2, False, True)])
@channels
def test_values_and_gradients_are_the_recurrences(
    dtype: torch.dtype, length: int, group: int, unit: bool, state: bool, channels: bool
) -> None:
    arguments = problem(7, 2, length, 2, 2 * group, 9, 7, channels)
    scale = None if unit else 0.3

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> Any:
        rule = RULES[channels][length == 1]
        out, final = rule(
            q, k, v, g=g, beta=beta, scale=scale, initial_state=s if state else None, output_final_state=True,
            use_qk_l2norm_in_kernel=unit,
        )  # fmt: skip
        assert out.dtype is q.dtype and out.shape == v.shape
        return out.to(final.dtype), final

    def theirs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> Any:
        out, final = delta_rule(q, k, v, g, beta, s if state else None, scale, unit)
        return out.to(q.dtype).to(final.dtype), final

    compare(ours, theirs, arguments, dtype)


def run(tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """out, final state, and the gradients of a fixed sum of both."""
    rule, _ = RULES[tensors[3].dim() == 4]
    out, final = rule(*tensors[:5], initial_state=tensors[5], output_final_state=True, **options)
    grads = torch.autograd.grad(out.double().sum() + final.square().sum(), tensors)
    return [out, final, *grads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@channels
def test_a_packed_sequence_has_the_bits_that_it_has_alone(dtype: torch.dtype, channels: bool) -> None:
    pack = [x.detach().to(dtype) for x in problem(3, 1, sum(LENGTHS), 2, 4, 16, 8, channels)]
    pack[5] = numbers(9, len(LENGTHS), 4, 16, 8, dtype=torch.float32)
    pack = [x.requires_grad_() for x in pack]
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    whole = run(pack, cu_seqlens=offsets.int(), use_qk_l2norm_in_kernel=True)
    for n, (begin, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:])):
        alone = [x.detach()[:, begin:end].clone().requires_grad_() for x in pack[:5]]
        alone.append(pack[5].detach()[n : n + 1].clone().requires_grad_())
        for place, x in enumerate(run(alone, use_qk_l2norm_in_kernel=True)):
            of_state = place in (1, 7)
            assert torch.equal(x, whole[place][n : n + 1] if of_state else whole[place][:, begin:end]), (n, place)


@pytest.mark.parametrize("length", [1, 3, 40])
def test_a_strong_decay_of_channels_overflows_nowhere(length: int) -> None:
    """-20 a token, beside channels that keep everything: exp(-G) of a chunk would be 1e139 after 16 tokens."""
    arguments = problem(7, 1, length, 2, 2, 12, 8, True)
    strong = torch.where(torch.arange(12) % 3 == 0, 0.0, -20.0).double()
    arguments[3] = strong.expand(1, length, 2, 12).clone().requires_grad_()

    def ours(*tensors: Tensor) -> Any:
        out, final = qkv.torch.chunk_kimi_delta_attention(
            *tensors[:5], initial_state=tensors[5], output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        return out.to(final.dtype), final

    for x in compare(ours, lambda *tensors: delta_rule(*tensors, None, True), arguments):
        assert x is None or x.isfinite().all()


def test_channels_lie_in_memory_of_any_order() -> None:
    q, k, v, g, beta, _ = (x.detach().float() for x in problem(5, 2, 70, 2, 4, 16, 16, True))
    out, _ = qkv.torch.chunk_kimi_delta_attention(q, k, v, g, beta)
    turned = g.transpose(1, 3).contiguous().transpose(1, 3)
    assert turned.stride(-1) != 1
    assert torch.equal(qkv.torch.chunk_kimi_delta_attention(q, k, v, turned, beta)[0], out)
    assert torch.equal(qkv.torch.chunk_kimi_delta_attention(q, k, v, g.half().float(), beta)[0], out)
    assert torch.equal(qkv.torch.chunk_kimi_delta_attention(q, k, v, g.half(), beta)[0], out)


def test_strides_are_read_and_a_step_goes_on_from_a_prefix() -> None:
    q, k, v, g, beta, _ = (x.detach().float() for x in problem(5, 2, 70, 2, 4, 16, 16))
    mixed = torch.cat([x.flatten(2) for x in (q, k, v)], -1).transpose(1, 2).contiguous().transpose(1, 2)
    views = [x.unflatten(-1, (-1, 16)) for x in mixed.split([32, 32, 64], -1)]
    assert views[0].stride(-1) != 1
    out, final = qkv.torch.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    again, _ = qkv.torch.chunk_gated_delta_rule(*views, g, beta)
    assert torch.equal(out, again)
    rows = torch.cat([x.flatten(2) for x in (q, k, v)], -1)
    views = [x.unflatten(-1, (-1, 16)) for x in rows.split([32, 32, 64], -1)]
    assert torch.equal(out, qkv.torch.chunk_gated_delta_rule(*views, g, beta)[0])
    first, state = qkv.torch.chunk_gated_delta_rule(
        *(x[:, :69] for x in (q, k, v, g, beta)), output_final_state=True
    )  # fmt: skip
    last, end = qkv.torch.fused_recurrent_gated_delta_rule(
        *(x[:, 69:] for x in (q, k, v, g, beta)), initial_state=state, output_final_state=True
    )
    assert torch.allclose(torch.cat([first, last], 1), out, atol=1e-5) and torch.allclose(end, final, atol=1e-5)


@channels
def test_traced_it_is_one_operator_with_the_same_bits(channels: bool) -> None:
    tensors = [x.detach().float().requires_grad_() for x in problem(11, 1, 70, 2, 4, 8, 8, channels)]
    offsets = torch.tensor([0, 3, 70])
    tensors[5] = numbers(2, 2, 4, 8, 8, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(run_packed, fullgraph=True, backend="aot_eager")
    for traced, eager in zip(compiled(tensors, offsets), run_packed(tensors, offsets)):
        assert torch.equal(traced, eager)
        of_both = [torch.autograd.grad(x.sum(), tensors, retain_graph=True) for x in (traced, eager)]
        assert all(torch.equal(a, b) for a, b in zip(*of_both))
    arguments = (*(x.detach().requires_grad_() for x in tensors), offsets, 0.5, True)
    torch.library.opcheck(torch.ops.qkv.linear_scan.default, arguments)


def run_packed(tensors: list[Tensor], offsets: Tensor) -> Any:
    rule, _ = RULES[tensors[3].dim() == 4]
    return rule(
        *tensors[:5], initial_state=tensors[5], output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=offsets
    )


def test_errors_say_what_was_expected() -> None:
    q, k, v, g, beta, state = (x.detach() for x in problem(1, 2, 4, 2, 4, 8, 8))
    rule = qkv.torch.chunk_gated_delta_rule
    with pytest.raises(TypeError, match="gk is not computed here"):
        qkv.torch.fused_recurrent_gated_delta_rule(q, k, v, g, beta, gk=q)
    rule(q, k, v, g, beta, gk=None, head_first=False, position_ids=g, chunk_size=64)  # ask for nothing else
    with pytest.raises(TypeError, match=r"beta must be a tensor \[B, T, Hv\]: got None"):
        qkv.torch.fused_recurrent_gated_delta_rule(q, k, v, g, None)
    one = [x[:1] for x in (q, k, v, g, beta)]
    cuts = torch.tensor([0, 1, 4])
    assert torch.equal(rule(*one, cu_seq_lens_q=cuts)[0], rule(*one, cu_seqlens=cuts)[0])  # transformers' name of it
    with pytest.raises(TypeError, match="use_gate_in_kernel is not computed here"):
        qkv.torch.chunk_kimi_delta_attention(q, k, v, g, beta, use_gate_in_kernel=True)
    with pytest.raises(qkv.torch.ArgumentError, match=r"g must be \[B, T, Hv, K\] = \[2, 4, 4, 8\]: got \[2, 4, 4\]"):
        qkv.torch.recurrent_kimi_delta_attention(q, k, v, g, beta)
    with pytest.raises(TypeError, match="float32, k float64"):
        rule(q.float(), k, v, g, beta)
    with pytest.raises(qkv.torch.ArgumentError, match=r"multiple.*\[2, 4, 3, 8\]"):
        rule(q, k, v[:, :, :3], g, beta)
    with pytest.raises(qkv.torch.ArgumentError, match=r"g must be \[B, T, Hv\] = \[2, 4, 4\]: got \[2, 4, 2\]"):
        rule(q, k, v, g[..., :2], beta)
    with pytest.raises(qkv.torch.ArgumentError, match=r"initial_state must be .*\[2, 4, 8, 8\]: got \[1, 4, 8, 8\]"):
        rule(q, k, v, g, beta, initial_state=state[:1])
    with pytest.raises(qkv.torch.ArgumentError, match="B = 1"):
        rule(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(qkv.torch.ArgumentError, match=r"end with T = 4: got \[0, 5\]"):
        rule(*(x[:1] for x in (q, k, v, g, beta)), cu_seqlens=torch.tensor([0, 5]))
    for wrong in (torch.tensor(4), torch.tensor([0.0, 4.0])):
        with pytest.raises(qkv.torch.ArgumentError, match=r"cu_seqlens must be \[N \+ 1\] of int32 or int64"):
            rule(*(x[:1] for x in (q, k, v, g, beta)), cu_seqlens=wrong)


@channels
def test_under_torch_func(channels: bool) -> None:
    """grad and vmap are autograd's, to the bit; forward mode and gradients of gradients say that they are not computed."""
    tensors = [x.detach().float() for x in problem(11, 1, 70, 2, 4, 8, 8, channels)]
    rule, _ = RULES[channels]

    def loss(*tensors: Tensor) -> Tensor:
        out, final = rule(*tensors[:5], initial_state=tensors[5], output_final_state=True)
        return out.sum() + final.square().sum()

    leaves = [x.clone().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    every = tuple(range(6))
    assert all(map(torch.equal, torch.func.grad(loss, every)(*tensors), expected))
    several = [torch.stack([x, x.flip(1)]) for x in tensors[:3]]
    each = torch.vmap(torch.func.grad(loss, every), (0, 0, 0, None, None, None))(*several, *tensors[3:])
    for n in range(2):
        alone = torch.func.grad(loss, every)(*(x[n] for x in several), *tensors[3:])
        assert all(torch.equal(x[n], y) for x, y in zip(each, alone))
    with pytest.raises(NotImplementedError, match="differentiated once, in reverse mode"):
        torch.func.jvp(lambda q: loss(q, *tensors[1:]), (tensors[0],), (tensors[1],))
    with pytest.raises(NotImplementedError, match="differentiated once, in reverse mode"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, *tensors[1:]).sum())(tensors[0])
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="differentiated once, in reverse mode"):
        loss(forward_ad.make_dual(tensors[0], tensors[1]), *tensors[1:])


def test_autocast_casts_what_differs() -> None:
    q, k, v, g, beta, _ = (x.detach().float() for x in problem(11, 1, 70, 2, 4, 8, 8))
    rule = qkv.torch.chunk_gated_delta_rule
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rule(q, k, v, g, beta)[0], rule(q.clone(), k, v, g, beta)[0])
        mixed, _ = rule(q, k, v.bfloat16(), g, beta)
    assert torch.equal(mixed, rule(q.bfloat16(), k.bfloat16(), v.bfloat16(), g, beta)[0])
    with pytest.raises(TypeError, match="one element type"):
        rule(q, k, v.bfloat16(), g, beta)
