"""qkv.attention and attention_backward on NumPy arrays: every option arrives, shapes, strides, results. Against the formula in float64; gradients against
differences of forward."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from support import attend, expect_close, numbers, problem

TYPES = ["float32", "float64"]


def both_ways(q: Any, k: Any, v: Any, options: dict[str, Any], meaning: dict[str, Any], need: tuple[str, ...] = ("q", "k", "v")) -> None:
    """Forward against the formula with `meaning`, which spells the same options; backward along a direction against forward's difference."""
    dtype, dout, dlse = q.dtype.type, numbers(99, *q.shape[:-1], v.shape[-1], dtype=q.dtype), numbers(98, *q.shape[:-1], dtype=q.dtype)
    out, lse = qkv.attention(q, k, v, return_lse=True, **options)
    wide = np.float64 if dtype is np.float32 else np.longdouble
    exact, exact_lse, weights = attend(q, k, v, dtype=wide, **meaning)
    naive, naive_lse, _ = attend(q, k, v, dtype=dtype, **meaning)
    terms = weights * meaning.get("factors", 1) @ abs(np.repeat(v, q.shape[1] // v.shape[1], axis=1))
    expect_close(out, exact, naive, terms)
    expect_close(lse, exact_lse, naive_lse)
    live = np.isfinite(lse)
    if dtype is np.float32:
        return
    gradients = qkv.attention_backward(dout, q, k, v, out, lse, dlse=np.where(live, dlse, 0), need=need, **options)
    given = {"q": q, "k": k, "v": v} | {name: options[name] for name in need if name in options}
    steps = {name: numbers(90 + n, *given[name].shape, dtype=dtype) for n, name in enumerate(need)}

    def loss(step: float) -> float:
        moved = {name: x + step * steps[name] if name in steps else x for name, x in given.items()}
        there, lse = qkv.attention(return_lse=True, **(options | moved))
        return float((there * dout).sum() + (lse * dlse)[live].sum())

    slope = sum((getattr(gradients, f"d{name}") * step)[np.isfinite(given[name])].sum() for name, step in steps.items())
    assert all(getattr(gradients, f"d{name}").any() for name in need)
    np.testing.assert_allclose((loss(1e-5) - loss(-1e-5)) / 2e-5, slope, rtol=1e-6, atol=1e-6)


def band(q_len: int, kv_len: int, left: int, right: int, offset: int = 0) -> np.ndarray:
    i, j = np.ogrid[:q_len, :kv_len]
    keep = np.ones((q_len, kv_len), bool)
    keep &= True if left < 0 else j >= i + offset - left
    return keep & (True if right < 0 else j <= i + offset + right)


RNG = np.random.default_rng(5)
KEEP = RNG.random((2, 4, 17, 23)) < 0.6
KEEP[0, 1, 3] = False  # an empty row
BIAS = RNG.standard_normal((1, 4, 17, 23))
SINKS = RNG.standard_normal(4)
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal top left": ({"causal": "top_left"}, {"keep": band(17, 23, -1, 0)}),
    "causal bottom right": ({"causal": "bottom_right"}, {"keep": band(17, 23, -1, 0, 6)}),
    "window": ({"causal": "bottom_right", "window": (4, 0)}, {"keep": band(17, 23, 4, 0, 6)}),
    "key lengths": ({"key_lengths": [23, 5]}, {"keep": np.arange(23) < np.array([23, 5])[:, None, None, None]}),
    "keep": ({"keep": KEEP}, {"keep": KEEP}),
    "keep as float": ({"keep": KEEP.astype(np.float32)}, {"keep": KEEP}),
    "drop": ({"drop": ~KEEP}, {"keep": KEEP}),
    "keep bk": ({"keep": KEEP[:, 0, 0], "mask_axes": "bk"}, {"keep": KEEP[:, :1, :1]}),
    "keep qk": ({"keep": KEEP[0, 0], "mask_axes": "qk"}, {"keep": KEEP[0, 0]}),
    "keep bqk": ({"keep": KEEP[:, 0], "mask_axes": "bqk"}, {"keep": KEEP[:, :1]}),
    "keep hqk": ({"keep": KEEP[0], "mask_axes": "hqk"}, {"keep": KEEP[:1]}),
    "scale": ({"scale": -0.3}, {"scale": -0.3}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "mask algebra": (
        {"mask": qkv.Mask.window(2, 2, "top_left") | qkv.Mask.first(1)},
        {"keep": band(17, 23, 2, 2) | (np.arange(23) < 1)},
    ),
    "masks meet": (
        {"mask": qkv.Mask.first(9), "keep": KEEP, "causal": "top_left"},
        {"keep": KEEP & (np.arange(23) < 9) & band(17, 23, -1, 0)},
    ),
    "dropout": (
        {"dropout": 0.3, "seed": 11, "first_sequence": 4},
        {"factors": (qkv.dropout_factors((2, 4, 17, 23), 0.3, 11, first_sequence=4) > 0) * (65536 / (65536 - round(0.3 * 65536)))},
    ),
    "score_mod": (
        {"score_mod": qkv.ScoreMod(lambda s, b, h, i, j: s - 0.1 * abs(i - j), lambda s, b, h, i, j: np.ones_like(s))},
        {"bias": -0.1 * abs(np.subtract.outer(np.arange(17), np.arange(23)))},
    ),
    "alibi": (
        {"position_bias": qkv.PositionBias.alibi(4, "top_left")},
        {"bias": -np.array([2.0 ** (-2 * (h + 1)) for h in range(4)])[:, None, None] * abs(np.subtract.outer(np.arange(17), np.arange(23)))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(dtype: str, name: str) -> None:
    both_ways(*problem(3, 2, 4, 17, 23, 8, kv_heads=2, dtype=dtype), *OPTIONS[name])


@pytest.mark.parametrize("dtype", TYPES)
def test_bias_and_sinks_and_their_gradients(dtype: str) -> None:
    bias, sinks = np.broadcast_to(BIAS, (2, 4, 17, 23)).astype(dtype), SINKS.astype(dtype)
    bias[0, 0, 2, 5] = -np.inf
    given = {"bias": bias, "sinks": sinks}
    both_ways(*problem(4, 2, 4, 17, 23, 8, dtype=dtype), given, given, ("q", "k", "v", "bias", "sinks"))


def test_causal_alone_needs_a_square() -> None:
    q, k, v = problem(1, 1, 1, 3, 4, 2)
    with pytest.raises(ValueError, match="Tq 3, Tk 4"):
        qkv.attention(q, k, v, causal=True)
    both_ways(*problem(1, 1, 1, 4, 4, 2), {"causal": True}, {"keep": band(4, 4, -1, 0)})


@pytest.mark.parametrize("empty_row", ["zero", "mean", "nan"])
def test_empty_rows(empty_row: str) -> None:
    q, k, v = problem(2, 1, 1, 3, 5, 4)
    keep = np.ones((1, 1, 3, 5), bool)
    keep[..., 1, :] = False
    row = qkv.attention(q, k, v, keep=keep, empty_row=empty_row)[0, 0, 1]
    if empty_row == "zero":
        assert (row == 0).all()
    elif empty_row == "mean":
        assert np.allclose(row, v[0, 0].astype(np.float64).mean(0), atol=1e-6)
    else:
        assert np.isnan(row).all()


def test_results_come_in_the_order_that_is_documented() -> None:
    q, k, v = problem(6, 2, 2, 9, 9, 4)
    out, lse, weights, = qkv.attention(q, k, v, causal=True, return_lse=True, weights="all")  # fmt: skip
    np.testing.assert_allclose(weights, attend(q, k, v, keep=band(9, 9, -1, 0))[2], atol=1e-6)
    assert lse.shape == (2, 2, 9)
    assert np.array_equal(out, qkv.attention(q, k, v, causal=True))
    assert np.array_equal(weights, qkv.attention_weights(q, k, causal=True))
    _, applied = qkv.attention(q, k, v, dropout=0.5, seed=3, weights="applied")
    plain = qkv.attention_weights(q, k)
    assert np.allclose(applied, plain * qkv.dropout_factors((2, 2, 9, 9), 0.5, 3), rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_fewer_axes(rank: int) -> None:
    q, k, v = problem(7, 1, 1 if rank == 2 else 3, 8, 8, 4)
    keep = numbers(8, *q.shape[:-1], 8) > 0
    cut = (0,) * (4 - rank)
    whole, lse = qkv.attention(q, k, v, keep=keep, return_lse=True)
    part, part_lse = qkv.attention(q[cut], k[cut], v[cut], keep=keep[cut], return_lse=True)
    assert np.array_equal(part, whole[cut]) and np.array_equal(part_lse, lse[cut])


@given(
    order=st.permutations([0, 1, 2]),
    reverse=st.booleans(),
    step=st.integers(1, 3),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=40)
def test_any_strides(order: list[int], reverse: bool, step: int, causal: bool, seed: int) -> None:
    """Transposed, reversed and stepped arrays are read where they lie: the result is bit-identical to a copy's."""
    inverse = np.argsort(order)

    def strided(n: int) -> np.ndarray:
        x = numbers(seed + n, 2, 3, 6 * step, 5).transpose(*order, 3).copy().transpose(*inverse, 3)[:, :, ::step]
        return x[:, :, ::-1] if reverse else x

    q, k, v = (strided(n) for n in range(3))
    copies = [np.ascontiguousarray(x) for x in (q, k, v)]
    assert np.array_equal(qkv.attention(q, k, v, causal=causal), qkv.attention(*copies, causal=causal))


@pytest.mark.parametrize("empty", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)], ids=str)
def test_sizes_of_zero(empty: tuple[int, ...]) -> None:
    batch, heads, q_len, kv_len = empty
    q, k, v = problem(1, batch, heads, q_len, kv_len, 4, kv_heads=heads, v_width=3)
    out, lse = qkv.attention(q, k, v, return_lse=True)
    assert out.shape == (*q.shape[:-1], 3) and not out.any() and np.isneginf(lse).all()


def test_captures_change_nothing() -> None:
    q, k, v = problem(10, 2, 3, 40, 40, 8)
    what = qkv.Capture(heads=(2, 0), rows=(5,), top_k=3, statistics=True, column_mass=True, map=(4, 4))
    out, captured = qkv.attention(q, k, v, causal=True, weights=what)
    weights = qkv.attention_weights(q.astype(np.float64), k.astype(np.float64), causal=True)[:, [2, 0]]
    assert np.array_equal(out, qkv.attention(q, k, v, causal=True))
    expected = {
        "rows": weights[:, :, 5:6], "top_weights": np.sort(weights, -1)[..., ::-1][..., :3], "column_mass": weights.sum(-2),
        "map": weights.reshape(2, 2, 4, 10, 4, 10).sum((3, 5)), "self_": weights.diagonal(axis1=-2, axis2=-1),
        "entropy": -np.where(weights > 0, weights * np.log(np.maximum(weights, 1e-300)), 0).sum(-1),
    }  # fmt: skip
    for name, exact in expected.items():
        assert np.allclose(getattr(captured, name), exact, atol=1e-5), name


def test_merging_parts_gives_the_whole() -> None:
    q, k, v = problem(11, 2, 2, 5, 30, 8, dtype="float64")
    parts = [qkv.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 7), (7, 7), (7, 30))]
    out, lse = qkv.merge_attention([o for o, _ in parts], [x for _, x in parts])
    whole, whole_lse = qkv.attention(q, k, v, return_lse=True)
    assert np.allclose(out, whole, rtol=0, atol=1e-14) and np.allclose(lse, whole_lse, rtol=1e-14)


def test_what_rounding_took_from_lse_saves_work_and_changes_no_bit() -> None:
    q, k, v = problem(14, 1, 2, 130, 140, 16)
    dout, options = numbers(17, *v.shape[:2], 130, 16), {"scale": 6.0, "causal": "bottom_right"}
    out, lse, low = qkv.attention(q, k, v, return_lse="low", **options)
    assert (abs(lse) > 16).any() and (low != 0).any() and (abs(low) <= abs(lse) * 2.0**-23).all()

    def gradients(given: np.ndarray | None) -> list[bytes]:
        return [g.tobytes() for g in qkv.attention_backward(dout, q, k, v, out, lse, lse_low=given, **options)[:3]]

    assert gradients(low) == gradients(None) != gradients(low + 1e-3)


@pytest.mark.parametrize(
    "options,text",
    [
        ({"mask_axes": "bk"}, "mask_axes names the axes of keep or drop"),
        ({"seed": "x"}, "seed must be a whole number.*got 'x'"),
        ({"first_sequence": -3}, "first_sequence.*got -3"),
        ({"window": (1, 1.5)}, r"window must be two whole numbers: got \(1, 1.5\)"),
        ({"window": 3}, r"window must be \(left, right\)"),
        ({"weights": qkv.Capture(of="gradient", rows=[0])}, "weights must be a Capture of .*attention_backward's: got of='gradient'"),
        ({"weights": qkv.Capture(map=3)}, r"\[Capture\] map must be \(rows, columns\): got 3"),
        ({"window": (1, 1)}, r'window=\(1, 1\) needs Tq == Tk: got Tq 3, Tk 5; otherwise mask=qkv.Mask.window\(1, 1, "bottom_right"\)'),
        ({"return_lse": "lo"}, "return_lse must be False or True or 'low': got 'lo'"),
    ],
    ids=str,
)
def test_options_that_mean_nothing(options: dict[str, Any], text: str) -> None:
    q, k, v = problem(6, 1, 2, 3, 5, 4)
    with pytest.raises((TypeError, ValueError), match=text):
        qkv.attention(q, k, v, **options)


def test_every_function_says_where_a_window_may_stand() -> None:
    q, k, v = problem(6, 1, 2, 3, 5, 4)
    out, lse = qkv.attention(q, k, v, return_lse=True)
    calls: dict[str, Any] = {
        "attention_backward": lambda **given: qkv.attention_backward(out, q, k, v, out, lse, **given),
        "attention_weights": lambda **given: qkv.attention_weights(q, k, **given),
        "attention_plan": lambda **given: qkv.attention_plan(q, k, v, **given),
    }
    for name, call in calls.items():
        with pytest.raises(qkv.OptionError, match=rf'\[{name}\] window=\(1, 1\) needs.*mask=qkv.Mask.window\(1, 1, "bottom_right"\)'):
            call(window=(1, 1))
        call(mask=qkv.Mask.window(1, 1, "bottom_right"))


def test_out_may_be_given() -> None:
    q, k, v = problem(12, 1, 2, 6, 6, 4)
    out = np.zeros((1, 2, 6, 8), np.float32)[..., ::2].copy()
    assert qkv.attention(q, k, v, out=out) is out
    assert np.array_equal(out, qkv.attention(q, k, v))


def test_plan_counts_tiles() -> None:
    q, k, v = problem(13, 1, 1, 600, 600, 8)
    plan = qkv.attention_plan(q, k, v, causal=True)
    assert plan["skipped_tiles"] > 0 and plan["full_tiles"] > 0 and plan["partial_tiles"] > 0
    assert plan["forward_flops"] == 2 * (8 + 8) * 600 * 601 / 2
    header = (Path(__file__).resolve().parents[3] / "include" / "qkv" / "attention.h").read_text(encoding="utf-8")
    fields = re.findall(r"^  \S+ (\w+)(?: =\s+\S+)?;", header.partition("struct AttentionPlan {")[2].partition("};")[0], re.M)
    fields += re.findall(r"^  std::vector<std::string> (\w+);", header, re.M)
    assert set(plan) == set(fields) and {"mask_bytes", "forward_shared_bytes"} < set(plan)
    assert plan["mask_bytes"] == 0 < qkv.attention_plan(q, k, v, keep=np.tri(600)[None, None])["mask_bytes"]


@pytest.mark.parametrize("positive", [False, True])
def test_relevance_maps_are_weights_times_their_gradient(positive: bool) -> None:
    q, k, v = problem(61, 2, 4, 9, 9, 6, kv_heads=2, dtype="float64")
    dout = numbers(64, 2, 4, 9, 6, dtype="float64")
    out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
    relevance = qkv.Capture(of="gradient", rows=range(9), heads=(3, 0, 1), positive=positive)
    gradients, captured = qkv.attention_backward(dout, q, k, v, out, lse, causal=True, weights=relevance)
    plain = qkv.attention_backward(dout, q, k, v, out, lse, causal=True)
    assert all(np.array_equal(a, b) for a, b in zip(gradients[:3], plain[:3], strict=True))
    relevance = (attend(q, k, v, keep=np.tri(9, dtype=bool))[2] * (dout @ np.repeat(v, 2, 1).swapaxes(-1, -2)))[:, [3, 0, 1]]
    relevance = np.maximum(relevance, 0) if positive else relevance
    assert np.allclose(captured.rows, relevance, rtol=1e-12, atol=1e-14)


def test_scores_are_what_the_softmax_is_taken_of() -> None:
    q, k, v = problem(7, 2, 4, 50, 50, 16, kv_heads=2, dtype="float64")
    options = {"causal": True, "bias": numbers(8, 1, 4, 50, 50, dtype="float64"), "position_bias": qkv.PositionBias.alibi(4)}
    _, lse, scores = qkv.attention(q, k, v, return_lse=True, weights="scores", **options)
    assert np.array_equal(np.isneginf(scores), np.broadcast_to(~np.tri(50, dtype=bool), scores.shape))
    np.testing.assert_allclose(np.exp(scores - lse[..., None]), qkv.attention(q, k, v, weights="all", **options)[1], rtol=1e-12)


def test_invariant_bits_arrive() -> None:
    """As an argument and for every call; what they promise: tests/attention."""
    q, k, v = problem(1, 1, 4, 150, 150, 24, kv_heads=2)
    step = [x[:, :, :100] for x in (k, v)]
    whole = {bits: qkv.attention(q, k, v, causal=True, bits=bits)[:, :, 99:100] for bits in ("invariant", "fast")}
    alone = {bits: qkv.attention(q[:, :, 99:100], *step, bits=bits) for bits in ("invariant", "fast")}
    assert np.array_equal(whole["invariant"], alone["invariant"]) and not np.array_equal(whole["fast"], alone["fast"])
    qkv.set_bits("invariant")
    try:
        qkv.set_num_threads(qkv.num_threads())  # another setting keeps it
        assert qkv.bits() == "invariant" and np.array_equal(qkv.attention(q[:, :, 99:100], *step), whole["invariant"])
    finally:
        qkv.set_bits("fast")
    for call in (lambda: qkv.attention(q, k, v, bits="same"), lambda: qkv.set_bits("same")):
        with pytest.raises(ValueError, match='"fast" or "invariant": got "same"'):
            call()
