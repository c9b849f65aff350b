"""Masks, lists of keys, caches, ragged batches, linear attention and rotary positions as Python calls them."""

import numpy as np
import pytest
import qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from support import MASKS, numbers, problem


@pytest.mark.parametrize("name", MASKS)
def test_masks_mean_what_they_say(name: str) -> None:
    mask, keep = MASKS[name]
    assert np.array_equal(mask.to_dense(6, 6)[0, 0], np.broadcast_to(keep, (6, 6)))
    q, k, v = problem(1, 1, 2, 6, 6, 4)
    dense = np.broadcast_to(keep, (1, 1, 6, 6))
    assert np.allclose(qkv.attention(q, k, v, mask=mask), qkv.attention(q, k, v, keep=dense), atol=1e-6)


def test_a_mask_draws_itself() -> None:
    assert repr(qkv.Mask.sliding(2)).splitlines()[1:4] == ["1 0 0 0 0 0", "1 1 0 0 0 0", "0 1 1 0 0 0"]
    assert repr(qkv.Mask.keep(np.ones((1, 1, 50, 50), bool))) == "keep[1, 1, 50, 50]"
    assert qkv.Mask.causal("bottom_right").draw(2, 4) == "1 1 1 0\n1 1 1 1"
    assert "sequence 1, head 0" in qkv.Mask.key_lengths([1, 2]).draw(1, 2, batch=2)


def test_a_mask_keeps_its_array() -> None:
    mask = qkv.Mask.keep(np.tril(np.ones((50, 50), bool)), "qk") & qkv.Mask.first(40)
    q, k, v = problem(2, 1, 1, 50, 50, 4)
    expected = qkv.attention(q, k, v, keep=np.tril(np.ones((1, 1, 50, 50), bool)) & (np.arange(50) < 40))
    trash = [np.zeros((50, 50), bool) for _ in range(100)]
    assert np.array_equal(qkv.attention(q, k, v, mask=mask), expected) and len(trash) == 100


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
    torch = pytest.importorskip("torch")
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
    with pytest.raises(ValueError, match="no gradient"):
        qkv.top_keys(q.requires_grad_(), k, weights, 2)


def test_errors_of_top_keys() -> None:
    q, k, weights = np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 5, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    for call, kind, words in (
        (lambda: qkv.top_keys(q, k[0], weights, 2), qkv.ShapeError, "k_index"),
        (lambda: qkv.top_keys(q.astype(np.float64), k.astype(np.float64), weights, 2), TypeError, "float64"),
        (lambda: qkv.top_keys(q, k, weights, 2, offset=1), qkv.OptionError, "offset"),
        (lambda: qkv.top_keys(q, k, weights, 2, causal=True, offset=1.5), TypeError, "offset must be .*got 1.5"),
        (lambda: qkv.top_keys(q, k, weights, 2.5), TypeError, "k must be a number of keys, a whole number: got 2.5"),
        (lambda: qkv.top_keys(q, k, weights, -1), qkv.OptionError, "k must be at least 1: got -1"),
        (lambda: qkv.top_keys(q, k, weights, 2, mask=np.ones((3, 5))), TypeError, "mask must be a qkv.Mask: got ndarray"),
    ):
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_cached_decode_equals_the_full_forward(layout: str, storage: str) -> None:
    q, k, v = problem(3, 2, 4, 20, 20, 8, kv_heads=2)
    sizes = {"capacity": 20} if layout == "contiguous" else {"page_size": 4, "pages": 12}
    cache = qkv.KVCache(num_kv_heads=2, head_dim=8, storage=storage, layout=layout, sequences=2, **sizes)
    steps = []
    for begin, end in ((0, 7), (7, 8), (8, 20)):
        cache.append(k[:, :, begin:end], v[:, :, begin:end])
        steps.append(qkv.attention(q[:, :, begin:end], cache, causal="bottom_right"))
    stored = [cache.read(s) for s in cache.sequences]
    full = qkv.attention(q, np.stack([x for x, _ in stored]), np.stack([x for _, x in stored]), causal=True)
    assert np.allclose(np.concatenate(steps, 2), full, atol=2e-6)
    errors = cache.error_bound()
    assert abs(np.stack([x for x, _ in stored]) - k).max() <= errors[0] and abs(np.stack([x for _, x in stored]) - v).max() <= errors[1]
    bound = cache.error_bound(q.astype(np.float64))
    assert bound.shape == q.shape[:3] and (bound[..., None] >= abs(full - qkv.attention(q, k, v, causal=True)) - 2e-6).all()
    assert (bound == 0).all() == (storage == "float32") and np.isclose(cache.error_bound(q, scale=0).max(), errors[1])
    assert cache.lengths == [20, 20] and "lengths=[20, 20]" in repr(cache)


def test_a_cache_gives_what_its_tensors_give() -> None:
    """lse, lse_low, weights of every kind and captures, of sequences in another order, one of them shorter."""
    q, k, v = problem(5, 2, 4, 17, 20, 8, kv_heads=2)
    cache = qkv.KVCache(num_kv_heads=2, head_dim=8, layout="paged", page_size=8, pages=8, sequences=2)
    cache.append(k, v)
    cache.truncate(1, 18)
    options = {"causal": "bottom_right", "scale": 6.0}
    for weights in ("all", "applied", "scores", qkv.Capture(statistics=True, top_k=2, rows=(2,))):
        got = qkv.attention(q, cache, return_lse="low", weights=weights, sequences=[1, 0], **options)
        for n, length in enumerate((18, 20)):
            own = [x[1 - n : 2 - n, :, :length] for x in (k, v)]
            want = qkv.attention(q[n : n + 1], *own, return_lse="low", weights=weights, **options)
            for a, b in zip(got[:3], want):
                np.testing.assert_allclose(a[n], b[0], rtol=1e-5, atol=1e-6)
            if isinstance(weights, str):
                np.testing.assert_allclose(got[3][n, :, :, :length], want[3][0], rtol=1e-5, atol=1e-6)
                assert (got[3][n, :, :, length:] == (-np.inf if weights == "scores" else 0)).all()
            else:
                np.testing.assert_allclose(got[3].top_weights[n], want[3].top_weights[0], rtol=1e-5)
                np.testing.assert_allclose(got[3].rows[n, ..., :length], want[3].rows[0], rtol=1e-5, atol=1e-7)


def test_values_may_lie_in_the_keys() -> None:
    q, k, _ = problem(8, 1, 4, 3, 9, 8, kv_heads=1)
    cache = qkv.KVCache(num_kv_heads=1, head_dim=8, v_head_dim=5, values_in_keys=True, capacity=9)
    cache.append(k)
    out = qkv.attention(q, cache, causal="bottom_right")
    assert np.allclose(out, qkv.attention(q, k, k[..., :5], causal="bottom_right"), atol=1e-6) and cache.nbytes == 9 * 8 * 4
    with pytest.raises(ValueError, match="v must be null: it is read from k"):
        cache.append(k, k[..., :5])


def test_a_full_cache_says_so_and_stays() -> None:
    cache = qkv.KVCache(num_kv_heads=1, head_dim=4, capacity=5)
    cache.append(numbers(1, 1, 1, 4, 4), numbers(2, 1, 1, 4, 4))
    with pytest.raises(qkv.CacheFullError):
        cache.append(numbers(1, 1, 1, 2, 4), numbers(2, 1, 1, 2, 4))
    assert cache.lengths == [4]
    assert issubclass(qkv.CacheFullError, RuntimeError)


def test_errors_of_a_cache() -> None:
    cache, q = qkv.KVCache(num_kv_heads=1, head_dim=4, capacity=5), numbers(1, 1, 1, 2, 4)
    cache.append(q, q)
    for call, kind, words in (
        (lambda: qkv.KVCache(), TypeError, "head_dim, the width D of the keys, must be given"),
        (lambda: qkv.KVCache(head_dim=4, layout="ring", window=4, capacity=2), ValueError, "capacity is not of a ring"),
        (lambda: cache.read(0, 9), qkv.OptionError, r"\[KVCache.read\] tokens .*in 0..2: got begin 9"),
        (lambda: cache.error_bound(q, scale="x"), TypeError, "scale must be a number, beside q: got 'x'"),
        (lambda: cache.error_bound(scale=2.0), qkv.OptionError, "got 2.0 without q"),
        (lambda: qkv.attention(q, cache, sequences="a"), TypeError, r"\[attention\] sequences must be a sequence of whole numbers: got 'a'"),
    ):
        with pytest.raises(kind, match=words):
            call()


def test_forks_share_pages() -> None:
    q, k, v = problem(4, 2, 4, 1, 24, 8, kv_heads=2)
    cache = qkv.KVCache(num_kv_heads=2, head_dim=8, layout="paged", page_size=8, pages=8, max_sequences=2)
    cache.append(k[:1, :, :16], v[:1, :, :16])
    pages = cache.free_pages
    assert cache.fork(0) == 1 and cache.free_pages == pages
    cache.append(k[:, :, 16:], v[:, :, 16:])
    assert np.allclose(qkv.attention(q, cache), qkv.attention(q, np.stack([k[0], np.concatenate([k[0, :, :16], k[1, :, 16:]], 1)]),
                                                         np.stack([v[0], np.concatenate([v[0, :, :16], v[1, :, 16:]], 1)])), atol=1e-6)
    cache.truncate(1, 10)
    cache.free(0)
    assert cache.sequences == [1] and cache.lengths == [10]


def test_a_ring_pins_its_first_keys_and_drops_none_in_silence() -> None:
    q, k, v = problem(6, 1, 2, 30, 30, 8)
    mask = qkv.Mask.causal("bottom_right") & (qkv.Mask.window(5, 0, "bottom_right") | qkv.Mask.first(4))
    expected = qkv.attention(q[:, :, -1:], k, v, mask=mask)
    for first in (4, 3, 0):
        ring = qkv.KVCache(num_kv_heads=2, head_dim=8, layout="ring", window=6, first=first)
        for t in range(30):
            ring.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
        if first == 4:
            assert np.allclose(qkv.attention(q[:, :, -1:], ring, mask=mask), expected, atol=1e-6)
            assert np.allclose(qkv.attention(q[:, :, -1:], ring), expected, atol=1e-6)
        else:
            with pytest.raises(ValueError, match=f"the mask needs key {first}.*KVCacheConfig::first.*first {first}"):
                qkv.attention(q[:, :, -1:], ring, mask=mask)


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5), causal=st.booleans(), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_ragged_batches_are_their_sequences(lengths: list[int], causal: bool, seed: int) -> None:
    total, offsets = sum(lengths), np.cumsum([0, *lengths])
    q, k, v, dout = (numbers(seed + n, total, 2, 4) for n in range(4))
    out, lse = qkv.attention_varlen(q, k, v, offsets, causal=causal, return_lse=True)
    gradients = qkv.attention_varlen_backward(dout, q, k, v, out, lse, offsets, causal=causal)
    for begin, end in zip(offsets, offsets[1:], strict=False):
        part = [x[begin:end].swapaxes(0, 1) for x in (q, k, v)]
        own, own_lse = qkv.attention(*part, causal=causal, return_lse=True)
        own_gradients = qkv.attention_backward(dout[begin:end].swapaxes(0, 1), *part, own, own_lse, causal=causal)
        assert np.array_equal(out[begin:end].swapaxes(0, 1), own)
        assert np.array_equal(gradients.dk[begin:end].swapaxes(0, 1), own_gradients.dk)


@pytest.mark.parametrize("kind", ["t5", "relative"])
def test_what_sequences_share_arrives(kind: str) -> None:
    """Of two sequences that are alike, gradients of what they share are twice those of one on dense tensors."""
    table, more = numbers(30, 9, 4, dtype="float64"), {"max_distance": 6} if kind == "t5" else {}
    shared = {"bias": numbers(31, 1, 4, 9, 9, dtype="float64"), "sinks": numbers(32, 4, dtype="float64")}
    shared["position_bias"] = getattr(qkv.PositionBias, kind)(table, align="top_left", **more)
    options = {"need": ("q", "k", "v", "bias", "sinks", "position_bias"), **shared}
    one, dlse = [numbers(33 + n, 9, 4, 6, dtype="float64") for n in range(4)], numbers(37, 9, 4, dtype="float64")
    dense = [x.swapaxes(0, 1)[None] for x in one]
    whole = qkv.attention_backward(
        dense[3], *dense[:3], *qkv.attention(*dense[:3], return_lse=True, **shared), dlse=dlse.T[None], **options
    )
    q, k, v, dout, given = (np.concatenate([x] * 2) for x in (*one, dlse))
    results = qkv.attention_varlen(q, k, v, [0, 9, 18], return_lse=True, **shared)
    both = qkv.attention_varlen_backward(dout, q, k, v, *results, [0, 9, 18], dlse=given, **options)
    for name in ("dbias", "dsinks", "dposition_bias"):
        assert np.allclose(getattr(both, name), 2 * getattr(whole, name), rtol=1e-11, atol=1e-12) and getattr(both, name).any()
    assert np.allclose(both.dk[:9], whole.dk[0].swapaxes(0, 1), rtol=1e-11, atol=1e-12)


def test_linear_attentions_backward_says_what_it_needs() -> None:
    q, k, v = problem(7, 1, 2, 5, 5, 4)
    with pytest.raises(ValueError, match="return_normalizer=True"):
        qkv.linear_attention_backward(v, q, k, v, causal=True)
    out, normalizer = qkv.linear_attention(q, k, v, causal=True, return_normalizer=True)
    assert qkv.linear_attention_backward(v, q, k, v, out, normalizer, causal=True).dq.shape == q.shape


def test_a_state_of_linear_attention_may_be_a_tuple() -> None:
    q, k, v = problem(7, 1, 2, 5, 5, 4)
    state = qkv.linear_attention(q, k, v, return_state=True)[1]
    found = []
    for one in (state, tuple(state)):
        out, normalizer = qkv.linear_attention(q, k, v, state=one, return_normalizer=True)
        found.append(qkv.linear_attention_backward(v, q, k, v, out, normalizer, state=one, dfinal=one))
    assert np.array_equal(found[0].dinitial.z, found[1].dinitial.z) and np.array_equal(found[0].dk, found[1].dk)
    with pytest.raises(TypeError, match=r"\[linear_attention\] state must be a LinearState or a tuple \(kv, z\): got ndarray"):
        qkv.linear_attention(q, k, v, state=state.kv)


def test_random_features_are_orthogonal() -> None:
    features = qkv.random_features((8, 8), seed=3, dtype=np.float64)
    gram = features @ features.T
    assert np.allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-9)


def test_rotary_turns_and_turns_back() -> None:
    x = numbers(11, 1, 2, 5, 8, dtype="float64")
    with pytest.raises(TypeError, match="'bases'; there are rotary_dim, base,"):
        qkv.Rotary(8, bases=500.0)
    with pytest.raises(qkv.OptionError, match="factor needs a scaling"):
        qkv.Rotary(8, factor=4.0)
    rotary = qkv.Rotary(8)
    y = rotary(x, offset=3)
    angle = (3 + np.arange(5))[:, None] * rotary.frequencies
    a, b = x[..., :4], x[..., 4:]
    expected = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
    assert np.allclose(y, expected, atol=1e-14)
    assert np.allclose(rotary.backward(y, offset=3), x, atol=1e-14)
    assert np.allclose(rotary(x, ids=np.arange(3, 8)[None]), y, atol=1e-15)
    for pair in ({"offset": 7, "offsets": [1]}, {"offset": 7, "ids": np.arange(5)[None]}, {"offsets": [1], "ids": np.arange(5)[None]}):
        with pytest.raises(qkv.OptionError, match="offset, offsets and ids exclude each other"):
            rotary.backward(x, **pair)
