"""bfloat16: qkv.nn.linear and linear_backward against the product in float64; layers as the calls that they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import qkv
from qkv import nn
from support import expect_close, numbers

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = ml_dtypes.bfloat16


def half(seed: int, *shape: int) -> np.ndarray:
    return numbers(seed, *shape).astype(BF16)


def products(x: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, dtype: Any) -> dict[str, np.ndarray]:
    """All results; of A, call it with the inputs' absolute values."""
    x, dy, weight = (t.astype(dtype) for t in (x, dy, weight))
    rows, slopes = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    y = x @ weight.T if bias is None else x @ weight.T + bias.astype(dtype)
    return {"y": y, "dx": dy @ weight, "dweight": slopes.T @ rows, "dbias": slopes.sum(axis=0)}


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 24, 7), (3, 40, 64, 96), (2, 3, 130, 33)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_against_the_products(shape: tuple[int, ...], with_bias: bool) -> None:
    *lead, k, n = shape
    x, dy, weight = half(1, *lead, k), half(2, *lead, n), half(3, n, k)
    bias = numbers(4, n) if with_bias else None
    y = nn.linear(x, weight, bias)
    dx, dweight, dbias = nn.linear_backward(x, dy, weight, bias=with_bias)
    assert y.dtype == dx.dtype == BF16 and dweight.dtype == np.float32 and (dbias is None) == (not with_bias)
    exact, naive = (products(x, dy, weight, bias, t) for t in (np.float64, np.float32))
    sizes = products(abs(x), abs(dy), abs(weight), None if bias is None else abs(bias), np.float64)
    for name, value in {"y": y, "dx": dx, "dweight": dweight, "dbias": dbias}.items():
        if value is None:
            continue
        dtype = "bfloat16" if value.dtype == BF16 else "float32"
        expect_close(name, value, exact[name], naive[name].astype(value.dtype), sizes[name], dtype, inner=0)


def test_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x, dy, weight = (
        torch.tensor(numbers(s, *shape)).bfloat16() for s, shape in ((1, (2, 5, 24)), (2, (2, 5, 7)), (3, (7, 24)))
    )
    bias = torch.tensor(numbers(4, 7))
    y = nn.linear(x, weight, bias)
    assert y.dtype == torch.bfloat16 and y.shape == (2, 5, 7)
    assert torch.equal(y, nn.linear(x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias))
    exact = (x.double() @ weight.double().T + bias.double()).bfloat16()
    assert (y.float() - exact.float()).abs().max() <= 2.0**-7 * exact.float().abs().max()
    dx, dweight, dbias = nn.linear_backward(x, dy, weight, need_dx=False)
    assert dx is None and dweight.dtype == dbias.dtype == torch.float32


def test_no_rows() -> None:
    x, weight = half(1, 0, 24), half(2, 7, 24)
    assert nn.linear(x, weight).shape == (0, 7)
    dx, dweight, dbias = nn.linear_backward(x, half(3, 0, 7), weight)
    assert dx.shape == (0, 24) and not dweight.any() and not dbias.any()


def test_errors() -> None:
    x, weight = half(1, 3, 24), half(2, 7, 24)
    for call, kind, words in (
        (lambda: nn.linear(numbers(1, 3, 24), weight), TypeError, "bfloat16.*float32.*Linear"),
        (lambda: nn.linear(x, numbers(2, 7, 24)), TypeError, "weight"),
        (lambda: nn.linear(x, weight, half(3, 7)), TypeError, "bias"),
        (lambda: nn.linear(x, weight, numbers(3, 8)), ValueError, "bias"),
        (lambda: nn.linear(half(1, 3, 23), weight), ValueError, "24"),
        (lambda: nn.linear(x, half(2, 24)), ValueError, "out_features"),
        (lambda: nn.linear([1.0], weight), TypeError, "array"),
        (lambda: nn.linear_backward(x, half(3, 4, 7), weight), ValueError, "3 rows"),
    ):
        with pytest.raises(kind, match=words):
            call()


def test_a_layer_is_the_calls_that_it_is_made_of() -> None:
    torch = pytest.importorskip("torch")
    layer = nn.SelfAttentionV3(48, dropout=0.0, causal=True, seed=3)
    state = {name: torch.tensor(value) for name, value in layer.state_dict().items()}
    x, dy = (torch.tensor(numbers(s, 2, 21, 48)).bfloat16() for s in (1, 2))
    saved = nn.Saved()
    y = layer(x, saved=saved)
    dx = layer.backward(dy, saved)
    assert y.dtype == dx.dtype == torch.bfloat16
    weight, out_weight = (state[f"{name}.weight"].bfloat16() for name in ("proj", "output_proj"))
    q, k, v = nn.linear(x, weight, state["proj.bias"]).split(48, dim=-1)
    attended = qkv.attention(q, k, v, causal=True)
    assert torch.equal(y, nn.linear(attended, out_weight, state["output_proj.bias"]))
    dattended, dout, dout_bias = nn.linear_backward(attended, dy, out_weight)
    np.testing.assert_array_equal(layer.grads["output_proj.weight"], dout)
    np.testing.assert_array_equal(layer.grads["output_proj.bias"], dout_bias)
    wide = nn.SelfAttentionV3.from_state_dict(layer.state_dict(), dropout=0.0, causal=True)
    wide_saved = nn.Saved()
    wide(x.float(), saved=wide_saved)
    wide_dx = wide.backward(dy.float(), wide_saved)
    assert (dx.float() - wide_dx).norm() <= 16 * 2.0**-9 * wide_dx.norm()  # as many roundings on the way there and back


def test_types_of_a_layer() -> None:
    layer, saved = nn.MultiHeadAttention(8, 2), nn.Saved()
    y = layer(half(1, 3, 8), saved=saved)
    assert y.dtype == BF16
    with pytest.raises(TypeError, match="dy must be bfloat16, as x was: got float32"):
        layer.backward(numbers(2, 3, 8), saved)
    with pytest.raises(TypeError, match="x must be float32 or bfloat16: got float64"):
        layer(numbers(1, 3, 8).astype(np.float64))
    with pytest.raises(qkv.UnsupportedError, match=r"\[average\].*float"):
        nn.AveragePooling()(half(1, 3, 8))


def test_steps_are_the_whole_sequence() -> None:
    layer = nn.GroupedQueryAttention(48, 4, 2, causal=True, seed=3)
    x = half(1, 1, 30, 48)
    qkv.set_bits("invariant")
    try:
        cache, whole, begin = layer.cache(capacity=30, storage="bfloat16"), layer(x), 0
        for count in (11, 1, 1, 7, *(1,) * 10):
            y = layer.step(x[:, begin : begin + count], cache)
            assert y.dtype == BF16
            np.testing.assert_array_equal(y, whole[:, begin : begin + count])
            begin += count
    finally:
        qkv.set_bits("fast")


def test_linear_rounds_its_weights() -> None:
    linear, saved = nn.Linear(24, 7, seed=5), nn.Saved()
    x, dy = half(1, 5, 24), half(2, 5, 7)
    weight = linear.state_dict()["weight"].astype(BF16)
    y = linear(x, saved=saved)
    assert y.dtype == BF16
    np.testing.assert_array_equal(y, nn.linear(x, weight, linear.state_dict()["bias"]))
    dx = linear.backward(dy, saved)
    expected_dx, dweight, _ = nn.linear_backward(x, dy, weight)
    np.testing.assert_array_equal(dx, expected_dx)
    np.testing.assert_array_equal(linear.grads["weight"], dweight)
    with pytest.raises(TypeError, match="dy must be bfloat16, as x was: got float32"):
        linear.backward(numbers(2, 5, 7), saved)


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
        == np.asarray(layer.state_dict(dtype=BF16)["q_proj.weight"]).tobytes()
    )
    with pytest.raises(ValueError, match="must be F32, BF16 or F16: got I8"):
        layer.gradients(dtype="int8")
    with pytest.raises(TypeError, match="dtype must be one of"):
        layer.gradients(dtype="bf16")
