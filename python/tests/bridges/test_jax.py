"""qkv.jax: outputs and gradients have the bits of NumPy's, under jit; vmap, scan, shard_map; against jax.nn.dot_product_attention.
"""

import pathlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
import qkv
import qkv.jax
from support import numbers, problem

attention = qkv.jax.attention


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    """float64 arrays, in this file only."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def as_dtype(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(x).astype(dtype))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "bottom_right"},
    "window": {"causal": "top_left", "window": (3, 0)},
    "scale, softcap": {"scale": 0.4, "softcap": 2.0},
    "lengths": {"key_lengths": [23, 5]},
    "bias": {"bias": numbers(5, 1, 4, 17, 23)},
    "keep": {"keep": numbers(6, 2, 1, 17, 23) > 0},
    "mask": {"mask": qkv.Mask.first(9) | qkv.Mask.causal("top_left")},
    "sinks": {"sinks": numbers(7, 4)},
    "dropout": {"dropout": 0.25, "seed": 2**40 + 7},
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_have_numpys_bits(case: str, dtype: str) -> None:
    q, k, v = (as_dtype(x, dtype) for x in problem(1, 2, 4, 17, 23, 24, kv_heads=2, v_width=16))
    sums = "float64" if dtype == "float64" else "float32"
    options = {name: x.astype(sums) if name in ("bias", "sinks") else x for name, x in CASES[case].items()}
    extra = [name for name in ("bias", "sinks") if name in options]
    dout, dlse = as_dtype(numbers(4, 2, 4, 17, 16), dtype), numbers(8, 2, 4, 17).astype(sums)

    def both(q: Any, k: Any, v: Any, *given: Any) -> Any:
        call = lambda q, k, v, *x: attention(q, k, v, return_lse=True, **(options | dict(zip(extra, x))))
        results, back = jax.vjp(call, q, k, v, *given)
        return results, back((jnp.asarray(dout), jnp.asarray(dlse)))

    (out, lse), gradients = jax.jit(both)(q, k, v, *(options[name] for name in extra))
    want, want_lse = qkv.attention(q, k, v, return_lse=True, **options)
    expected = qkv.attention_backward(dout, q, k, v, want, want_lse, dlse=dlse, need=("q", "k", "v", *extra), **options)
    for ours, theirs in zip((out, lse, *gradients), (want, want_lse, *(x for x in expected if x is not None)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_the_bias_gradient_is_left_out_where_nobody_wants_it() -> None:
    q, k, v = problem(3, 1, 2, 5, 5, 8)
    bias = numbers(5, 1, 2, 5, 5)

    def loss(q: Any, bias: Any) -> Any:
        return attention(q, k, v, bias=bias).sum()

    def wants(argnum: int) -> str:
        lowered = jax.jit(jax.grad(loss, argnums=argnum)).lower(q, bias).as_text()
        return "yes" if "wants_dbias = 1" in lowered else "no" if "wants_dbias = 0" in lowered else "neither"

    assert (wants(0), wants(1)) == ("no", "yes")


@pytest.mark.parametrize("in_axes", [(0, 0, 0, None), (0, None, None, None), (0, 0, 0, 0), (None, 0, 0, 0), (1, 0, 2, None)])
def test_vmap_is_the_loop(in_axes: tuple[Any, ...]) -> None:
    batches = [numbers(n, *((3,) if axis is not None else ()), 2, 4, 9, 8) for n, axis in enumerate(in_axes[:3])]
    bias = numbers(9, *((3,) if in_axes[3] is not None else ()), 1, 1, 9, 9)
    inputs = [np.moveaxis(x, 0, axis) if axis else x for x, axis in zip((*batches, bias), in_axes, strict=True)]

    def gradients(*x: Any) -> Any:
        return jax.value_and_grad(
            lambda q, k, v, b: jnp.sin(attention(q, k, v, bias=b, causal=True)).sum(), argnums=(0, 1, 2, 3)
        )(*x)

    values, grads = jax.jit(jax.vmap(gradients, in_axes=in_axes))(*inputs)
    for n in range(3):
        one = [x if axis is None else np.take(x, n, axis) for x, axis in zip(inputs, in_axes, strict=True)]
        value, grad = gradients(*one)
        np.testing.assert_allclose(values[n], value, rtol=1e-5)  # the sum over out, which XLA orders as it likes
        for a, b in zip(grads, grad, strict=True):
            np.testing.assert_array_equal(a[n], b)


def test_vmap_twice_masks_and_dropout() -> None:
    x = numbers(1, 2, 3, 2, 2, 7, 8)
    mask = qkv.Mask.key_lengths([7, 3])
    twice = jax.vmap(jax.vmap(lambda q: attention(q, q, q, mask=mask, dropout=0.5, seed=3)))(x)
    # Sequences count on from call to call, as in one batch.
    together = x.reshape(12, 2, 7, 8)
    want = attention(together, together, together, key_lengths=[7, 3] * 6, dropout=0.5, seed=3)
    np.testing.assert_array_equal(np.asarray(twice).reshape(12, 2, 7, 8), want)


def test_inside_scan_and_checkpoint() -> None:
    x = numbers(1, 1, 2, 6, 8, dtype=np.float64)

    def layers(x: Any, length: int) -> Any:
        step = jax.checkpoint(lambda y, _: (y + attention(y, y, y, causal=True), None))
        return jax.lax.scan(step, x, length=length)[0].sum()

    by_hand = jax.grad(lambda x: (x + attention(x, x, x, causal=True)).sum())
    np.testing.assert_array_equal(jax.jit(jax.grad(layers), static_argnums=1)(x, 1), by_hand(x))
    difference = (layers(x + 1e-6, 3) - layers(x - 1e-6, 3)) / 2e-6
    np.testing.assert_allclose(jax.grad(layers)(x, 3).sum(), difference, rtol=1e-6)  # 1e-12 / 1e-6 lost in the difference


def test_a_traced_seed_is_the_same_pattern() -> None:
    q, k, v = problem(1, 1, 2, 9, 9, 8)
    function = jax.jit(lambda q, seed: attention(q, k, v, dropout=0.5, seed=seed))
    np.testing.assert_array_equal(function(q, np.array([7, 1], np.uint32)), attention(q, k, v, dropout=0.5, seed=2**32 + 7))
    assert not np.array_equal(function(q, jax.random.key(1)), function(q, jax.random.key(2)))


NN_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": 3},
    "causal window": {"local_window_size": (2, 1), "is_causal": True},
    "lengths": {"key_value_seq_lengths": np.array([11, 4], np.int32), "query_seq_lengths": np.array([13, 6], np.int32)},
    "bias, mask": {"bias": numbers(5, 2, 1, 13, 11), "mask": numbers(6, 1, 4, 13, 11) > 0.5},
    "empty rows": {"mask": np.zeros((1, 1, 13, 11), bool)},
    "scale": {"scale": 0.7},
}


@pytest.mark.parametrize("case", NN_CASES)
def test_dot_product_attention_is_jaxs(case: str) -> None:
    q, k, v = numbers(1, 2, 13, 4, 8), numbers(2, 2, 11, 2, 8), numbers(3, 2, 11, 2, 8)
    dout = numbers(4, 2, 13, 4, 8)

    def results(function: Any, dtype: Any) -> dict[str, Any]:
        options = {name: x.astype(dtype) if name == "bias" else x for name, x in NN_CASES[case].items()}
        out, back = jax.vjp(lambda *x: function(*x, **options), *(jnp.asarray(x, dtype) for x in (q, k, v)))
        return {"out": out, **dict(zip(("dq", "dk", "dv"), back(jnp.asarray(dout, dtype)), strict=True))}

    # jax.nn computes its softmax in float32 for float64 too: exact within float32, which is all that is claimed here.
    exact, naive = results(jax.nn.dot_product_attention, np.float64), results(jax.nn.dot_product_attention, np.float32)
    fast = results(qkv.jax.dot_product_attention, np.float32)
    for name, value in fast.items():  # out, dq, dk, dv: sums of products of O(1) numbers
        error, theirs = (float(abs(x[name] - exact[name]).max()) for x in (fast, naive))
        assert value.shape == exact[name].shape
        assert error <= (3 if name[0] == "d" else 2) * theirs + 32 * np.finfo(np.float32).eps * max(1.0, float(abs(exact[name]).max())), name


def test_without_batch_axis_and_residual() -> None:
    q, k, v = numbers(1, 5, 4, 8), numbers(2, 5, 2, 8), numbers(3, 5, 2, 8)
    out, lse = qkv.jax.dot_product_attention(q, k, v, return_residual=True)
    want, want_lse = jax.nn.dot_product_attention(q, k, v, return_residual=True)
    assert out.shape == want.shape and lse.shape == want_lse.shape
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)
    lengths = {"query_seq_lengths": jnp.array([3], jnp.int32), "key_value_seq_lengths": jnp.array([4], jnp.int32), "return_residual": True}
    _, lse = qkv.jax.dot_product_attention(q[None], k[None], v[None], **lengths)
    _, want_lse = jax.nn.dot_product_attention(q[None], k[None], v[None], **lengths)
    np.testing.assert_allclose(lse[:, :3], want_lse[:, :3], rtol=1e-5)
    assert bool((lse[:, 3:] == -jnp.inf).all()) and bool((want_lse[:, 3:] < -1e38).all())
    with pytest.raises(ValueError, match="local_window_size must be at least 0"):
        qkv.jax.dot_product_attention(q, k, v, local_window_size=(-1, 3))


def test_empty_sizes() -> None:
    for b, t in ((0, 3), (2, 0)):
        x = jnp.zeros((b, 2, t, 8))
        assert jax.jit(jax.grad(lambda x: attention(x, x, x).sum()))(x).shape == x.shape


def test_errors_say_what_to_do() -> None:
    q, k, v = problem(1, 1, 2, 5, 7, 8)
    with pytest.raises(ValueError, match="bottom_right"):
        attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match=r'window=\(1, 1\) needs Tq == Tk.*mask=qkv.Mask.window\(1, 1, "bottom_right"\)'):
        attention(q, k, v, window=(1, 1))
    with pytest.raises(TypeError, match="key_lengths must hold whole numbers: got float"):
        attention(q, k, v, key_lengths=[2.5])
    with pytest.raises(TypeError, match="keep="):
        attention(q, k, v, mask=np.ones((5, 7), bool))
    with pytest.raises(TypeError, match="element type"):
        attention(q, k.astype(np.float64), v)
    with pytest.raises(ValueError, match=r"bias must be \[B, H, Tq, Tk\]"):
        attention(q, k, v, bias=np.zeros((5, 7)))
    with pytest.raises(ValueError, match="multiple"):
        attention(numbers(1, 1, 3, 5, 8), k, v)
    with pytest.raises(ValueError, match="seed"):
        attention(q, k, v, dropout=0.1)
    for options, kind, text in (
        ({"window": (1.9, 0)}, TypeError, r"window must be two whole numbers: got \(1.9, 0\)"),
        ({"window": (1, 0, 99)}, ValueError, r"window must be \(left, right\)"),
        ({"return_lse": "low"}, ValueError, "return_lse must be False or True: got 'low'"),
        ({"dropout": 0.5, "seed": -1}, TypeError, "below 2\\^64 from 0 on: got -1"),
        ({"dropout": 0.5, "seed": 2**64}, TypeError, "below 2\\^64 from 0 on"),
        ({"dropout": 0.5, "seed": 1.5}, TypeError, "seed must be an int, a key or uint32.*got 1.5"),
        ({"sinks": np.ones(2) + 1j}, TypeError, "sinks must hold real numbers: got complex"),
        ({"bias": np.zeros((1, 1, 5, 7)) + 1j}, TypeError, "bias must hold real numbers: got complex"),
        ({"sinks": np.ones(1)}, ValueError, r"sinks must be \[H\] = \[2\]: got \[1\]"),
    ):
        with pytest.raises(kind, match=text):
            attention(q, k, v, **options)
    with pytest.raises(ValueError, match=r"key_lengths must be \[B\] = \[2\]: got \[1\]"):
        attention(*(np.concatenate([x, x]) for x in (q, k, v)), key_lengths=[3])
    with pytest.raises(TypeError, match="local_window_size must be two whole numbers"):
        qkv.jax.dot_product_attention(q, q, q, local_window_size=(1.9, 0))
    with pytest.raises(TypeError, match="query_seq_lengths must hold whole numbers: got float"):
        qkv.jax.dot_product_attention(q, q, q, query_seq_lengths=np.array([2.5]))
    for length in (9, 2**32 + 3, -(2**32) + 3):
        with pytest.raises(Exception, match="key_lengths"):  # only running can tell
            attention(q, k, v, key_lengths=np.array([length])).block_until_ready()
    with pytest.raises(Exception, match="head_dim must be at least 1"):
        attention(q[..., :0], k[..., :0], v).block_until_ready()


def test_a_mask_of_another_process_is_refused() -> None:
    x = numbers(1, 1, 2, 5, 8)
    static = qkv.jax._Static(False, 0, -1, -1, 1.0, 0.0, 0, 0.0, 12345, False)  # a number that this process did not give out
    with pytest.raises(Exception, match="another process"):
        jax.block_until_ready(qkv.jax._compiled(static, x, x, x, (None,) * 5))


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
        def loss(f):
            return lambda *x: (jax.numpy.sin(f(*x))).sum()
        def inner(*x):
            return jax.lax.psum(loss(local)(*x), ("batch", "heads"))
        alone = jax.jit(jax.grad(loss(local), (0, 1, 2, 3)))(*arrays)
        for cut in (loss(sharded), shard_map(inner, mesh=mesh, in_specs=specs, out_specs=P())):
            for a, b in zip(jax.jit(jax.grad(cut, (0, 1, 2, 3)))(*arrays), alone):
                assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
        # A gradient taken within: of what each device holds.
        within = jax.jit(shard_map(lambda *x: jax.grad(loss(local), (0, 1, 2))(*x), mesh=mesh, in_specs=(both, both, both, heads), out_specs=(both,) * 3))
        for a, b in zip(within(q, k, v, bias), jax.jit(jax.grad(loss(local), (0, 1, 2)))(q, k, v, bias)):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_what_is_not_computed_is_refused() -> None:
    """As docs/concepts/limits.md says: a second derivative, forward mode, a serialised program."""
    x = jnp.ones((1, 2, 8, 4))
    loss = lambda q: qkv.jax.attention(q, x, x).sum()
    with pytest.raises(NotImplementedError, match="a second derivative is not computed; qkv.torch"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(x)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(loss, (x,), (x,))
    with pytest.raises(ValueError, match="no compatibility guarantees"):
        jax.export.export(jax.jit(loss))(jax.ShapeDtypeStruct(x.shape, x.dtype)).serialize()


def test_the_interface_is_xlas(tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    include = pathlib.Path(jax.ffi.include_dir())
    ours = pathlib.Path(__file__).parents[2] / "src" / "jax" / "xla_ffi.h"
    if compiler is None or not (include / "xla/ffi/api/c_api.h").exists() or not ours.exists():
        pytest.skip("needs a compiler, jax's headers and the sources")
    pairs = [
        ("Extension", "Extension_Base", "struct_size type next", "struct_size type next"),
        ("Version", "Api_Version", "major_version minor_version", "major_version minor_version"),
        ("Metadata", "Metadata", "api_version traits", "api_version traits"),
        ("MetadataExtension", "Metadata_Extension", "metadata", "metadata"),
        ("ErrorCreateArgs", "Error_Create_Args", "message code", "message errc"),
        ("Api", "Api", "api_version error_create", "api_version XLA_FFI_Error_Create"),
        ("Buffer", "Buffer", "type data rank sizes", "dtype data rank dims"),
        ("Buffers", "Args", "count kinds values", "size types args"),
        ("Buffers", "Rets", "count kinds values", "size types rets"),
        ("Scalar", "Scalar", "type value", "dtype value"),
        ("Attributes", "Attrs", "count kinds names values", "size types names attrs"),
        ("CallFrame", "CallFrame", "api stage operands results attributes", "api stage args rets attrs"),
    ]
    lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{ours}"', "using namespace qkv::python;"]
    for mine, theirs, own, other in pairs:
        for a, b in zip(own.split(), other.split(), strict=True):
            lines.append(f"static_assert(offsetof(xla::{mine}, {a}) == offsetof(XLA_FFI_{theirs}, {b}));")
    for mine, theirs in (("kPred", "PRED"), ("kS32", "S32"), ("kS64", "S64"), ("kU32", "U32"), ("kU64", "U64"), ("kF16", "F16"), ("kF32", "F32"), ("kF64", "F64"), ("kBF16", "BF16")):  # fmt: skip
        lines.append(f"static_assert(int{{xla::{mine}}} == int{{XLA_FFI_DataType_{theirs}}});")
    for mine, theirs in (
        ("kInvalidArgument", "INVALID_ARGUMENT"),
        ("kUnimplemented", "UNIMPLEMENTED"),
        ("kInternal", "INTERNAL"),
    ):
        lines.append(f"static_assert(int{{xla::{mine}}} == int{{XLA_FFI_Error_Code_{theirs}}});")
    source = tmp_path / "layout.cc"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", str(source)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_traced_scales_long_lengths_and_float_masks() -> None:
    q, k, v = (jnp.asarray(numbers(n, 2, 5, 3, 8), jnp.float32) for n in range(3))

    def loss(attend: Any) -> Any:
        return lambda scale: (attend(q, k, v, scale=scale) ** 2).sum()

    both = (qkv.jax.dot_product_attention, jax.nn.dot_product_attention)
    for made, wanted in zip(*(jax.jit(jax.value_and_grad(loss(f)))(0.3) for f in both)):
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
    long = jnp.asarray([3, 9], jnp.int32)
    made, wanted = (f(q, k, v, key_value_seq_lengths=long) for f in both)
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    with pytest.raises(TypeError, match="keep must be bool"):
        qkv.jax.attention(q, k, v, keep=jnp.zeros((1, 1, 1, 1)))
