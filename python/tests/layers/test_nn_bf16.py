"""bfloat16 through the bindings: what layers take and return. Not: numbers, steps (tests/nn)."""

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
