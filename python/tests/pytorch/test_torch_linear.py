"""qkv.torch's gated delta rule and Kimi Delta Attention: values and gradients against a textbook recurrence in float64, packed sequences bit for bit,
strides."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv.torch
from operators import RULES, delta_inputs
from support_torch import compare, delta_rule, numbers
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LENGTHS = [1, 63, 64, 65, 200]
channels = pytest.mark.parametrize("channels", [False, True])


def problem(seed: int, batch: int, length: int, heads: int, v_heads: int, width: int, v_width: int, channels: bool = False) -> list[Tensor]:
    return delta_inputs(batch, length, heads, v_heads, width, v_width, channels, seed)


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
        for n_th, x in enumerate(run(alone, use_qk_l2norm_in_kernel=True)):
            of_state = n_th in (1, 7)
            assert torch.equal(x, whole[n_th][n : n + 1] if of_state else whole[n_th][:, begin:end]), (n, n_th)


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
