"""layout="bthd": [B, T, H, D], FlashAttention's and JAX's order, gives what [B, H, T, D] gives; and where tokens that stand before
heads are noticed."""

import warnings
from typing import Any

import numpy as np
import pytest
import qkv
from support import numbers, problem


def arrays(framework: str, dtype: str = "float32") -> list[Any]:
    """q, k, v, dout as [B, T, H, D]."""
    q, k, v = problem(1, 2, 4, 7, 9, 8, kv_heads=2, v_width=6)
    made = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v, numbers(9, 2, 4, 7, 6))]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in made]
    if framework == "jax":
        jnp = pytest.importorskip("jax.numpy")
        return [jnp.asarray(x).astype(dtype) for x in made]
    return made


def swapped(x: Any) -> Any:
    if hasattr(x, "data_ptr"):
        return x.transpose(-3, -2)
    return x.swapaxes(-3, -2)


def same(a: Any, b: Any) -> bool:
    to = (lambda x: x.float().numpy()) if hasattr(a, "data_ptr") else np.asarray
    return a.shape == b.shape and type(a) is type(b) and np.array_equal(to(a), to(b))


@pytest.mark.parametrize(
    "framework,dtype",
    (("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16"), ("jax", "float32"), ("jax", "bfloat16")),
)
@pytest.mark.parametrize("batched", (True, False))
def test_tokens_before_heads(framework: str, dtype: str, batched: bool) -> None:
    q, k, v, dout = (x if batched else x[0] for x in arrays(framework, dtype))
    options: dict[str, Any] = {"causal": "bottom_right", "softcap": 5.0}
    heads = [swapped(x) for x in (q, k, v)]
    out, lse, weights = qkv.attention(q, k, v, return_lse=True, weights="all", layout="bthd", **options)
    want, want_lse, want_weights = qkv.attention(*heads, return_lse=True, weights="all", layout="bhtd", **options)
    assert same(out, swapped(want)) and same(lse, want_lse) and same(weights, want_weights)
    assert same(qkv.attention_weights(q, k, layout="bthd", **options), weights)
    got = qkv.attention_backward(dout, q, k, v, out, lse, layout="bthd", **options)
    expected = qkv.attention_backward(swapped(dout), *heads, want, lse, **options)
    assert all(same(a, swapped(b)) for a, b in zip(got[:3], expected[:3], strict=True))
    plan = qkv.attention_plan(q, k, v, layout="bthd", **options)
    assert plan == qkv.attention_plan(*heads, **options)


def test_written_in_place_and_on_a_cache() -> None:
    q, k, v, _ = arrays("numpy")
    out = np.zeros((2, 7, 4, 6), np.float32)
    assert qkv.attention(q, k, v, layout="bthd", out=out) is out
    assert np.array_equal(out, qkv.attention(q, k, v, layout="bthd")) and out.flags.c_contiguous
    cache = qkv.KVCache(num_kv_heads=2, head_dim=8, v_head_dim=6, capacity=9, sequences=2)
    cache.append(np.ascontiguousarray(k.swapaxes(1, 2)), np.ascontiguousarray(v.swapaxes(1, 2)))
    on_cache = qkv.attention(q, cache, layout="bthd", causal="bottom_right")
    want = qkv.attention(np.ascontiguousarray(q.swapaxes(1, 2)), cache, causal="bottom_right")
    assert np.array_equal(on_cache, want.swapaxes(1, 2))


def test_one_head_has_no_layout() -> None:
    x = numbers(1, 5, 8)
    assert np.array_equal(qkv.attention(x, x, x, layout="bthd"), qkv.attention(x, x, x))


def test_heads_and_tokens_in_the_wrong_order_are_noticed() -> None:
    x = numbers(1, 1, 128, 8, 16)
    with pytest.warns(UserWarning, match=r'128 heads and 8 keys: got q \[1, 128, 8, 16\].*layout="bthd"'):
        qkv.attention(x, x, x)
    with pytest.raises(qkv.ShapeError, match=r'say layout="bthd"'):
        qkv.attention(x[:, :100], x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qkv.attention(x, x, x, layout="bhtd")
        qkv.attention(x, x, x, layout="bthd")
        tokens = np.ascontiguousarray(x.swapaxes(1, 2))
        qkv.attention(tokens, tokens, tokens)
        qkv.attention(x[:, :, :1], tokens[:, :1], tokens[:, :1])  # a step of decoding: many heads, one query
        qkv.attention(x[:, :32], x[:, :32], x[:, :32])
    with pytest.raises(ValueError, match='layout must be "bhtd" or "bthd"'):
        qkv.attention(x, x, x, layout="tbhd")
