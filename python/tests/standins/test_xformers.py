"""qkv.standins' xformers: every bias class against its own materialize in float64, gradients, parts that are merged, refusals."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv.standins
from qkv.standins import xformers as ours
from support_torch import compare, numbers
from torch import Tensor

C = ours.CLASSES
OPS = ours.MODULES["xformers.ops"]
attend = OPS["memory_efficient_attention"]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    if "xformers" not in qkv.standins.install("xformers", quiet=True):
        pytest.skip("the real xformers is installed")
    yield
    qkv.standins.uninstall()


Q, KV, TABLE = [4, 1, 5], [4, 3, 6], torch.tensor([[3, 1], [5, 0], [2, 4]])
PACKS = C["BlockDiagonalMask"].from_seqlens(Q, KV)
PADDED = {"q_seqlen": Q, "kv_padding": 8, "kv_seqlen": KV}
PAGED = {"q_seqlen": Q, "kv_seqlen": KV, "block_tables": TABLE, "page_size": 4}
GAPPY = {"q_seqlen": Q, "kv_seqstarts": [2, 9, 15, 24], "kv_seqlen": KV}
GAPPY_PAGED = PAGED | {"kv_seqstarts": [1, 5, 2]}
LOCAL = {"window_left": 2, "window_right": 1}
#: Biases, and how many keys they are of.
BIASES = [
    (C["LowerTriangularMask"](), 12), (C["LowerTriangularFromBottomRightMask"](), 12),
    (C["LowerTriangularFromBottomRightMask"]().make_local_attention(3), 12), (C["LocalAttentionFromBottomRightMask"](2, 3), 12),
    (PACKS, 13), (PACKS.make_causal(), 13), (PACKS.make_causal_from_bottomright(), 13), (PACKS.make_local_attention(2), 13),
    (PACKS.make_local_attention_from_bottomright(2), 13), (C["BlockDiagonalCausalMask"].from_seqlens([4, 1, 5], [6, 3, 2]), 11),
    (C["BlockDiagonalPaddedKeysMask"].from_seqlens(**PADDED), 24), (C["BlockDiagonalCausalWithOffsetPaddedKeysMask"].from_seqlens(**PADDED), 24),
    (C["BlockDiagonalLocalAttentionPaddedKeysMask"].from_seqlens_local(**PADDED, **LOCAL), 24),
    (C["BlockDiagonalCausalLocalAttentionPaddedKeysMask"].from_seqlens_local(**PADDED, window_size=2), 24),
    (C["BlockDiagonalGappyKeysMask"].from_seqlens(**GAPPY), 24), (C["BlockDiagonalCausalWithOffsetGappyKeysMask"].from_seqlens(**GAPPY), 24),
    (C["BlockDiagonalLocalAttentionFromBottomRightGappyKeysMask"].from_seqlens_local_gappy(**GAPPY, **LOCAL), 24),
    (C["PagedBlockDiagonalPaddedKeysMask"].from_seqlens(**PAGED), 24), (C["PagedBlockDiagonalCausalWithOffsetPaddedKeysMask"].from_seqlens(**PAGED), 24),
    (C["PagedBlockDiagonalCausalLocalPaddedKeysMask"].from_seqlens_local(**PAGED, window_size=2), 24),
    (C["PagedBlockDiagonalGappyKeysMask"].from_seqlens(**GAPPY_PAGED), 24),
    (C["PagedBlockDiagonalCausalWithOffsetGappyKeysMask"].from_seqlens(**GAPPY_PAGED), 24),
]  # fmt: skip


def plain(q: Tensor, k: Tensor, v: Tensor, bias: Any) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("bihd,bjhd->bhij", q.to(wide), k.to(wide)) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + (bias.to(wide) if isinstance(bias, Tensor) else bias.materialize(scores.shape, wide))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.to(wide)).to(q.dtype)


@pytest.mark.parametrize("n", range(len(BIASES)), ids=[type(x).__name__ for x, _ in BIASES])
def test_values_and_gradients_are_those_of_the_dense_bias(n: int) -> None:
    (bias, keys), dtype = BIASES[n], (torch.float32, torch.bfloat16)[n % 2]
    shapes = ((1, 10, 2, 4), (1, keys, 2, 4), (1, keys, 2, 3))
    tensors = [numbers(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]
    trained = compare(lambda *x: attend(*x, bias), lambda *x: plain(*x, bias), tensors, dtype)
    read = OPS["memory_efficient_attention_forward"](*(x.to(dtype) for x in tensors), pickle.loads(pickle.dumps(bias)))
    torch.testing.assert_close(read, trained[0].detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_axes_and_tensor_biases(dtype: torch.dtype) -> None:
    q, k, v = (numbers(n, 2, 6, 4, 8) for n in range(3))
    bias = numbers(3, 2, 4, 6, 6).requires_grad_()
    compare(lambda *x: attend(*x), lambda *x: plain(*x), [q, k, v, bias], dtype)
    lower = C["LowerTriangularMask"]
    compare(lambda *x: attend(*x[:3], lower().add_bias(x[3])), lambda *x: plain(*x[:3], lower().add_bias(x[3])), [q, k, v, bias], dtype)
    whole = attend(q, k, v, bias)
    merged = attend(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)), bias.flatten(0, 1))
    torch.testing.assert_close(merged.unflatten(0, (2, 4)).transpose(1, 2), whole)
    five = attend(*(x.unflatten(2, (2, 2)) for x in (q, k, v)), bias.unflatten(1, (2, 2)))
    torch.testing.assert_close(five.flatten(2, 3), whole)


def test_heads_made_by_expand_are_read_once_and_their_gradients_summed() -> None:
    q, k = numbers(1, 1, 5, 4, 8), numbers(2, 1, 5, 1, 8).requires_grad_()
    out = attend(q, k.expand(-1, -1, 4, -1), k.expand(-1, -1, 4, -1))
    reference = plain(q, k.expand(-1, -1, 4, -1), k.expand(-1, -1, 4, -1), None)
    torch.testing.assert_close(out, reference)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), k)[0] for x in (out, reference)))


def test_parts_merge_and_the_low_level_functions_agree() -> None:
    q, k, v = (numbers(n, 1, 6, 2, 4).requires_grad_() for n in range(3))
    parts = [OPS["memory_efficient_attention_partial"](q, k[:, a:b], v[:, a:b], _allow_backward=True) for a, b in ((0, 2), (2, 6))]
    merged, lse = OPS["merge_attentions"](*zip(*parts))
    out, whole = OPS["memory_efficient_attention_forward_requires_grad"](q, k, v)
    torch.testing.assert_close((merged, lse), (out, whole))
    gradients = OPS["memory_efficient_attention_backward"](torch.ones_like(out), out, whole, q, k, v)
    torch.testing.assert_close(gradients, torch.autograd.grad(merged.sum(), (q, k, v)))
    assert OPS["memory_efficient_attention_partial"](*(x.half() for x in (q, k, v)))[0].dtype is torch.float32


def test_a_query_without_keys_in_any_part_has_gradients_of_zero() -> None:
    out, lse = numbers(1, 2, 1, 3, 2, 4).requires_grad_(), numbers(2, 2, 1, 2, 3)
    lse[..., 0] = -torch.inf
    merged, whole = OPS["merge_attentions"](out, lse.requires_grad_())
    assert not merged[:, 0].any() and bool((whole[..., 0] == -torch.inf).all())
    for x in torch.autograd.grad(merged.sum() + whole[..., 1:].sum(), (out, lse)):
        assert bool(x.isfinite().all()) and x.any()


def test_dropout_repeats_with_its_seed_and_lists_are_split_again() -> None:
    bias, x = C["BlockDiagonalMask"].from_tensor_list([numbers(1, 2, 3, 1, 4), numbers(2, 1, 5, 1, 4)])
    outs = [attend(x, x, x, bias, p) for p in (0.5, 0.5, 0.0) if torch.manual_seed(1)]
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert [part.shape[:2] for part in bias.split(outs[2])] == [(2, 3), (1, 5)]


@pytest.mark.parametrize("arguments,error,text", [
    ({"query": torch.zeros(1, 4, 2, 8, device="meta")}, NotImplementedError, "query on meta"), ({"attn_bias": "causal"}, NotImplementedError, "attn_bias"),
    ({"key": torch.zeros(1, 4, 1, 8)}, ValueError, "query, key, value"), ({"p": 1.5}, ValueError, "p must"),
    ({"key": torch.zeros(1, 4, 2, 1, dtype=torch.int32)}, NotImplementedError, "quantised"), ({"attn_bias": PACKS}, ValueError, "BlockDiagonalMask"),
    ({"attn_bias": torch.zeros(1, 2, 4, 4).double()}, ValueError, "float64"), ({"output_dtype": torch.int32}, TypeError, "output_dtype must be"),
])  # fmt: skip
def test_refusals_name_the_argument(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        attend(**{**{x: torch.zeros(1, 4, 2, 8) for x in ("query", "key", "value")}, **arguments})


@pytest.mark.parametrize("make", [
    lambda: C["PagedBlockDiagonalPaddedKeysMask"].from_seqlens(**PAGED | {"block_tables": torch.tensor([[3, 1], [5, 0], [2, -1]])}),
    lambda: C["BlockDiagonalGappyKeysMask"].from_seqlens(**GAPPY | {"kv_seqstarts": [-3, 9, 15, 24]}),
])  # fmt: skip
def test_keys_outside_of_the_memory_are_refused(make: Callable[[], Any]) -> None:
    q, k = numbers(1, 1, 10, 2, 4), numbers(2, 1, 24, 2, 4).requires_grad_()
    with pytest.raises(ValueError, match="must name one of 24 rows"):
        attend(q, k, k, make())


def test_a_scale_that_is_a_tensor_is_refused() -> None:
    """Its first value would stay."""
    x = torch.zeros(1, 4, 2, 8)
    with pytest.raises(TypeError, match="scale must be a number"):
        attend(x, x, x, scale=torch.tensor(0.5))


MISSPELT = [
    lambda: C["BlockDiagonalMask"].from_seqlens(Q, kv_seqlens=KV), lambda: C["BlockDiagonalMask"].from_seqlens(Q, KV, KV),
    lambda: C["BlockDiagonalMask"].from_seqlens(Q, KV, kv_seqlen=KV), lambda: C["LocalAttentionFromBottomRightMask"](2, 3, 4),
    lambda: C["LocalAttentionFromBottomRightMask"](2, 3, causal=True), lambda: C["LowerTriangularFromBottomRightMask"](3),
]  # fmt: skip


@pytest.mark.parametrize("make", MISSPELT)
def test_arguments_that_a_bias_does_not_have(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="takes"):
        make()


def test_only_the_triangle_takes_a_tensor() -> None:
    bias = torch.zeros(1, 2, 4, 4)
    assert torch.equal(C["LowerTriangularMask"]().add_bias(bias)._bias, bias)
    assert not any(hasattr(C[name], "add_bias") for name in ("BlockDiagonalMask", "LowerTriangularFromBottomRightMask"))


def test_imports() -> None:
    import xformers.ops
    from xformers.ops import fmha
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalMask

    assert xformers.ops.fmha.attn_bias.BlockDiagonalCausalMask is BlockDiagonalCausalMask and fmha.BlockDiagonalMask is C["BlockDiagonalMask"]
    assert isinstance(PACKS.make_causal(), fmha.BlockDiagonalMask)
    with pytest.raises(ImportError):
        from xformers.ops import SwiGLU  # noqa: F401


def test_gradients_of_heads_that_repeat() -> None:
    q, k, v = numbers(1, 1, 4, 3, 8), numbers(2, 1, 4, 1, 8), numbers(3, 1, 4, 1, 8)
    wide = [x.requires_grad_().expand(1, 4, 3, 8) for x in (k, v)]
    made = torch.autograd.grad(attend(q, *wide).square().sum(), wide)
    plain = [x.detach().clone().requires_grad_() for x in wide]
    wanted = torch.autograd.grad(attend(q, *plain).square().sum(), plain)
    for one, other in zip(made, wanted):
        torch.testing.assert_close(one, other)
