"""qkv.torch.flex_attention against PyTorch's flex_attention, which runs eagerly on the CPU but without backward; gradients
against autograd through the same formula written out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.nn.attention.flex_attention")

import qkv
import qkv.torch as qt
from operators import formula, leaves
from support_torch import compare, numbers
from torch import Tensor
from torch.nn.attention import flex_attention as pytorchs

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:Please use")
B, H, HKV, T, D, DV = 2, 4, 2, 21, 8, 6


def operands() -> list[Tensor]:
    return leaves((B, H, T, D), (B, HKV, T, D), (B, HKV, T, DV))


def check(ours: tuple[Any, Any], score_mod: Any, mask_mod: Any) -> None:
    """Ours (score_mod, block_mask): values as PyTorch's, values and gradients as the formula's."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return qt.flex_attention(q, k, v, ours[0], ours[1], enable_gqa=True, return_lse=True)

    compare(call, lambda q, k, v: formula(q, k, v, score_mod, mask_mod), operands())
    q, k, v = (x.detach() for x in operands())
    block_mask = None if mask_mod is None else pytorchs.create_block_mask(mask_mod, B, H, T, T, device="cpu", BLOCK_SIZE=8)
    out, lse = pytorchs.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_lse=True)
    mine = qt.flex_attention(q, k, v, ours[0], ours[1], enable_gqa=True, return_lse=True)
    assert torch.allclose(mine[0], out, atol=1e-12) and torch.allclose(mine[1], lse, atol=1e-12)


DOCUMENTS = torch.tensor([0] * 5 + [1] * 9 + [2] * 7)
MASKS: dict[str, tuple[Callable[..., Any], Callable[[], qkv.Mask]]] = {
    "causal": (lambda b, h, i, j: i >= j, lambda: qkv.Mask.causal()),
    "sliding": (lambda b, h, i, j: (i >= j) & (i - j < 4), lambda: qkv.Mask.sliding(4)),
    "window": (lambda b, h, i, j: (i - j).abs() <= 3, lambda: qkv.Mask.window(3, 3)),
    "prefix": (lambda b, h, i, j: (i >= j) | (j < 6 + b), lambda: qkv.Mask.causal() | qkv.Mask.prefix([6, 7])),
    "documents": (
        lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j),
        lambda: qkv.Mask.document_ids(DOCUMENTS.tolist()) & qkv.Mask.causal(),
    ),
    "by head, with empty rows": (
        lambda b, h, i, j: (i % (h + 2) != 0) & (j <= i),
        lambda: qkv.Mask.of(lambda b, h, i, j: (i % (h + 2) != 0) & (j <= i), T, T, batch=B, num_heads=H),
    ),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", ("Mask", "BlockMask"))
def test_masks(name: str, kind: str) -> None:
    mask_mod, make = MASKS[name]
    made = make() if kind == "Mask" else pytorchs.create_block_mask(mask_mod, B, H, T, T, device="cpu", BLOCK_SIZE=8)
    check((None, made), None, mask_mod)


def slopes() -> Tensor:
    return torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)], dtype=torch.float64)


TABLE = numbers(9, 7, H)
SCORES: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "softcap": (qt.SoftCap(2.0), lambda s, b, h, i, j: 2 * torch.tanh(s / 2)),
    "alibi": (qkv.PositionBias.alibi(H), lambda s, b, h, i, j: s - slopes()[h] * (i - j).abs()),
    "alibi by slopes": (qkv.PositionBias.alibi([0.5, 0.25, 0.1, 0.0]), lambda s, b, h, i, j: s - torch.tensor([0.5, 0.25, 0.1, 0.0])[h] * (i - j).abs()),
    "relative": (qt.Relative(TABLE), lambda s, b, h, i, j: s + TABLE[3 + (j - i).clamp(-3, 3), h]),
    "softcap and relative": ([qt.SoftCap(1.5), qt.Relative(TABLE)], lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5) + TABLE[3 + (j - i).clamp(-3, 3), h]),
    "a function": (lambda s, b, h, i, j: s * s / 4 + TABLE[j % 7, h], lambda s, b, h, i, j: s * s / 4 + TABLE[j % 7, h]),
    "a function of positions alone": (lambda s, b, h, i, j: (i - j) * 0.1 + 0 * s.detach(), lambda s, b, h, i, j: (i - j) * 0.1 + 0 * s.detach()),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("causal", (False, True))
def test_scores(name: str, causal: bool) -> None:
    ours, score_mod = SCORES[name]
    mask_mod = (lambda b, h, i, j: i >= j) if causal else None
    check((ours, qkv.Mask.causal() if causal else None), score_mod, mask_mod)


def test_a_table_learns() -> None:
    def ours(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return qt.flex_attention(q, k, v, qt.Relative(table), qkv.Mask.causal(), enable_gqa=True)

    def theirs(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return formula(q, k, v, lambda s, b, h, i, j: s + table[3 + (j - i).clamp(-3, 3), h], lambda b, h, i, j: i >= j)[0]

    compare(ours, theirs, [*operands(), numbers(9, 7, H).requires_grad_()])


def test_a_gradient_that_arrives_at_lse_alone() -> None:
    """Expanded from one number: a stride of 0 on every axis."""
    q, k = leaves((1, 2, 3, 4), (1, 2, 3, 4))
    _, lse = qt.flex_attention(q, k, k.detach(), return_lse=True)
    exact = torch.logsumexp(q @ k.mT / 2, -1)
    for a, b in zip(torch.autograd.grad(lse.sum(), (q, k)), torch.autograd.grad(exact.sum(), (q, k))):
        assert torch.allclose(a, b, atol=1e-12)
    assert torch.autograd.gradgradcheck(lambda q, k: qt.flex_attention(q, k, k.detach(), return_lse=True)[1], (q, k))


@pytest.mark.skipif(not hasattr(pytorchs, "AuxRequest"), reason="needs PyTorch with AuxRequest")
def test_auxiliary_results_are_pytorchs() -> None:
    given, request = [x.detach() for x in operands()], pytorchs.AuxRequest
    for asked in (request(lse=True), request()):
        mine, theirs = (f(*given, enable_gqa=True, return_aux=asked) for f in (qt.flex_attention, pytorchs.flex_attention))
        assert torch.allclose(mine[0], theirs[0], atol=1e-12) and type(mine[1]) is type(theirs[1]) and mine[1].max_scores is None
        assert (mine[1].lse is None) == (not asked.lse) and (not asked.lse or torch.allclose(mine[1].lse, theirs[1].lse, atol=1e-12))
    with pytest.raises(NotImplementedError, match="max_scores are not computed"):
        qt.flex_attention(*given, enable_gqa=True, return_aux=request(max_scores=True))
    with pytest.raises(qt.ArgumentError, match="return_lse and return_aux exclude each other"):
        qt.flex_attention(*given, enable_gqa=True, return_lse=True, return_aux=request(lse=True))


def test_a_captured_tensor_loses_no_gradient() -> None:
    table, given = numbers(9, H).requires_grad_(), operands()
    with pytest.raises(qt.ArgumentError, match=r"captures a tensor that requires a gradient.*qkv.torch.Relative\(table\).*detach"):
        qt.flex_attention(*given, lambda s, b, h, i, j: s + table[h], enable_gqa=True)
    expected = qt.flex_attention(*given, lambda s, b, h, i, j: s + table.detach()[h], enable_gqa=True)
    with torch.no_grad():
        assert torch.equal(qt.flex_attention(*given, lambda s, b, h, i, j: s + table[h], enable_gqa=True), expected)


def test_block_mask_is_written_out_once_and_freed() -> None:
    made = pytorchs.create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cpu", BLOCK_SIZE=8)
    first = qt.mask_of(made, (B, H, T, D), (B, HKV, T, D))
    assert qt.mask_of(made, (B, H, T, D), (B, HKV, T, D)) is first
    before = len(qkv.torch.flex._written)
    del made
    assert len(qkv.torch.flex._written) == before - 1


def test_a_block_mask_that_changed_is_written_out_again() -> None:
    ids = torch.zeros(T, dtype=torch.int64)
    same = lambda b, h, i, j: ids[i] == ids[j]
    made = pytorchs.create_block_mask(pytorchs.and_masks(same, lambda b, h, i, j: i >= j), None, None, T, T, device="cpu", BLOCK_SIZE=128)
    dense = lambda: qt.mask_of(made, (B, H, T, D), (B, HKV, T, D)).to_dense(T, T)[0, 0]
    lower = np.tri(T, dtype=bool)
    assert np.array_equal(dense(), lower)
    ids[T // 2 :] = 1
    assert np.array_equal(dense(), lower & (np.asarray(ids)[:, None] == np.asarray(ids)))
    made.mask_mod = lambda b, h, i, j: i > j
    assert np.array_equal(dense(), lower & ~np.eye(T, dtype=bool))


def test_one_soft_cap() -> None:
    with pytest.raises(qt.ArgumentError, match="takes one SoftCap: got two"):
        qt.flex_attention(*operands(), [qt.SoftCap(1.0), qt.SoftCap(0.2)], enable_gqa=True)


def test_listed_blocks_count() -> None:
    """BlockMask.from_kv_blocks without a mask_mod: only listed blocks are attended, whole."""
    counts, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[1, 0], [0, 1]]]])
    made = pytorchs.BlockMask.from_kv_blocks(counts.int(), indices.int(), BLOCK_SIZE=8)
    q = numbers(1, 1, 1, 16, D)
    keep = torch.ones(16, 16, dtype=torch.bool)
    keep[:8, :8] = False
    assert torch.equal(qt.flex_attention(q, q, q, block_mask=made), qt.scaled_dot_product_attention(q, q, q, attn_mask=keep))


def _changed_later() -> list[tuple[Any, Any]]:
    """Mask functions, and what changes them."""
    held, tensor, width = [9], torch.tensor(9), 9

    def of_list(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() < held[0]

    def of_tensor(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() < tensor

    def of_number(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() < width

    def of_attribute(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() < of_attribute.width

    def of_globals(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() < globals()["_WIDTH"]

    def narrow() -> None:
        nonlocal width
        width = 2

    of_attribute.width = globals()["_WIDTH"] = 9
    return [
        (of_list, lambda: held.__setitem__(0, 2)), (of_tensor, lambda: tensor.fill_(2)), (of_number, narrow),
        (of_attribute, lambda: setattr(of_attribute, "width", 2)), (of_globals, lambda: globals().update(_WIDTH=2)),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("inference", [False, True])
def test_what_a_mask_depends_on_may_change(which: int, inference: bool) -> None:
    with torch.inference_mode(inference):
        mask_mod, change = _changed_later()[which]
        q, k, v = (x.detach() for x in operands())
        block_mask = pytorchs.create_block_mask(mask_mod, 1, 1, T, T, device="cpu")
        for _ in range(2):
            at = torch.arange(T)
            wanted = qt.scaled_dot_product_attention(q, k, v, mask_mod(0, 0, at[:, None], at), enable_gqa=True)
            assert torch.equal(qt.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True), wanted)
            change()
        block_mask.kv_num_blocks.zero_()
        assert not qt.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True).any()


def test_masks_that_are_joined_are_written_out_once() -> None:
    texts = torch.arange(T) // 5

    def of_texts(b: Any, h: Any, q: Any, k: Any) -> Any:
        return texts[q] == texts[k]

    def within(width: int) -> Any:
        return lambda b, h, q, k: q - k < width

    joined = pytorchs.and_masks(lambda b, h, q, k: q >= k, pytorchs.or_masks(of_texts, within(4)))
    block_mask, sizes = pytorchs.create_block_mask(joined, 1, 1, T, T, device="cpu"), (1, 1, T, D)
    held = qt.flex.mask_of(block_mask, sizes, sizes)
    assert qt.flex.mask_of(block_mask, sizes, sizes) is held
    texts += 1
    assert qt.flex.mask_of(block_mask, sizes, sizes) is not held
