"""qkv.torch.scaled_dot_product_attention: PyTorch's documented behaviour, against PyTorch's math path in float64. Not: what
compiles or transforms it (test_torch_transforms.py), layers (test_torch_mha.py)."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from hypothesis import given, settings
from hypothesis import strategies as st
from support_torch import compare, leaf, numbers, theirs
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def both(arguments: list[Tensor | None], dtype: torch.dtype = torch.float32, **options: object) -> list[Tensor | None]:
    return compare(
        lambda *a: qt.scaled_dot_product_attention(*a, **options), lambda *a: theirs(*a, **options), arguments, dtype
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("scale", (None, 0.3, -0.5, 0.0))
def test_types_scales_and_causal(dtype: torch.dtype, causal: bool, scale: float | None) -> None:
    both([leaf(1, 2, 3, 5, 8), leaf(2, 2, 3, 7, 8), leaf(3, 2, 3, 7, 6)], dtype, is_causal=causal, scale=scale)


SHAPES = (
    ((5, 8), (7, 8), (7, 6)),
    ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 6)),
    ((2, 3, 5, 8), (1, 3, 7, 8), (3, 7, 6)),
    ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 6)),
    ((3, 5, 8), (2, 1, 7, 8), (1, 3, 7, 6)),
    ((2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    ((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 6)),
    ((2, 3, 5, 8), (2, 3, 1, 8), (2, 3, 1, 1)),
)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ("none", "keep", "float"))
def test_ranks_and_broadcasting(shapes: tuple[tuple[int, ...], ...], kind: str) -> None:
    mask = None
    if kind != "none":
        mask = leaf(4, shapes[0][-2], shapes[1][-2])
        mask = mask.detach() > -0.7 if kind == "keep" else mask
    both([leaf(1, *shapes[0]), leaf(2, *shapes[1]), leaf(3, *shapes[2]), mask])


@pytest.mark.parametrize(
    "shape", ((5, 7), (1, 7), (5, 1), (3, 5, 7), (3, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (1, 1, 1, 7), (2, 1, 1, 1)), ids=str
)
@pytest.mark.parametrize("kind", ("keep", "float", "infinite"))
def test_masks_of_any_rank(shape: tuple[int, ...], kind: str) -> None:
    mask = numbers(4, *shape)
    if kind == "keep":
        mask = mask > -0.5
    elif kind == "infinite":
        mask = mask.masked_fill(mask < -0.8, -torch.inf)
    else:
        mask.requires_grad_()
    both([leaf(1, 2, 3, 5, 8), leaf(2, 2, 3, 7, 8), leaf(3, 2, 3, 7, 6), mask])


def test_mask_over_two_batch_axes() -> None:
    q, k, v = leaf(1, 2, 2, 3, 5, 8), leaf(2, 2, 2, 3, 7, 8), leaf(3, 2, 2, 3, 7, 6)
    for shape in ((2, 1, 1, 5, 7), (2, 3, 1, 7), (2, 2, 3, 5, 7), (1, 1, 1, 5, 7)):
        both([q, k, v, leaf(4, *shape)])


@pytest.mark.parametrize("heads", ((4, 2, 2), (4, 1, 1), (4, 4, 4), (4, 2, 1)), ids=str)
@pytest.mark.parametrize("rank", (3, 4, 5))
def test_grouped_heads(heads: tuple[int, int, int], rank: int) -> None:
    lead = ((), (2,), (2, 2))[rank - 3]
    hq, hk, hv = heads
    both([leaf(1, *lead, hq, 5, 8), leaf(2, *lead, hk, 7, 8), leaf(3, *lead, hv, 7, 6), leaf(4, hq, 5, 7)], enable_gqa=True)


def test_rows_that_attend_nothing_are_zero() -> None:
    keep = torch.ones(5, 7, dtype=torch.bool)
    keep[2] = False
    arguments = [leaf(1, 2, 3, 5, 8), leaf(2, 2, 3, 7, 8), leaf(3, 2, 3, 7, 6)]
    out = both([*arguments, keep])[0]
    assert not out[:, :, 2].any()
    both([*arguments, torch.zeros(5, 7, dtype=torch.float64).masked_fill(~keep, -torch.inf)])
    # No keys at all.
    both([leaf(1, 2, 3, 5, 8), leaf(2, 2, 3, 0, 8), leaf(3, 2, 3, 0, 6)])


def test_nan_behind_a_mask_is_invisible() -> None:
    q, k, v = (numbers(n, 1, 2, 4, 8, dtype=torch.float32) for n in range(3))
    k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
    expected = qt.scaled_dot_product_attention(q, k[:, :, :3], v[:, :, :3])
    keep = torch.tensor([True, True, True, False])
    assert torch.equal(qt.scaled_dot_product_attention(q, k, v, attn_mask=keep), expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_mask_of_float32_for_16_bits(dtype: torch.dtype) -> None:
    q, k, v = (numbers(n, 2, 2, 5, 8, dtype=dtype) for n in range(3))
    mask = numbers(4, 5, 5, dtype=torch.float32).requires_grad_()
    out = qt.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.float().sum().backward()
    assert out.dtype is dtype and mask.grad is not None and mask.grad.dtype is torch.float32


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 3), q_len=st.integers(1, 20), kv_len=st.integers(1, 20), width=st.integers(1, 20),
    layout=st.sampled_from(("bhtd", "bthd", "packed", "bhdt", "stepped")), data=st.data(),
)  # fmt: skip
def test_any_shape_stride_and_mask(
    batch: int, heads: int, q_len: int, kv_len: int, width: int, layout: str, data: st.DataObject
) -> None:
    """Strides of every kind, masks that broadcast anywhere; results must be those of contiguous tensors in bits."""

    def laid_out(x: Tensor) -> Tensor:
        if layout == "bthd":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "packed":
            return torch.stack([x, x], 2)[:, :, 1]
        if layout == "bhdt":
            return x.transpose(2, 3).contiguous().transpose(2, 3)
        if layout == "stepped":
            return torch.stack([x, x], -1)[..., 0]
        return x

    q, k, v = (
        numbers(1, batch, heads, q_len, width),
        numbers(2, batch, heads, kv_len, width),
        numbers(3, batch, heads, kv_len, width),
    )
    full = (batch, heads, q_len, kv_len)
    shape = tuple(n if data.draw(st.booleans()) else 1 for n in full)[data.draw(st.integers(0, 2)) :]
    mask = numbers(4, *shape) > -0.5
    same = qt.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(full))
    assert torch.equal(qt.scaled_dot_product_attention(laid_out(q), laid_out(k), laid_out(v), attn_mask=mask), same)
    both([q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask])


def test_layout_of_the_result_is_the_querys() -> None:
    packed = numbers(1, 2, 7, 3, 4, 8, dtype=torch.float32)  # [B, T, 3, H, D]
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    out = qt.scaled_dot_product_attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()  # merging heads copies nothing


def test_dropout_repeats_with_the_seed_and_has_its_mean() -> None:
    q, k = numbers(1, 1, 2, 64, 8, dtype=torch.float32), numbers(2, 1, 2, 64, 8, dtype=torch.float32)
    v = torch.ones(1, 2, 64, 4)

    def call(seed: int, p: float) -> Tensor:
        torch.manual_seed(seed)
        return qt.scaled_dot_product_attention(q, k, v, dropout_p=p)

    assert torch.equal(call(1, 0.5), call(1, 0.5)) and not torch.equal(call(1, 0.5), call(2, 0.5))
    torch.manual_seed(1)
    first, second = (qt.scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    assert abs(first.mean() - 1) < 0.1
    assert not call(1, 1.0).any()
    with pytest.raises(ValueError):
        call(1, 1.5)


def test_dropout_is_the_documented_pattern() -> None:
    q, k, v = leaf(1, 2, 3, 5, 8), leaf(2, 2, 3, 7, 8), leaf(3, 2, 3, 7, 6)
    torch.manual_seed(5)
    seed = int(torch.randint(0, 2**63 - 1, (1,)))
    factors = torch.from_numpy(qkv.dropout_factors((2, 3, 5, 7), 0.3, seed))

    def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.softmax(q @ k.mT / 8**0.5, -1) * factors.to(q.dtype)) @ v

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return qt.scaled_dot_product_attention(q, k, v, dropout_p=0.3)

    compare(ours, textbook, [q, k, v])


def test_arguments_that_do_not_fit() -> None:
    q = numbers(1, 2, 3, 5, 8, dtype=torch.float32)
    sdpa = qt.scaled_dot_product_attention
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="exclude each other"):
            sdpa(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True)
        with pytest.raises(error, match="must broadcast"):
            sdpa(q, q, q, attn_mask=torch.ones(4, 5, dtype=torch.bool))
        with pytest.raises(error, match="last axis"):
            sdpa(q, q[..., :4], q)
        with pytest.raises(error, match="number of rows"):
            sdpa(q, q, q[:, :, :3])
        with pytest.raises(error, match="enable_gqa"):
            sdpa(torch.cat([q, q], 1), q, q)
        with pytest.raises(error, match="divide"):
            sdpa(q, q[:, :2], q[:, :2], enable_gqa=True)
        with pytest.raises(error, match="two axes"):
            sdpa(q[0, 0, 0], q, q)
        with pytest.raises(error, match="CPU"):
            sdpa(q.to("meta"), q, q)
    for error in (TypeError, RuntimeError):
        with pytest.raises(error, match="cast them"):
            sdpa(q, q.double(), q)
        with pytest.raises(error, match="float32"):
            sdpa(q.int(), q.int(), q.int())
        with pytest.raises(error, match="attn_mask must be bool"):
            sdpa(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.int32))


@pytest.mark.parametrize("causal, p", itertools.product((False, True), (0.0, 0.3)))
def test_first_and_second_derivatives(causal: bool, p: float) -> None:
    q, k, v = leaf(1, 1, 2, 3, 4), leaf(2, 1, 1, 3, 4), leaf(3, 1, 1, 3, 2)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return qt.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal, enable_gqa=True)

    assert torch.autograd.gradcheck(call, (q, k, v), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (q, k, v))


def test_derivatives_through_a_float_mask() -> None:
    inputs = (leaf(1, 2, 2, 3, 4), leaf(2, 2, 2, 3, 4), leaf(3, 2, 2, 3, 2), leaf(4, 2, 1, 1, 3))
    call = qt.scaled_dot_product_attention
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True) and torch.autograd.gradgradcheck(call, inputs)


def test_second_derivatives_of_16_bits() -> None:
    """By float32: against the float32 result on the same inputs."""

    def penalty(dtype: torch.dtype) -> Tensor:
        q, k, v = (numbers(n, 1, 2, 5, 8, dtype=dtype).requires_grad_() for n in range(3))
        out = qt.scaled_dot_product_attention(q, k, v)
        (dq,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
        return torch.autograd.grad(dq.float().square().sum(), k)[0].double()

    wide = penalty(torch.float32)
    assert (penalty(torch.bfloat16) - wide).abs().max() < 0.05 * wide.abs().max()
