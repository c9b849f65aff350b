"""qkv.nn against PyTorch's modules in float64, gradients by autograd, on one state_dict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from qkv import nn
from support import numbers

torch = pytest.importorskip("torch")

from support_torch import expect_all

B, T, E = 2, 11, 16


def through_autograd(
    module: Any, run: Callable[[Any, Any], Any], x: np.ndarray, dy: np.ndarray, dtype: Any
) -> dict[str, np.ndarray]:
    """y, dx and every parameter's gradient, computed in dtype."""
    module = module.to(dtype)
    module.zero_grad()
    inputs = torch.tensor(x, dtype=dtype, requires_grad=True)
    y = run(module, inputs)
    y.backward(torch.tensor(dy, dtype=dtype))
    found = {"y": y, "dx": inputs.grad} | {"d" + name: p.grad for name, p in module.named_parameters()}
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def random_parameters(module: Any) -> Any:
    """Also of biases and norms, which start at 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    for p in module.parameters():
        p.data = torch.empty(p.shape, dtype=torch.float32).uniform_(-0.5, 0.5, generator=generator)
    return module


SMALL, WIDE, LONG = (B, T, E, 4), (2, 10, 768, 12), (16, 100, 512, 8)  # the last two: the articles'


@pytest.mark.parametrize("sizes,causal,bias", [(SMALL, False, False), (SMALL, True, True), (SMALL, True, False), (WIDE, False, True), (LONG, False, True)])
def test_multihead_attention(sizes: tuple[int, ...], causal: bool, bias: bool) -> None:
    *shape, heads = sizes
    theirs = random_parameters(torch.nn.MultiheadAttention(shape[2], heads, bias=bias, batch_first=True))
    ours = nn.MultiHeadAttention.from_state_dict(theirs.state_dict(), num_heads=heads)
    x, dy, saved = numbers(1, *shape), numbers(2, *shape), nn.Saved()
    y, weights = ours(torch.tensor(x), causal=causal, weights="all", saved=saved)
    dx = ours.backward(torch.tensor(dy), saved)
    assert weights.shape == (shape[0], heads, shape[1], shape[1])
    assert isinstance(y, torch.Tensor) and isinstance(weights, torch.Tensor) and isinstance(dx, torch.Tensor)
    fast = {"y": y, "dx": dx} | {"d" + name: gradient for name, gradient in ours.grads.items()}

    hidden = torch.ones(shape[1], shape[1], dtype=torch.bool).triu(1) if causal else None
    given = {}

    def run(module: Any, inputs: Any) -> Any:
        out, given[inputs.dtype] = module(inputs, inputs, inputs, attn_mask=hidden, average_attn_weights=False)
        return out

    exact = through_autograd(theirs, run, x, dy, torch.float64)
    naive = through_autograd(theirs, run, x, dy, torch.float32)
    exact["weights"], naive["weights"] = (given[t].detach().numpy() for t in (torch.float64, torch.float32))
    expect_all({**fast, "weights": weights}, exact, naive)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == [
        name for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias") if name in state
    ]


def test_state_dict_goes_back_to_torch() -> None:
    theirs = random_parameters(torch.nn.MultiheadAttention(E, 2, batch_first=True))
    ours = nn.MultiHeadAttention.from_state_dict(theirs.state_dict(), num_heads=2)
    other = torch.nn.MultiheadAttention(E, 2, batch_first=True)
    other.load_state_dict(ours.state_dict(framework="torch"))
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "ours,theirs",
    [
        (nn.Linear(E, 7), torch.nn.Linear(E, 7)),
        (nn.Linear(E, 7, bias=False), torch.nn.Linear(E, 7, bias=False)),
    ],
    ids=["linear", "linear-without-bias"],
)
def test_rows(ours: Any, theirs: Any) -> None:
    ours.load_state_dict(random_parameters(theirs).state_dict())
    x = numbers(1, B, 5, T, E)
    saved = nn.Saved()
    y = ours(x, saved=saved)
    dy = numbers(2, *y.shape)
    fast = {"y": y, "dx": ours.backward(dy, saved)} | {"d" + n: g for n, g in ours.grads.items()}
    exact, naive = (through_autograd(theirs, lambda m, i: m(i), x, dy, t) for t in (torch.float64, torch.float32))
    expect_all(fast, exact, naive)
