"""bfloat16 through the bindings: qkv.nn.linear and linear_backward of NumPy and PyTorch, what layers take and return. Not: numbers, layers as the
calls that they are made of, steps (tests/nn/bf16_test.cc, linear_test.cc, invariant_test.cc)."""

from __future__ import annotations

import numpy as np
import pytest
import qkv
from qkv import nn
from support import numbers

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = ml_dtypes.bfloat16


def half(seed: int, *shape: int) -> np.ndarray:
    return numbers(seed, *shape).astype(BF16)


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
    assert torch.equal(dbias, dy.float().flatten(0, 1).sum(0))
    arrays = (half(1, 2, 5, 24), half(2, 2, 5, 7), half(3, 7, 24))
    assert nn.linear_backward(*arrays, bias=False)[2] is None
    for ours, theirs in zip(nn.linear_backward(*arrays), nn.linear_backward(x, dy, weight), strict=True):
        np.testing.assert_array_equal(ours.astype(np.float32), theirs.float())
    assert np.array_equal(nn.linear(arrays[0], arrays[2], numbers(4, 7)).astype(np.float32), y.float())


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


def test_types_of_a_layer() -> None:
    layer, saved = nn.MultiHeadAttention(8, 2), nn.Saved()
    y = layer(half(1, 3, 8), saved=saved)
    assert y.dtype == BF16 and layer.backward(half(2, 3, 8), saved).dtype == BF16
    cache = layer.cache(capacity=4, storage="bfloat16")
    assert layer.step(half(1, 1, 3, 8), cache).dtype == BF16 and cache.lengths == [3]
    linear, other = nn.Linear(8, 7), nn.Saved()
    assert linear(half(1, 3, 8), saved=other).dtype == BF16 and linear.backward(half(2, 3, 7), other).dtype == BF16
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
        == np.asarray(layer.state_dict(dtype=BF16)["q_proj.weight"]).tobytes()
    )
    with pytest.raises(ValueError, match="must be F32, BF16 or F16: got I8"):
        layer.gradients(dtype="int8")
    with pytest.raises(TypeError, match="dtype must be one of"):
        layer.gradients(dtype="bf16")
