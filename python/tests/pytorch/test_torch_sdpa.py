"""qkv.torch.scaled_dot_product_attention: shapes, masks, layouts, types and dropout as PyTorch documents and tests them (its test_transformers.py,
TestSDPA and TestSDPACpuOnly), against PyTorch's math path in float64."""

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from hypothesis import given, settings
from hypothesis import strategies as st
from support_torch import DTYPES, compare, leaf, numbers, theirs
from torch import Tensor

sdpa = qt.scaled_dot_product_attention


def both(arguments: list[Tensor | None], dtype: torch.dtype = torch.float32, **options: object) -> list[Tensor | None]:
    return compare(lambda *a: sdpa(*a, **options), lambda *a: theirs(*a, **options), arguments, dtype)


def operands(q_len: int = 5, kv_len: int = 7) -> list[Tensor]:
    return [leaf(1, 2, 3, q_len, 8), leaf(2, 2, 3, kv_len, 8), leaf(3, 2, 3, kv_len, 6)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("scale", (None, 0.3, -0.5, 0.0))
def test_types_scales_and_causal(dtype: torch.dtype, causal: bool, scale: float | None) -> None:
    both(operands(), dtype, is_causal=causal, scale=scale)


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
    both([*operands(), mask])


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


# Lengths on both sides of PyTorch's blocks of 32, 256 and 512; shapes of masks that repeat; a mask of booleans or of numbers.
LENGTHS = ((1, 514), (11, 17), (11, 514), (514, 17), (514, 514), (1030, 514))
MASKS: dict[str, tuple[tuple[int, ...], bool]] = {"keys": ((1, 1), False), "pairs": ((), True), "sequences": ((2, 1), False), "all": ((2, 3), True)}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind, mask", [("no", None), ("no", "causal"), *itertools.product(("keep", "float"), MASKS)])
def test_lengths_and_masks(lengths: tuple[int, int], kind: str, mask: str | None) -> None:
    dense = None
    if mask in MASKS:
        lead, a_row_each = MASKS[mask]
        dense = numbers(4, *lead, lengths[0] if a_row_each else 1, lengths[1])
        dense = dense > -0.5 if kind == "keep" else dense.requires_grad_()
    both([*operands(*lengths), dense], is_causal=mask == "causal")


def test_rows_that_attend_nothing_are_zero() -> None:
    keep = torch.ones(5, 7, dtype=torch.bool)
    keep[2] = False
    out = both([*operands(), keep])[0]
    assert not out[:, :, 2].any()
    both([*operands(), torch.zeros(5, 7, dtype=torch.float64).masked_fill(~keep, -torch.inf)])
    both(operands(5, 0))


def test_nan_behind_a_mask_is_invisible() -> None:
    q, k, v = (numbers(n, 1, 2, 4, 8, dtype=torch.float32) for n in range(3))
    k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
    expected = sdpa(q, k[:, :, :3], v[:, :, :3])
    assert torch.equal(sdpa(q, k, v, attn_mask=torch.tensor([True, True, True, False])), expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_mask_of_float32_for_16_bits(dtype: torch.dtype) -> None:
    q, k, v = (numbers(n, 2, 2, 5, 8, dtype=dtype) for n in range(3))
    mask = numbers(4, 5, 5, dtype=torch.float32).requires_grad_()
    out = sdpa(q, k, v, attn_mask=mask)
    out.float().sum().backward()
    assert out.dtype is dtype and mask.grad is not None and mask.grad.dtype is torch.float32


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16), ids=str)
def test_autocast_casts_as_pytorch_does(dtype: torch.dtype) -> None:
    q, k, v, mask = *(numbers(n, 2, 2, 5, 8, dtype=dtype) for n in range(3)), numbers(4, 5, 5, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sdpa(q, k, v, mask).dtype is torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).dtype


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bhtd": lambda x: x,
    "bthd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "stacked": lambda x: torch.stack([x, x], 2)[:, :, 1],
    "a third of one projection": lambda x: torch.cat([x.transpose(1, 2).flatten(2)] * 3, -1).chunk(3, -1)[1].unflatten(-1, (x.shape[1], -1)).transpose(1, 2),
    "bhdt": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "stepped": lambda x: torch.stack([x, x], -1)[..., 0],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("layout", [*LAYOUTS, "one head for all"])
def test_layouts(layout: str, causal: bool, dtype: torch.dtype) -> None:
    laid = LAYOUTS.get(layout, lambda x: x[:, :1].expand(x.shape))

    def laid_out(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda q, k, v: attention(q, laid(k), laid(v), is_causal=causal)

    compare(laid_out(sdpa), laid_out(theirs), [leaf(n, 4, 2, 4, 16) for n in range(3)], dtype)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 3), q_len=st.integers(1, 20), kv_len=st.integers(1, 20), width=st.integers(1, 20),
    layout=st.sampled_from(list(LAYOUTS)), data=st.data(),
)  # fmt: skip
def test_any_shape_stride_and_mask(
    batch: int, heads: int, q_len: int, kv_len: int, width: int, layout: str, data: st.DataObject
) -> None:
    """Strides of every kind, masks that broadcast anywhere; results must be those of contiguous tensors in bits."""
    q, k, v = (numbers(n, batch, heads, length, width) for n, length in enumerate((q_len, kv_len, kv_len), 1))
    full = (batch, heads, q_len, kv_len)
    shape = tuple(n if data.draw(st.booleans()) else 1 for n in full)[data.draw(st.integers(0, 2)) :]
    mask = numbers(4, *shape) > -0.5
    assert torch.equal(sdpa(*map(LAYOUTS[layout], (q, k, v)), attn_mask=mask), sdpa(q, k, v, attn_mask=mask.expand(full)))
    both([q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask])


def test_layout_of_the_result_is_the_querys() -> None:
    packed = numbers(1, 2, 7, 3, 4, 8, dtype=torch.float32)  # [B, T, 3, H, D]
    out = sdpa(*packed.permute(2, 0, 3, 1, 4))
    assert out.transpose(1, 2).is_contiguous()  # merging heads copies nothing


@pytest.mark.parametrize(
    "strides",
    (((2304, 128, 2048, 1), (3584, 0, 256, 1), (14, 14, 14, 1)), ((128, 128, 1, 1), (0, 0, 128, 1), (0, 0, 0, 1))),
    ids=str,
)
def test_one_query_and_strides_of_any_size(strides: tuple[tuple[int, ...], ...]) -> None:
    def cut(seed: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        return numbers(seed, 1 + sum((n - 1) * s for n, s in zip(shape, stride))).as_strided(shape, stride)

    q, k, v = cut(1, (3, 16, 1, 128), strides[0]), cut(2, (3, 16, 14, 128), strides[1]), cut(3, (3, 16, 14, 128), strides[1])
    both([q, k, v, cut(4, (3, 1, 1, 14), strides[2])])
    q = numbers(1, 1, 1, 1, 2).transpose(-1, -2)  # a width of 1 with another stride
    both([q, numbers(2, 1, 1, 1, 1), numbers(3, 1, 1, 1, 1)])


# Dropout.


def test_dropout_repeats_with_the_seed_and_has_its_mean() -> None:
    q, k = numbers(1, 1, 2, 64, 8, dtype=torch.float32), numbers(2, 1, 2, 64, 8, dtype=torch.float32)
    v = torch.ones(1, 2, 64, 4)

    def call(seed: int, p: float) -> Tensor:
        torch.manual_seed(seed)
        return sdpa(q, k, v, dropout_p=p)

    assert torch.equal(call(1, 0.5), call(1, 0.5)) and not torch.equal(call(1, 0.5), call(2, 0.5))
    first, second = call(1, 0.5), sdpa(q, k, v, dropout_p=0.5)
    assert not torch.equal(first, second)
    assert abs(first.mean() - 1) < 0.1
    assert not call(1, 1.0).any()
    with pytest.raises(ValueError):
        call(1, 1.5)


def test_overlapping_windows() -> None:
    """unfold: memory of which PyTorch puts another axis innermost."""
    series = [leaf(n, 2, 3, 12) for n in (1, 2, 3)]
    both_ways = [[x.detach().requires_grad_() for x in series] for _ in range(2)]
    outs = [f(*(x.unfold(2, 8, 1) for x in given), is_causal=True) for f, given in zip((sdpa, theirs), both_ways)]
    assert torch.allclose(*outs)
    for out in outs:
        out.sin().sum().backward()
    for ours, expected in zip(*both_ways):
        assert torch.allclose(ours.grad, expected.grad)


def test_autograd_learns_that_out_was_written() -> None:
    x = numbers(1, 1, 2, 4, 8)
    out, weight = torch.ones_like(x), torch.ones_like(x).requires_grad_()
    loss = (out * weight).sum()
    qkv.attention(x, x, x, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        qkv.attention(x, x, x, out=torch.ones_like(x))


@pytest.mark.parametrize("causal", (False, True))
def test_dropout_is_the_documented_pattern_to_its_second_derivative(causal: bool) -> None:
    torch.manual_seed(5)
    seed = int(torch.randint(0, 2**63 - 1, (1,)))
    factors = torch.from_numpy(qkv.dropout_factors((2, 3, 5, 7), 0.3, seed))
    keep = torch.ones(5, 7, dtype=torch.bool).tril() if causal else torch.ones(5, 7, dtype=torch.bool)

    def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.where(keep, q @ k.mT / 8**0.5, -torch.inf)
        return (torch.softmax(scores, -1) * factors.to(q.dtype)) @ v

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return sdpa(q, k, v, dropout_p=0.3, is_causal=causal)

    compare(ours, textbook, operands())
    small = [x[:1, :2, :3, :4].detach().requires_grad_() for x in operands()]
    assert torch.autograd.gradcheck(ours, small, check_forward_ad=True) and torch.autograd.gradgradcheck(ours, small)
