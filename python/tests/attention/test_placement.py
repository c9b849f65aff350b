"""A part of a larger problem (`place`), and scores as an output. Not: ranks that hold the parts (test_torch_parallel.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import qkv

RANDOM = np.random.default_rng(7)
Q, K, V, DOUT = (RANDOM.standard_normal((2, heads, 50, 16), np.float32) for heads in (4, 2, 2, 4))
OPTIONS: dict[str, Any] = {
    "causal": True,
    "bias": RANDOM.standard_normal((1, 4, 50, 50), np.float32),
    "sinks": RANDOM.standard_normal(4, np.float32),
    "position_bias": qkv.PositionBias.alibi(4),
    "dropout": 0.25,
    "seed": 3,
}


@pytest.mark.parametrize("rows", [(0, 50), (7, 20), (49, 50), (32, 48)], ids=str)
@pytest.mark.parametrize("heads", [(0, 4), (2, 4), (0, 2)], ids=str)
def test_a_part_has_the_bits_of_the_whole(rows: tuple[int, int], heads: tuple[int, int]) -> None:
    out, lse = qkv.attention(Q, K, V, return_lse=True, **OPTIONS)
    gradients = qkv.attention_backward(DOUT, Q, K, V, out, lse, **OPTIONS)
    place = qkv.Placement(rows[0], 50, heads[0], 4)
    part, groups = np.s_[:, heads[0] : heads[1], rows[0] : rows[1]], np.s_[:, heads[0] // 2 : heads[1] // 2]
    q, k, v, dout = (np.ascontiguousarray(x) for x in (Q[part], K[groups], V[groups], DOUT[part]))
    own_out, own_lse = qkv.attention(q, k, v, return_lse=True, place=place, **OPTIONS)
    np.testing.assert_array_equal(own_out, out[part])
    np.testing.assert_array_equal(own_lse, lse[part])
    own = qkv.attention_backward(dout, q, k, v, own_out, own_lse, place=place, **OPTIONS)
    np.testing.assert_array_equal(own.dq, gradients.dq[part])
    if rows == (0, 50):
        np.testing.assert_array_equal(own.dk, gradients.dk[groups])
        np.testing.assert_array_equal(own.dv, gradients.dv[groups])


def test_a_place_must_hold_the_rows() -> None:
    with pytest.raises(qkv.ShapeError, match="first_query"):
        qkv.attention(Q, K, V, place=qkv.Placement(first_query=1, queries=50))


def test_scores_are_what_the_softmax_is_taken_of() -> None:
    """exp(score - lse) are the weights; -inf where the mask hides, and wherever a weight is 0 for that reason alone."""
    options = {name: OPTIONS[name] for name in ("causal", "bias", "position_bias")}
    _, lse, scores = qkv.attention(Q, K, V, return_lse=True, weights="scores", **options)
    _, weights = qkv.attention(Q, K, V, weights="all", **options)
    hidden = ~np.tri(50, dtype=bool)
    assert np.isneginf(scores[:, :, hidden]).all() and np.isfinite(scores[:, :, ~hidden]).all()
    made = np.exp(scores.astype(np.float64) - lse[..., None])
    # Each of score, lse and weight is rounded; a weight moves by its share of what its score and lse are off.
    size = np.where(np.isfinite(scores), np.abs(scores), 0) + np.abs(lse)[..., None]
    assert (np.abs(made - weights) <= (4 * size + 16 + 4) * np.finfo(np.float32).eps * made).all()
