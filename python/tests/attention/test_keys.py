"""Mask.keys and top_keys: the keys that a list names, and the lists that an indexer chooses."""

from __future__ import annotations

import numpy as np
import pytest
import qkv
import torch
from support import numbers, problem


@pytest.mark.parametrize("heads", (1, 2, 4))
def test_lists_are_dense_masks(heads: int) -> None:
    """A list for each group of heads, for each head, for all; that their numbers are right is tests/attention/key_lists_test.cc's."""
    rng = np.random.default_rng(1)
    index = np.array([rng.permutation(300)[:8] for _ in range(2 * heads * 40)], np.int32).reshape(2, heads, 40, 8)
    index[..., 0, :], index[..., 1, 1:] = -1, -1  # a row without keys, a row with one
    q, k, v = problem(1, 2, 4, 40, 300, 16, kv_heads=2)
    mask, dout = qkv.Mask.keys(index), numbers(5, *q.shape)
    keep = (index[..., None] == np.arange(300)).any(-2).repeat(4 // heads, 1)
    assert np.array_equal(mask.to_dense(40, 300, batch=2, num_heads=4), keep)
    assert qkv.attention_plan(q, k, v, mask=mask)["algorithm"] == "lists"
    results = []
    for which in ({"mask": mask}, {"keep": keep}):
        out, lse = qkv.attention(q, k, v, return_lse=True, **which)
        results.append([out, np.where(np.isneginf(lse), 0, lse), *qkv.attention_backward(dout, q, k, v, out, lse, **which)[:3]])
        results[-1].append(qkv.attention(q, k, v, bits="invariant", **which))
    for listed, dense in zip(*results):
        np.testing.assert_allclose(listed, dense, atol=32 * np.finfo(np.float32).eps * abs(dense).max())
    assert np.array_equal(results[0][-1], results[1][-1])
    index[:] = 0  # it was copied
    assert np.array_equal(mask.to_dense(40, 300, batch=2, num_heads=4), keep) and repr(mask).startswith(f"keys[2, {heads}, 40, 8]")


def test_lists_that_are_none() -> None:
    index = np.zeros((1, 1, 3, 1), np.int64)
    for wrong, kind, words in ((index.repeat(2, -1), qkv.OptionError, "once"), (index * 1.0, TypeError, "whole numbers"), (index + 2**40, ValueError, "int32")):
        with pytest.raises(kind, match=words):
            qkv.Mask.keys(wrong)


def test_top_keys_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randint(-2, 3, size, generator=generator).float() for size in ((2, 4, 9, 8), (2, 50, 8)))
    weights = torch.randint(-1, 3, (2, 4, 9), generator=generator).float()
    scores = torch.einsum("bhi,bhij->bij", weights, torch.einsum("bhid,bjd->bhij", q, k).relu())
    for causal in (False, True):
        hidden = torch.ones(9, 50, dtype=torch.bool).triu(42) & causal
        order = scores.masked_fill(hidden, -torch.inf).sort(dim=-1, descending=True, stable=True).indices[..., :7]
        expected = order.sort(dim=-1).values.unsqueeze(1).int()
        ways = [qkv.top_keys(q, k, weights, 7, causal=causal)]
        ways.append(torch.tensor(qkv.top_keys(q.numpy(), k.numpy()[:, None], weights.numpy(), 7, causal=causal)))
        if causal:
            ways += [qkv.top_keys(q, k, weights, 7, causal=True, offset=41), qkv.top_keys(q, k, weights, 7, mask=qkv.Mask.causal("bottom_right"))]
        assert all(found.dtype is torch.int32 and torch.equal(found, expected) for found in ways)


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
