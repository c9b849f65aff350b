"""Mask.keys and top_keys: the keys that a list names, and the lists that an indexer chooses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import qkv
import torch
from support import expect_results, numbers, problem, textbook


def lists(batch: int, heads: int, q_len: int, kv_len: int, k: int, seed: int = 1) -> np.ndarray:
    """Random lists [batch, heads, q_len, k] with gaps; row 0 has no key, row 1 one."""
    rng = np.random.default_rng(seed)
    index = np.full((batch, heads, q_len, k), -1, np.int32)
    for row in np.ndindex(batch, heads, q_len):
        count = min(row[2], 2) * (k // 2) if row[2] else 0
        index[row][rng.permutation(k)[: 1 if row[2] == 1 else count]] = rng.permutation(kv_len)[: 1 if row[2] == 1 else count]
    return index


@pytest.mark.parametrize("heads", (1, 2, 4))
@pytest.mark.parametrize("shape", ((2, 40, 300, 8), (1, 3, 500, 30)), ids=str)
def test_are_the_textbooks(heads: int, shape: tuple[int, ...]) -> None:
    batch, q_len, kv_len, k = shape
    q, key, v = problem(1, batch, 4, q_len, kv_len, 16, kv_heads=2)
    mask = qkv.Mask.keys(lists(batch, heads, q_len, kv_len, k))
    dout = numbers(5, *q.shape)
    given = {"keep": mask.to_dense(q_len, kv_len, batch=batch, num_heads=4), "dout": dout}
    assert qkv.attention_plan(q, key, v, mask=mask)["algorithm"] == "lists"
    out, lse = qkv.attention(q, key, v, mask=mask, return_lse=True)
    found = qkv.attention_backward(dout, q, key, v, out, lse, mask=mask)
    fast = {"out": out, "lse": lse, "dq": found.dq, "dk": found.dk, "dv": found.dv}
    fast["lse"], empty = np.where(np.isneginf(lse), 0, lse), np.isneginf(lse)
    exact, naive = (textbook(q, key, v, dtype=dtype, **given) for dtype in (np.float64, np.float32))
    assert np.array_equal(empty, np.isneginf(exact["lse"]))
    exact["lse"], naive["lse"] = (np.where(empty, 0, x["lse"]) for x in (exact, naive))
    expect_results(fast, exact, naive, "float32")


def test_invariant_bits_are_those_of_the_dense_mask() -> None:
    q, k, v = problem(1, 1, 4, 30, 200, 16, kv_heads=2)
    mask = qkv.Mask.keys(lists(1, 2, 30, 200, 10))
    keep = mask.to_dense(30, 200, num_heads=4)
    listed, dense = (qkv.attention(q, k, v, bits="invariant", **which) for which in ({"mask": mask}, {"keep": keep}))
    assert np.array_equal(listed, dense)


def test_on_caches_and_joined() -> None:
    q, k, v = problem(1, 1, 4, 1, 300, 16, kv_heads=2)
    mask = qkv.Mask.keys(lists(1, 1, 2, 300, 12)[:, :, 1:])
    expected = qkv.attention(q, k, v, mask=mask)
    for layout in ({"capacity": 300}, {"layout": "paged", "page_size": 16, "pages": 20}):
        cache = qkv.KVCache(num_kv_heads=2, head_dim=16, **layout)
        cache.append(k, v)
        assert np.array_equal(cache.attention(q, mask=mask), expected)
    everything = mask | qkv.Mask.key_starts([0])
    assert np.allclose(qkv.attention(q, k, v, mask=everything), qkv.attention(q, k, v), atol=1e-6)


def test_torch_gradients() -> None:
    import qkv.torch

    q, k, v = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in problem(1, 1, 4, 20, 100, 8, kv_heads=2))
    mask = qkv.Mask.keys(torch.tensor(lists(1, 2, 20, 100, 8)))
    torch.autograd.gradcheck(lambda *x: qkv.torch.flex_attention(*x, block_mask=mask, enable_gqa=True), (q, k, v))


def test_a_mask_is_copied_and_pickled() -> None:
    index = lists(1, 1, 6, 6, 4)
    mask = qkv.Mask.keys(index)
    dense = mask.to_dense(6, 6)
    assert np.array_equal(copy.deepcopy(mask).to_dense(6, 6), dense)
    index[:] = 0
    assert np.array_equal(mask.to_dense(6, 6), dense)
    assert repr(mask).startswith("keys[1, 1, 6, 4]")


def test_errors() -> None:
    q, k, v = problem(1, 1, 2, 3, 9, 4, kv_heads=1)
    index = np.zeros((1, 1, 3, 1), np.int64)
    qkv.attention(q, k, v, mask=qkv.Mask.keys(index))
    with pytest.raises(qkv.OptionError, match="once"):
        qkv.Mask.keys(np.zeros((1, 1, 3, 2), np.int32))
    with pytest.raises(qkv.OptionError, match="below 9"):
        qkv.attention(q, k, v, mask=qkv.Mask.keys(index + 9))
    with pytest.raises(qkv.ShapeError, match="Tq, k"):
        qkv.attention(q, k, v, mask=qkv.Mask.keys(index[:, :, :2]))
    with pytest.raises(TypeError, match="whole numbers"):
        qkv.Mask.keys(index.astype(float))
    with pytest.raises(ValueError, match="int32"):
        qkv.Mask.keys(index + 2**40)


@pytest.mark.parametrize("causal", (False, True))
def test_top_keys_are_those_of_torch(causal: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randint(-2, 3, size, generator=generator).float() for size in ((2, 4, 9, 8), (2, 50, 8)))
    weights = torch.randint(-1, 3, (2, 4, 9), generator=generator).float()
    scores = torch.einsum("bhi,bhij->bij", weights, torch.einsum("bhid,bjd->bhij", q, k).relu())
    if causal:
        scores = scores.masked_fill(torch.ones(9, 50, dtype=torch.bool).triu(42), -torch.inf)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :7]
    expected = order.sort(dim=-1).values.unsqueeze(1).int()
    found = qkv.top_keys(q, k, weights, 7, causal=causal)
    assert found.dtype is torch.int32 and torch.equal(found, expected)
    assert np.array_equal(qkv.top_keys(q.numpy(), k.numpy()[:, None], weights.numpy(), 7, causal=causal), expected.numpy())
    if causal:
        assert torch.equal(qkv.top_keys(q, k, weights, 7, causal=True, offset=41), expected)
        assert torch.equal(qkv.top_keys(q, k, weights, 7, mask=qkv.Mask.causal("bottom_right")), expected)


def test_errors_of_top_keys() -> None:
    q, k, weights = np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 5, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    with pytest.raises(qkv.ShapeError, match="k_index"):
        qkv.top_keys(q, k[0], weights, 2)
    with pytest.raises(TypeError, match="float64"):
        qkv.top_keys(q.astype(np.float64), k.astype(np.float64), weights, 2)
    with pytest.raises(qkv.OptionError, match="offset"):
        qkv.top_keys(q, k, weights, 2, offset=1)
    with pytest.raises(ValueError, match="no gradient"):
        qkv.top_keys(torch.tensor(q, requires_grad=True), torch.tensor(k), torch.tensor(weights), 2)
