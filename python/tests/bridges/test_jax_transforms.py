"""qkv.jax in forward mode and under jax.shard_map. Not: numbers, reverse mode, vmap (test_jax.py)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
import qkv
import qkv.jax
from support import numbers, problem
from test_jax import x64  # noqa: F401  float64 arrays

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "bottom_right", "scale": 0.4},
    "soft cap and window": {"softcap": 2.0, "causal": "top_left", "window": (3, 0)},
    "lengths": {"key_lengths": [9, 4]},
    "mask and bias": {"mask": qkv.Mask.first(5), "bias": numbers(5, 1, 4, 7, 9, dtype=np.float64)},
    "dropout": {"dropout": 0.25, "seed": 7},
    "sinks": {"sinks": numbers(7, 4, dtype=np.float64)},
}


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return qkv.jax.attention(q, k, v, return_lse=True, **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    """<dout, tout> + <dlse, tlse> = <dq, tq> + <dk, tk> + <dv, tv>, for the gradients that test_jax.py checks."""
    inputs = problem(1, 2, 4, 7, 9, 6, kv_heads=2, v_width=5, dtype=np.float64)
    tangents = tuple(numbers(10 + n, *x.shape, dtype=np.float64) for n, x in enumerate(inputs))
    options = OPTIONS[name]
    results, back = jax.vjp(lambda *x: attention(*x, **options), *inputs)
    cotangents = tuple(jnp.asarray(numbers(20 + n, *x.shape, dtype=np.float64)) for n, x in enumerate(results))
    forward = jax.jit(lambda x, t: jax.jvp(lambda *x: attention(*x, forward_mode=True, **options), x, t))
    again, moved = forward(inputs, tangents)
    assert all(np.array_equal(a, b) for a, b in zip(again, results))
    left = sum((c * m).sum() for c, m in zip(cotangents, moved))
    right = sum((g * t).sum() for g, t in zip(back(cotangents), tangents))
    assert np.isclose(left, right, rtol=1e-12, atol=1e-12)


def test_jacobians_tokens_first_and_vmap() -> None:
    q, k, v = problem(1, 1, 2, 3, 4, 4, dtype=np.float64)
    by_columns = jax.jacfwd(lambda q: qkv.jax.attention(q, k, v, forward_mode=True))(q)
    assert np.allclose(by_columns, jax.jacrev(lambda q: qkv.jax.attention(q, k, v))(q), rtol=1e-12, atol=1e-13)
    swapped = [x.swapaxes(1, 2) for x in (q, k, v)]
    moved = jax.jvp(
        lambda q: qkv.jax.attention(q, *swapped[1:], tokens_first=True, forward_mode=True), (swapped[0],), (swapped[0],)
    )[1]
    straight = jax.jvp(lambda q: qkv.jax.attention(q, k, v, forward_mode=True), (q,), (q,))[1]
    assert np.allclose(moved.swapaxes(1, 2), straight, rtol=1e-12, atol=1e-13)
    _, slope = jax.linearize(lambda q: qkv.jax.attention(q, k, v, forward_mode=True), q)
    assert np.allclose(slope(q), straight, rtol=1e-12, atol=1e-13)
    many = np.stack([q, 2 * q])
    each = jax.vmap(lambda q: jax.jvp(lambda q: qkv.jax.attention(q, k, v, forward_mode=True), (q,), (q,))[1])(many)
    assert np.allclose(each[0], straight, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_forward_mode_of_other_types(dtype: str) -> None:
    inputs = [jnp.asarray(x).astype(dtype) for x in problem(1, 1, 2, 7, 9, 6)]
    moved = jax.jvp(lambda *x: qkv.jax.attention(*x, forward_mode=True), inputs, inputs)[1]
    wide = [x.astype("float64") for x in inputs]
    exact = jax.jvp(lambda *x: qkv.jax.attention(*x, forward_mode=True), wide, wide)[1]
    assert str(moved.dtype) == dtype
    assert abs(moved.astype("float64") - exact).max() <= 8 * jnp.finfo(dtype).eps * abs(exact).max()


def test_a_tangent_that_is_not_computed_says_so() -> None:
    q, k, v = problem(1, 1, 2, 3, 4, 4, dtype=np.float64)
    bias = np.zeros((1, 2, 3, 4))
    with pytest.raises(NotImplementedError, match="a tangent of bias is not computed"):
        jax.jvp(lambda b: qkv.jax.attention(q, k, v, bias=b, forward_mode=True), (bias,), (bias,))


def test_shard_map_over_batch_and_heads() -> None:
    """Four devices, in a process of its own; every gradient that of one device. k and v alike on both devices of the heads, and
    sinks and bias, which are alike on some devices, are summed over them."""
    script = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, numpy as np, qkv.jax
    from jax.sharding import Mesh, PartitionSpec as P
    jax.config.update("jax_enable_x64", True)
    shard_map = jax.shard_map if hasattr(jax, "shard_map") else __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("batch", "heads"))
    draw = np.random.default_rng(1).standard_normal
    q, k, v, one, bias = draw((2, 4, 5, 8)), draw((2, 4, 5, 8)), draw((2, 4, 5, 8)), draw((2, 1, 5, 8)), draw((1, 4, 5, 5))

    def local(q, k, v, bias):
        return qkv.jax.attention(q, k, v, causal=True, bias=bias)

    both, batch, heads = P("batch", "heads"), P("batch"), P(None, "heads")
    for arrays, specs in (((q, k, v, bias), (both, both, both, heads)), ((q, one, one, bias), (both, batch, batch, heads))):
        sharded = shard_map(local, mesh=mesh, in_specs=specs, out_specs=both)
        assert np.allclose(jax.jit(sharded)(*arrays), local(*arrays), rtol=1e-12, atol=1e-13)
        slope = lambda f: jax.jvp(f, arrays[:3], arrays[:3])[1]
        forward = lambda q, k, v: qkv.jax.attention(q, k, v, causal=True, forward_mode=True)
        moved = slope(shard_map(forward, mesh=mesh, in_specs=specs[:3], out_specs=both))
        assert np.allclose(moved, slope(forward), rtol=1e-12, atol=1e-13)
        def loss(f):
            return lambda *x: (jax.numpy.sin(f(*x))).sum()
        made = jax.jit(jax.grad(loss(sharded), (0, 1, 2, 3)))(*arrays)
        for a, b in zip(made, jax.grad(loss(local), (0, 1, 2, 3))(*arrays)):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
        def inner(*x):
            return jax.lax.psum(loss(local)(*x), ("batch", "heads"))
        made = jax.grad(shard_map(inner, mesh=mesh, in_specs=specs, out_specs=P()), (0, 1, 2, 3))(*arrays)
        for a, b in zip(made, jax.grad(loss(local), (0, 1, 2, 3))(*arrays)):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
        # A gradient taken within: of what each device holds.
        within = shard_map(lambda *x: jax.grad(loss(local), (0, 1, 2))(*x), mesh=mesh, in_specs=(both, both, both, heads), out_specs=(both,) * 3)
        for a, b in zip(within(q, k, v, bias), jax.grad(loss(local), (0, 1, 2))(q, k, v, bias)):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_sequence_over_devices_has_the_bits_of_one_device() -> None:
    """Four devices, in a process of its own: out, lse and dq bit for bit; dk, dv and dbias are sums over devices."""
    script = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, numpy as np, qkv.jax
    from jax.sharding import Mesh, PartitionSpec as P
    jax.config.update("jax_enable_x64", True)
    shard_map = jax.shard_map if hasattr(jax, "shard_map") else __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    mesh = Mesh(np.array(jax.devices()), ("seq",))
    draw = np.random.default_rng(1).standard_normal
    own, all_of_it = P(None, None, "seq"), P()
    for q_len, kv_len, causal, dropout in ((24, 24, True, 0.3), (8, 40, "bottom_right", 0.0), (4, 12, False, 0.0)):
        q, k, v, bias = draw((2, 4, q_len, 8)), draw((2, 2, kv_len, 8)), draw((2, 2, kv_len, 8)), draw((1, 4, q_len, kv_len))

        def local(q, k, v, bias, axis_name=None):
            options = dict(causal=causal, bias=bias, dropout=dropout, seed=3)
            return qkv.jax.attention(q, k, v, return_lse=True, axis_name=axis_name, **options)

        cut = shard_map(lambda *x: local(*x, "seq"), mesh=mesh, in_specs=(own, own, own, all_of_it), out_specs=(own, own))
        def loss(f):
            def total(*x):
                out, lse = f(*x)
                return jax.numpy.sin(out).sum() + jax.numpy.cos(lse).sum()
            return total
        arrays = (q, k, v, bias)
        for a, b in zip(jax.jit(cut)(*arrays), local(*arrays)):
            assert np.array_equal(a, b)
        made = jax.jit(jax.grad(loss(cut), (0, 1, 2, 3)))(*arrays)
        expected = jax.jit(jax.grad(loss(local), (0, 1, 2, 3)))(*arrays)
        assert np.array_equal(made[0], expected[0])
        for a, b in zip(made[1:], expected[1:]):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
    try:
        jax.eval_shape(shard_map(lambda q: qkv.jax.attention(q, q, q, axis_name="seq", forward_mode=True), mesh=mesh, in_specs=own, out_specs=own), q)
        raise SystemExit("forward mode was not refused")
    except NotImplementedError as error:
        assert "axis_name" in str(error)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_what_is_not_computed_is_refused() -> None:
    """As docs/concepts/limits.md says: a second derivative, forward mode without forward_mode=True, a serialised program."""
    x = jnp.ones((1, 2, 8, 4))
    loss = lambda q: qkv.jax.attention(q, x, x).sum()
    with pytest.raises(NotImplementedError, match="a second derivative is not computed; qkv.torch"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(x)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(loss, (x,), (x,))
    with pytest.raises(ValueError, match="no compatibility guarantees"):
        jax.export.export(jax.jit(loss))(jax.ShapeDtypeStruct(x.shape, x.dtype)).serialize()
