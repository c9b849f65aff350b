"""The kinds of heads: heads built to be of one kind are named so, with and without a sink of mass 0.8, and random ones are mixed. The sums
behind them are those of whole rows of weights.
"""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qkv
from qkv._explore.layer import Layer, Wanted, capture_call
from support_explorer import page_of

T, WORDS, STRONG = 160, 40, 12.0
NAMES = ("previous", "self", "duplicate", "induction", "local", "diffuse", "first", "random")
IDS = np.random.default_rng(0).integers(0, WORDS, T)


def built(causal: bool, sink: float) -> tuple[np.ndarray, np.ndarray]:
    """q, k [1, heads, T, D]: a head for each of NAMES; features are positions, words, and one for the sink."""
    position, word = np.eye(T), np.eye(WORDS)[IDS]
    before = np.vstack([np.zeros(WORDS), word[:-1]])  # of key j, the word at j - 1
    shifted = np.vstack([np.zeros(T), position[:-1]])
    near = sum(np.eye(T, k=d) for d in range(-4, 5))
    none, zero = np.zeros((T, T)), np.zeros((T, WORDS))
    rng = np.random.default_rng(1)
    made = []
    for name in NAMES:
        at, words, keys = none, zero, word
        if name in ("previous", "self", "local"):
            at = STRONG * {"previous": shifted, "self": position, "local": near}[name]
        elif name == "duplicate":
            at, words = -STRONG * position, STRONG * word
        elif name == "induction":
            # The query's own position and the one behind it hold its word too: not what is meant.
            at, words, keys = -STRONG * (position + np.eye(T, k=1)), STRONG * word, before
        q, k = np.hstack([at, words]), np.hstack([position, keys])
        if name == "random":
            q, k = rng.standard_normal((2, T, T + WORDS)) * 1.5 / (T + WORDS) ** 0.25
        scores = q @ k.T
        if causal:
            scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
        scores[:, 0] = -np.inf
        rest = np.exp(scores).sum(1)
        share = 0.97 if name == "first" else sink
        feature = np.zeros((2, T, 1))  # q[i].k[0] makes the first key's weight `share`
        if share:
            own = q @ k[0]
            feature[0, :, 0] = np.log(np.maximum(rest, 1e-30) * share / (1 - share)) - own
            feature[1, 0, 0] = 1.0
        made.append((np.hstack([q, feature[0]]), np.hstack([k, feature[1]])))
    q, k = (np.stack(x)[None].astype(np.float32) for x in zip(*made))
    return q, k


def learned(q: np.ndarray, k: np.ndarray, causal: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same heads beside a learned sink of mass 0.8: a feature makes each row's sum of exponentials 1, the sink's is 4."""
    scores = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k.astype(np.float64))
    if causal:
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    own = -np.log(np.exp(scores).sum(-1, keepdims=True))
    q, k = (np.concatenate([x, y], -1).astype(np.float32) for x, y in ((q, own), (k, np.ones_like(own))))
    return q, k, np.full(q.shape[1], np.log(4), np.float32)


def explored(
    q: np.ndarray, k: np.ndarray, sinks: np.ndarray | None = None, *, ids: np.ndarray | None = IDS, bias: Any = None, **options: Any
) -> Layer:
    wanted = Wanted(ids=None if ids is None else ids[None])
    return capture_call(0, "layer.0", q, k, k, bias, sinks, None, {"scale": 1.0, **options}, wanted)


def heads_of(sink: float | str, causal: bool) -> tuple[np.ndarray, ...]:
    return learned(*built(causal, 0.0), causal) if sink == "learned" else built(causal, float(sink))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sink", [0.0, 0.8, "learned"])
def test_built_heads_are_named(sink: float | str, causal: bool) -> None:
    layer = explored(*heads_of(sink, causal), causal=causal)
    assert [kind.kind for kind in layer.kinds] == [*NAMES[:-1], "mixed"]
    for name, kind in zip(NAMES, layer.kinds):
        if name == "random":
            assert kind.share is None
        else:
            assert kind.share >= 0.5
        if sink and name != "first":
            np.testing.assert_allclose(kind.first, 0.8, atol=0.01)


def test_the_tools_page_says_the_same(tmp_path: Path) -> None:
    """`qkv map --qk` calls the same function: of 60 queries, some of which stand before the first key."""
    rng = np.random.default_rng(9)
    q, k = (rng.standard_normal((1, 3, n, 8)).astype(np.float32) for n in (60, 40))
    words = rng.integers(0, 4, 40)
    words[0] = words[1]  # the word of key 0 has duplicates
    tokens = {"queries": [str(n) for n in range(60)], "keys": [str(n) for n in words]}
    page = page_of(tmp_path, {"q": q[0], "k": k[0]}, {"scale": "1", "causal": "true"}, tokens).read_text(encoding="utf-8")
    packed = re.search(r'data-name="explorer"[^>]*>([^<]*)<', page)[1]
    heads = json.loads(zlib.decompress(base64.b64decode(packed)))["views"][0]["layers"][0]["head_info"]
    for head, kind in zip(heads, explored(q, k, ids=words, causal="bottom_right").kinds, strict=True):
        shares = {name.removesuffix(" share"): x for name, x in head.items() if name.endswith(" share")} | {"first": head["first"]}
        assert head["kind"] == kind.kind and shares.keys() == kind.shares.keys() and ("share" in head) == (kind.share is not None)
        for name, share in kind.shares.items():
            np.testing.assert_allclose(shares[name], share, rtol=1e-5, err_msg=name)


def test_a_mask_that_differs_between_heads_is_refused_as_a_number_too() -> None:
    q, k = built(True, 0.0)
    bias = np.zeros((1, q.shape[1], T, T), np.float32)
    assert explored(q, k, causal=True, bias=bias).kinds is not None
    bias[:, 1, 5:, 3] = -np.inf
    layer = explored(q, k, causal=True, bias=bias)
    assert layer.kinds is None and "a mask that differs between heads" in layer.pages[0][0]["refused"]


def test_random_heads_are_mixed() -> None:
    """Scores of deviation 1 and more, and words of which there are two only: chance alone gives duplicates half of the mass."""
    rng = np.random.default_rng(2)
    for deviation in (1.0, 2.0, 4.0):
        q, k = (rng.standard_normal((1, 16, 300, 32)).astype(np.float32) for _ in range(2))
        for ids in (rng.integers(0, 2, 300), rng.integers(0, 1000, 300)):
            for causal in (True, False):
                layer = explored(q * np.float32(deviation / 32**0.5), k, ids=ids, causal=causal)
                assert {kind.kind for kind in layer.kinds} == {"mixed"}


def test_without_words_two_kinds_are_not_asked_for() -> None:
    kinds = explored(*built(True, 0.0), ids=None, causal=True).kinds
    assert all(name not in kind.shares for kind in kinds for name in ("duplicate", "induction"))
    assert [kind.kind for kind in kinds[:2]] == ["previous", "self"]


@pytest.mark.parametrize("case", ["causal", "padded", "window", "bias", "sinks", "softcap", "grouped", "cached"])
def test_sums_are_those_of_whole_rows(case: str) -> None:
    """Every share against the same sums over whole rows of weights, in float64."""
    rng = np.random.default_rng(3)
    batch, heads, q_len, kv_len = 2, 4, 37 if case != "cached" else 9, 37
    q = rng.standard_normal((batch, heads, q_len, 8)).astype(np.float32)
    k = rng.standard_normal((batch, 2 if case == "grouped" else heads, kv_len, 8)).astype(np.float32)
    ids = rng.integers(0, 6, (batch, kv_len))
    align = "bottom_right" if case == "cached" else True
    options: dict[str, Any] = {"scale": 0.7, "causal": align}
    start, live = [0, 0], np.ones((batch, q_len), bool)
    bias = sinks = None
    if case == "padded":
        start = [5, 0]
        options["mask"] = qkv.Mask.key_starts(start)
        live[0, :5] = False
    elif case == "window":
        options["mask"] = qkv.Mask.window(11, 0)
    elif case == "bias":
        bias = rng.standard_normal((1, heads, q_len, kv_len)).astype(np.float32)
    elif case == "sinks":
        sinks = rng.standard_normal(heads).astype(np.float32)
    elif case == "softcap":
        options["softcap"] = 1.5
    weights = qkv.attention_weights(q, k, bias=bias, sinks=sinks, **options).astype(np.float64)
    offset = kv_len - q_len
    for head, kind in enumerate(capture_call(0, "layer.0", q, k, k, bias, sinks, None, options, Wanted(ids=ids, live=live)).kinds):
        top: dict[str, list[float]] = {name: [0.0, 0.0] for name in kind.shares}
        for b in range(batch):
            for i in np.flatnonzero(live[b]):
                row, p = weights[b, head, i], i + offset
                visible = np.flatnonzero((row > 0) & (np.arange(kv_len) != start[b]))
                if not len(visible):
                    continue
                rest = row[visible].sum()
                top["first"][0] += 1 - rest
                top["first"][1] += 1
                if len(visible) > 1:
                    top["diffuse"][0] += -(row[visible] * np.log(row[visible] / rest)).sum()
                    top["diffuse"][1] += rest * np.log(len(visible))
                asked = {
                    "previous": visible == p - 1, "self": visible == p, "local": abs(visible - p) <= 8,
                    "duplicate": (ids[b][visible] == ids[b][p]) & (visible != p),
                    "induction": (ids[b][visible - 1] == ids[b][p]) & (visible != p) & (visible != p + 1) & (visible > 0),
                }  # fmt: skip
                for name, those in asked.items():
                    if 0 < those.sum() < len(visible) and name in top:
                        top[name][0] += row[visible][those].sum()
                        top[name][1] += rest
        for name, (mass, whole) in top.items():
            # Both sides sum float32 weights in float64; a weight's own error is some units of 2^-24 times its score.
            np.testing.assert_allclose(kind.shares[name], mass / whole, rtol=2e-5, atol=2e-6, err_msg=f"{name} of head {head}")
        assert set(kind.shares) >= {"first", "previous", "self", "duplicate", "induction", "diffuse"}


def test_many_queries_are_drawn() -> None:
    """More than 4,096 queries: shares stay close to those of all, and nothing of Tq x Tk is made."""
    rng = np.random.default_rng(4)
    length = 9000
    angle = 2 * np.pi * np.arange(length) / length
    k = np.stack([np.cos(angle), np.sin(angle)], -1)[None, None].astype(np.float32)
    q = np.roll(k, 1, axis=2) * np.float32(6e8)  # the nearest direction is the key before
    layer = explored(q, k, ids=rng.integers(0, 50, length))
    assert layer.kinds[0].kind == "previous" and layer.captured.map.shape == (1, 1, 64, 64)
