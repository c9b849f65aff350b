"""bits="invariant": a row of the result has one set of bits, token by token on a cache or all at once. Not: the kernels
(tests/attention/invariant_test.cc).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import qkv

LENGTH, HEADS, KV_HEADS, WIDTH = 150, 4, 2, 24


@pytest.fixture
def invariant() -> Iterator[None]:
    qkv.set_bits("invariant")
    yield
    qkv.set_bits("fast")


def tensors(dtype: str = "float32") -> tuple[np.ndarray, ...]:
    numbers = np.random.default_rng(1)
    return tuple(numbers.standard_normal((1, heads, LENGTH, WIDTH)).astype(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))


def decoded(storage: str | None, **options: str) -> np.ndarray:
    """Token by token, after a prompt of 100 in chunks of 33."""
    q, k, v = tensors()
    cache = qkv.KVCache(
        num_kv_heads=KV_HEADS, head_dim=WIDTH, capacity=LENGTH, **({} if storage is None else {"storage": storage})
    )
    rows = []
    begin = 0
    while begin < LENGTH:
        end = min(begin + (33 if begin < 99 else 1), LENGTH)
        cache.append(k[:, :, begin:end], v[:, :, begin:end])
        rows.append(qkv.attention(q[:, :, begin:end], cache, causal="bottom_right", **options))
        begin = end
    return np.concatenate(rows, axis=2)


def test_decoding_gives_the_bits_of_the_whole_sequence() -> None:
    q, k, v = tensors()
    whole = qkv.attention(q, k, v, causal=True, bits="invariant")
    assert np.array_equal(decoded(None, bits="invariant"), whole)
    fast = qkv.attention(q, k, v, causal=True)
    assert not np.array_equal(decoded(None), fast), "the comparison could not fail"
    np.testing.assert_allclose(whole, fast, rtol=1e-4, atol=1e-6)


def test_set_bits_is_for_every_call(invariant: None) -> None:
    assert qkv.bits() == "invariant"
    q, k, v = tensors()
    assert np.array_equal(decoded(None), qkv.attention(q, k, v, causal=True))
    threads = qkv.num_threads()
    qkv.set_num_threads(threads)
    assert qkv.bits() == "invariant", "another setting must keep it"


def test_a_wrong_name_is_refused() -> None:
    q, k, v = tensors()
    for call in (lambda: qkv.attention(q, k, v, bits="same"), lambda: qkv.set_bits("same")):
        with pytest.raises(ValueError, match='"fast" or "invariant": got "same"'):
            call()
    assert qkv.bits() == "fast"
