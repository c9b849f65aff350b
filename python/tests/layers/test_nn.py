"""qkv.nn: equalities between forms, masks, caches, types, errors; arguments that layers require, and how layers print."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import qkv
from qkv import nn
from support import numbers

B, T, E = 2, 13, 24
WITH_HEADS = (nn.MultiHeadAttention, nn.GroupedQueryAttention)


def half(seed: int, *shape: int) -> np.ndarray:
    return numbers(seed, *shape).astype(pytest.importorskip("ml_dtypes").bfloat16)


def test_masks_of_the_core_module() -> None:
    x, layer, lengths = numbers(1, B, T, E), nn.MultiHeadAttention(E, 4, seed=1), [T, 5]
    expected = layer(x, keep=np.arange(T) < np.array(lengths)[:, None], causal=True)
    assert np.array_equal(layer(x, key_lengths=lengths, causal=True), expected)
    assert np.array_equal(layer(x, mask=qkv.Mask.key_lengths(lengths) & qkv.Mask.causal()), expected)
    assert np.array_equal(layer(x, drop=np.arange(T) >= np.array(lengths)[:, None], mask=qkv.Mask.causal()), expected)
    assert not np.array_equal(layer(x), expected)
    band = layer(x, window=(2, 0))
    assert np.array_equal(band, layer(x, mask=qkv.Mask.sliding(3)))
    per_head = np.random.default_rng(1).random((B, 4, T, T)) < 0.8
    assert np.array_equal(layer(x, keep=per_head), layer(x, mask=qkv.Mask.keep(per_head)))
    v4 = nn.SelfAttentionV4(E, seed=1)
    assert np.array_equal(v4(x, keep=per_head[:, 0]), v4(x, keep=per_head[:, :1]))


def test_masks_live_until_backward() -> None:
    x, dy, layer = numbers(1, B, T, E), numbers(2, B, T, E), nn.MultiHeadAttention(E, 4, seed=1)
    keep = np.random.default_rng(1).random((B, 4, T, T)) < 0.5
    first, second = nn.Saved(), nn.Saved()
    layer(x, keep=keep.copy(), saved=first)
    waste = [np.ones((B, 4, T, T), bool) for _ in range(50)]
    dx = layer.backward(dy, first)
    layer(x, keep=keep, saved=second)
    assert np.array_equal(dx, layer.backward(dy, second))
    assert len(waste) == 50


@pytest.mark.parametrize("rule,weight", [("mean", 1 / T), ("zero", 0.0), ("nan", np.nan)])
def test_empty_rows(rule: str, weight: float) -> None:
    layer, x = nn.MultiHeadAttention(E, 2, empty_row=rule), numbers(1, 1, T, E)
    _, weights = layer(x, key_lengths=[0], weights="all")
    assert np.allclose(weights, weight, equal_nan=True)
    _, weights = nn.MultiHeadAttention(E, 2)(x, key_lengths=[0], weights="all", empty_row=rule)
    assert np.allclose(weights, weight, equal_nan=True)


def test_rotary_positions() -> None:
    turned = nn.GroupedQueryAttention(E, 4, 2, rotary=qkv.Rotary(6), seed=3)
    x = numbers(1, B, T, E)
    assert np.array_equal(turned(x), nn.GroupedQueryAttention(E, 4, 2, rotary=True, seed=3)(x))
    assert not np.allclose(turned(x), nn.GroupedQueryAttention(E, 4, 2, seed=3)(x), atol=1e-4)
    ids = np.arange(T) + 5
    assert np.array_equal(turned(x, position_ids=ids), turned(x, offset=5))
    assert np.array_equal(turned(x, offsets=[5, 5]), turned(x, offset=5))
    assert np.allclose(turned(x, offset=5), turned(x), atol=1e-5)  # only distances count


def test_linear_reads_any_strides() -> None:
    linear = nn.Linear(E, 5)
    x = numbers(1, 6, E)
    for turned in (np.asfortranarray(x), np.repeat(x, 2, 0)[::2], x[::-1][::-1]):
        assert np.array_equal(linear(turned), linear(x))
    assert np.array_equal(linear(x[::-1]), linear(x)[::-1])
    one = np.broadcast_to(x[:1], x.shape)
    saved = nn.Saved()
    assert np.array_equal(linear(one, saved=saved), linear(one.copy()))
    assert np.array_equal(linear.backward(np.broadcast_to(np.float32(1), (6, 5)), saved), linear.backward(np.ones((6, 5), np.float32), saved))


def test_without_a_batch_and_strided() -> None:
    layer, x = nn.MultiHeadAttention(E, 4, seed=1), numbers(1, B, T, E)
    y, weights = layer(x[1], weights="all")
    assert y.shape == (T, E) and weights.shape == (4, T, T)
    assert np.array_equal(y, layer(x)[1])
    wide = np.zeros((B, 2 * T, E), np.float32)
    wide[:, ::2] = x
    assert np.array_equal(layer(wide[:, ::2]), layer(x))
    turned = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    first, second = nn.Saved(), nn.Saved()
    assert np.array_equal(layer(turned, saved=first), layer(x, saved=second))
    assert np.array_equal(layer.backward(turned, first), layer.backward(x, second))
    linear = nn.Linear(E, 5)
    assert np.array_equal(linear(x[:, ::2]), linear(x)[:, ::2])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)], ids=str)
def test_no_tokens(shape: tuple[int, int]) -> None:
    layer, saved, x = nn.GroupedQueryAttention(E, 4, 2), nn.Saved(), numbers(1, *shape, E)
    y = layer(x, saved=saved)
    assert y.shape == x.shape and layer.backward(y, saved).shape == x.shape
    assert not any(g.any() for g in layer.grads.values())


def test_jax_arrays() -> None:
    jax = pytest.importorskip("jax")
    layer, x = nn.MultiHeadAttention(E, 4, seed=1), numbers(1, B, T, E)
    y, weights = layer(jax.numpy.asarray(x), weights="all")
    assert isinstance(y, jax.Array) and isinstance(weights, jax.Array)
    assert np.array_equal(np.asarray(y), layer(x))


def test_backward_adds() -> None:
    layer, x, saved = nn.SelfAttentionV4(E), numbers(1, B, T, E), nn.Saved()
    y = layer(x, saved=saved)
    layer.backward(y, saved)
    once = layer.grads
    assert layer.backward(y, saved, need_dx=False) is None
    for name, gradient in layer.grads.items():
        assert np.allclose(gradient, 2 * once[name], rtol=1e-5, atol=1e-6)
    layer.zero_grad()
    assert not any(g.any() for g in layer.grads.values())


def test_errors_say_what_to_do() -> None:
    layer, x = nn.MultiHeadAttention(E, 4), numbers(1, B, T, E)
    for call, kind, words in (
        (lambda: layer(x.astype(np.float64)), TypeError, "float32.*astype"),
        (lambda: layer([1.0]), TypeError, "array"),
        (lambda: layer(x[0, 0]), ValueError, r"\[B, T, E\]"),
        (lambda: layer(x[..., :5]), ValueError, "5"),
        (lambda: layer(x, keep=np.ones((B, T, T), bool)), ValueError, "mask_axes"),
        (lambda: layer(x, mask=np.ones((B, T), bool)), TypeError, "keep="),
        (lambda: layer(x, weights="some"), ValueError, "all"),
        (lambda: layer(x, empty_row="none"), ValueError, "mean"),
        (lambda: nn.MultiHeadAttention(E, 4).train()(x), ValueError, "seed"),
        (lambda: nn.MultiHeadAttention(E, 5), ValueError, "5"),
        (lambda: layer.backward(x, nn.Saved()), ValueError, "saved"),
        (lambda: layer.load_state_dict({"q_proj.weight": x}), ValueError, "q_proj.weight"),
        (lambda: layer.load_state_dict(nn.Linear(2, 2)), TypeError, "state_dict"),
        (lambda: nn.AveragePooling().step(x, layer.cache(capacity=4)), NotImplementedError, "no keys and values"),
        (lambda: nn.Linear(E, 3)(x[..., :4]), ValueError, "24"),
    ):
        with pytest.raises(kind, match=words):
            call()
    for module in (layer, nn.Linear(E, E), nn.AveragePooling()):
        saved = nn.Saved()
        module(x, saved=saved)
        for dy in (x[:, :3], x[:1], x[0], x[..., :5]):
            with pytest.raises(ValueError, match="dy"):
                module.backward(dy, saved)
        with pytest.raises(ValueError):
            module(x[..., :4].astype(np.float32), saved=saved)
            module.backward(x, saved)  # forward did not fill it, or of another x
    before = layer.state_dict()
    with pytest.raises(ValueError):
        layer.load_state_dict(before | {"q_proj.weight": np.zeros((2, 2), np.float32)})
    assert all(np.array_equal(a, before[n]) for n, a in layer.state_dict().items())


def test_types_of_a_layer() -> None:
    layer, saved = nn.MultiHeadAttention(8, 2), nn.Saved()
    y = layer(half(1, 3, 8), saved=saved)
    assert y.dtype == half(0).dtype and layer.backward(half(2, 3, 8), saved).dtype == half(0).dtype
    cache = layer.cache(capacity=4, storage="bfloat16")
    assert layer.step(half(1, 1, 3, 8), cache).dtype == half(0).dtype and cache.lengths == [3]
    linear, other = nn.Linear(8, 7), nn.Saved()
    assert linear(half(1, 3, 8), saved=other).dtype == half(0).dtype and linear.backward(half(2, 3, 7), other).dtype == half(0).dtype
    with pytest.raises(TypeError, match="dy must be bfloat16, as x was: got float32"):
        linear.backward(numbers(2, 3, 7), other)
    with pytest.raises(TypeError, match="dy must be bfloat16, as x was: got float32"):
        layer.backward(numbers(2, 3, 8), saved)
    with pytest.raises(TypeError, match="x must be float32 or bfloat16: got float64"):
        layer(numbers(1, 3, 8).astype(np.float64))
    with pytest.raises(qkv.UnsupportedError, match=r"\[average\].*float"):
        nn.AveragePooling()(half(1, 3, 8))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_parameters_and_gradients_rounded_once(framework: str) -> None:
    torch = pytest.importorskip("torch")
    layer = nn.MultiHeadAttention(24, 4)
    x, saved = numbers(1, 2, 5, 24), nn.Saved()
    layer.backward(np.ones_like(layer(x, saved=saved)), saved)
    for wide, narrow in (
        (layer.state_dict(), layer.state_dict(dtype="bfloat16", framework=framework)),
        (layer.grads, layer.gradients(dtype="bfloat16", framework=framework)),
    ):
        assert list(wide) == list(narrow)
        for name, values in wide.items():
            got = torch.as_tensor(narrow[name].astype(np.float32)) if framework == "numpy" else narrow[name]
            assert torch.equal(got.bfloat16(), torch.tensor(values).bfloat16()), name
    reads = nn.MultiHeadAttention(24, 4)
    reads.load_state_dict(layer.state_dict(dtype="bfloat16", framework=framework))
    assert (
        reads.state_dict(dtype="bfloat16")["q_proj.weight"].tobytes()
        == np.asarray(layer.state_dict(dtype=half(0).dtype)["q_proj.weight"]).tobytes()
    )
    with pytest.raises(ValueError, match="must be F32, BF16 or F16: got I8"):
        layer.gradients(dtype="int8")
    with pytest.raises(TypeError, match="dtype must be one of"):
        layer.gradients(dtype="bf16")


def test_one_pool_of_threads() -> None:
    """Layers and attention run on the threads that qkv.set_num_threads says, all of one pool."""
    program = """
import os, numpy as np, qkv
qkv.set_num_threads(3)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
x = np.random.default_rng(0).standard_normal((4, 256, 64)).astype("f")
q = x.reshape(4, 256, 4, 16).swapaxes(1, 2)
layer = qkv.nn.MultiHeadAttention(64, 4)
one = layer(x); after_layer = count()
qkv.attention(q, q, q); after_both = count()
qkv.set_num_threads(1)
assert np.array_equal(one, layer(x))
print(after_layer - before, after_both - before, flush=True)
qkv.set_num_threads(2)
layer(x)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(one, layer(x)) else 1)
print(os.waitpid(child, 0)[1])
"""
    if sys.platform != "linux":
        pytest.skip("counts threads in /proc")
    if "libtsan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("ThreadSanitizer has a thread of its own, and allows no new ones after a fork")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "2", "0"], done.stdout + done.stderr


@pytest.mark.parametrize("cls", WITH_HEADS)
def test_heads_are_no_default(cls: Any) -> None:
    layer = cls(E, 4, seed=1)
    state = layer.state_dict()
    with pytest.raises(qkv.OptionError, match="num_heads of .* must be given, since weights of one shape fit several: here 1, 2, 3, 4"):
        cls.from_state_dict(state, dropout=0.0)
    x = numbers(1, 2, 5, E)
    assert np.array_equal(cls.from_state_dict(state, num_heads=4)(x), layer(x))
    with pytest.raises(TypeError, match="num_heads"):
        cls(E)


def test_a_forward_that_is_refused_leaves_nothing_to_go_back_through() -> None:
    layer, x = nn.MultiHeadAttention(E, 4), numbers(1, 1, 6, E)
    dy = numbers(2, 1, 6, E)
    for wrong in ({"seed": 1.5}, {"causal": "top_left"}, {"empty_row": "bogus"}, {"keep": np.ones((1, 5))}):
        saved = nn.Saved()
        layer(x, keep=np.tri(6), mask_axes="qk", saved=saved)
        with pytest.raises((TypeError, ValueError)):
            layer(x, saved=saved, **wrong)
        with pytest.raises(ValueError, match="saved must be what this module's forward filled"):
            layer.backward(dy, saved)
        layer(x, saved=saved)
        layer.backward(dy, saved)
    linear, saved = nn.Linear(E, 2), nn.Saved()
    linear(x, saved=saved)
    with pytest.raises(TypeError):
        linear(x.astype(np.float64), saved=saved)
    assert linear.backward(numbers(3, 1, 6, 2), saved).shape == x.shape


def test_arguments_that_would_change_nothing() -> None:
    x = numbers(1, 2, 6, E)
    for layer in (nn.MultiHeadAttention(E, 4), nn.AveragePooling(), nn.GroupedQueryAttention(E, 4)):
        for given in ({"offset": 5}, {"offsets": [5, 6]}, {"position_ids": np.arange(6)}):
            with pytest.raises(ValueError, match="this layer has none"):
                layer(x, **given)
        with pytest.raises(ValueError, match="mask_axes names the axes"):
            layer(x, mask_axes="bogus")
    turned = nn.GroupedQueryAttention(E, 4, rotary=qkv.Rotary(6))
    with pytest.raises(ValueError, match="exclude each other"):
        turned(x, offset=5, position_ids=np.arange(6))
    with pytest.raises(qkv.OptionError, match="head_dim must be at least 1.*got -5"):
        nn.GroupedQueryAttention(E, 4, head_dim=-5)
    with pytest.raises(qkv.OptionError, match="rotary must be of the layer's head_dim 6: got Rotary"):
        nn.GroupedQueryAttention(E, 4, rotary=qkv.Rotary(64))
    for make in (lambda align: qkv.Mask.causal(align, offsets=[0]), lambda align: qkv.Mask.window(1, 2, align, offsets=[0])):
        for align in ("nonsense", "bottom_right"):
            with pytest.raises(ValueError):
                make(align)
    index = numbers(2, 1, 2, 4, 8)
    for causal in ("top_left", "no", 1.5):
        with pytest.raises(qkv.OptionError, match="causal must be True or False"):
            qkv.top_keys(index, index[:, :1], numbers(3, 1, 2, 4), 2, causal=causal)


def test_layers_say_their_sizes() -> None:
    assert repr(nn.MultiHeadAttention(E, 4)) == "MultiHeadAttention(embed_dim=24, num_heads=4, parameters=2400)"
    assert repr(nn.SelfAttention(E, 10)) == "SelfAttention(embed_dim=24, parameters=750)"


@pytest.mark.parametrize("name", ("keep", "drop"))
@pytest.mark.parametrize("framework", ("numpy", "torch"))
def test_axes_are_named_where_two_readings_fit(name: str, framework: str) -> None:
    mask: Any = np.tri(6, dtype=bool) if name == "keep" else ~np.tri(6, dtype=bool)
    kept = np.tri(6, dtype=bool)
    if framework == "torch":
        mask = pytest.importorskip("torch").from_numpy(mask)
    square, other = numbers(1, 6, 6, E), numbers(2, 2, 6, E)
    for layer in (nn.MultiHeadAttention(E, 4, seed=1), nn.SelfAttentionV4(E, seed=1)):
        for x in (square, other):
            with pytest.raises(ValueError, match=r'both fit: mask_axes="bk" or "qk": got \[6, 6\] for x'):
                layer(x, **{name: mask})
        assert np.array_equal(layer(square, **{name: mask}, mask_axes="qk"), layer(square, causal=True))
        assert np.array_equal(layer(other, **{name: mask}, mask_axes="qk"), layer(other, causal=True))
        by_key = layer(square, **{name: mask}, mask_axes="bk")
        assert np.array_equal(by_key, layer(square, mask=qkv.Mask.keep(kept, "bk")))
        assert not np.array_equal(by_key, layer(square, causal=True))
        # One token: both readings are the same mask.
        assert layer(square[:1, :1], **{name: mask[:1, :1]}).shape == (1, 1, E)


def test_named_axes_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    x, mha, single = numbers(1, 3, 5, E), nn.MultiHeadAttention(E, 4, seed=1), nn.SelfAttentionV4(E, seed=1)
    per_sequence, per_head = rng.random((3, 5, 5)) < 0.8, rng.random((4, 5, 5)) < 0.8
    assert np.array_equal(mha(x, keep=per_sequence, mask_axes="bqk"), mha(x, keep=per_sequence[:, None]))
    assert np.array_equal(mha(x, keep=per_head, mask_axes="hqk"), mha(x, keep=per_head[None]))
    assert np.array_equal(single(x, keep=per_sequence), single(x, keep=per_sequence, mask_axes="bqk"))
    assert np.array_equal(single(x, keep=per_head[:1], mask_axes="hqk"), single(x, mask=qkv.Mask.keep(per_head[0], "qk")))
    assert np.array_equal(mha(x[0], keep=per_head, mask_axes="hqk"), mha(x[:1], keep=per_head[None])[0])
    assert np.array_equal(mha(x, keep=per_sequence[:, 0]), mha(x, keep=per_sequence[:, :1, None]))


def test_the_error_shows_what_came_in() -> None:
    """Every shape: tests/nn/masks_test.cc."""
    for layer in (nn.MultiHeadAttention(E, 4), nn.SelfAttentionV4(E)):
        for shape, axes in (((6, 7), None), ((4, 6, 6), "bqk")):
            with pytest.raises(qkv.ShapeError, match=rf"got \[{', '.join(map(str, shape))}\] for \[B, H, Tq, Tk\] \[2, "):
                layer(numbers(1, 2, 6, E), keep=np.ones(shape, bool), mask_axes=axes)
    with pytest.raises(ValueError, match="kb"):
        nn.SelfAttentionV4(E)(numbers(1, 2, 6, E), keep=np.ones((2, 6)), mask_axes="kb")
