"""qkv.nn against PyTorch's modules in float64, gradients by autograd, on one state_dict; and the optimizer against
torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from qkv import nn
from support import numbers

torch = pytest.importorskip("torch")

from support_torch import expect_close

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


def expect(fast: dict[str, Any], exact: dict[str, np.ndarray], naive: dict[str, np.ndarray]) -> None:
    for name, value in fast.items():
        expect_close(*(torch.as_tensor(x) for x in (value, exact[name], naive[name])), torch.float32, name)


def random_parameters(module: Any) -> Any:
    """Also of biases and norms, which start at 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    for p in module.parameters():
        p.data = torch.empty(p.shape, dtype=torch.float32).uniform_(-0.5, 0.5, generator=generator)
    return module


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_multihead_attention(causal: bool, bias: bool) -> None:
    theirs = random_parameters(torch.nn.MultiheadAttention(E, 4, bias=bias, batch_first=True))
    ours = nn.MultiHeadAttention.from_state_dict(theirs.state_dict(), num_heads=4)
    x, dy, saved = numbers(1, B, T, E), numbers(2, B, T, E), nn.Saved()
    y, weights = ours(torch.tensor(x), causal=causal, weights="all", saved=saved)
    dx = ours.backward(torch.tensor(dy), saved)
    assert isinstance(y, torch.Tensor) and isinstance(weights, torch.Tensor) and isinstance(dx, torch.Tensor)
    fast = {"y": y, "dx": dx} | {"d" + name: gradient for name, gradient in ours.grads.items()}

    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    seen = {}

    def run(module: Any, inputs: Any) -> Any:
        out, seen[inputs.dtype] = module(inputs, inputs, inputs, attn_mask=hidden, average_attn_weights=False)
        return out

    exact = through_autograd(theirs, run, x, dy, torch.float64)
    naive = through_autograd(theirs, run, x, dy, torch.float32)
    exact["weights"], naive["weights"] = (seen[t].detach().numpy() for t in (torch.float64, torch.float32))
    expect({**fast, "weights": weights}, exact, naive)
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


class TheirMlp(torch.nn.Module):
    """nanoGPT's."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = torch.nn.Linear(E, 4 * E), torch.nn.Linear(4 * E, E)

    def forward(self, x: Any) -> Any:
        return self.c_proj(torch.nn.functional.gelu(self.c_fc(x)))


@pytest.mark.parametrize(
    "ours,theirs",
    [
        (nn.Linear(E, 7), torch.nn.Linear(E, 7)),
        (nn.Linear(E, 7, bias=False), torch.nn.Linear(E, 7, bias=False)),
        (nn.LayerNorm(E), torch.nn.LayerNorm(E)),
        (nn.MLP(E), TheirMlp()),
    ],
    ids=["linear", "linear-without-bias", "layer-norm", "mlp"],
)
def test_rows(ours: Any, theirs: Any) -> None:
    ours.load_state_dict(random_parameters(theirs).state_dict())
    x = numbers(1, B, 5, T, E)
    saved = nn.Saved()
    y = ours(x, saved=saved)
    dy = numbers(2, *y.shape)
    fast = {"y": y, "dx": ours.backward(dy, saved)} | {"d" + n: g for n, g in ours.grads.items()}
    exact, naive = (through_autograd(theirs, lambda m, i: m(i), x, dy, t) for t in (torch.float64, torch.float32))
    expect(fast, exact, naive)


def test_embedding_and_cross_entropy() -> None:
    ids = np.random.default_rng(1).integers(0, 9, (3, 5))
    ours, theirs, saved = nn.Embedding(9, E), torch.nn.Embedding(9, E), nn.Saved()
    ours.load_state_dict(theirs.state_dict())
    y = ours(ids, saved=saved)
    assert np.array_equal(y, theirs(torch.tensor(ids)).detach().numpy())
    dy = numbers(2, *y.shape)
    ours.backward(dy, saved)
    theirs(torch.tensor(ids)).backward(torch.tensor(dy))
    assert np.allclose(ours.grads["weight"], theirs.weight.grad.numpy(), atol=1e-6)

    logits = numbers(3, 3, 5, 9)
    targets = ids.copy()
    targets[0, :2] = -1
    loss, dlogits = nn.cross_entropy(logits, targets)
    exact = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(exact.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1)
    expected.backward()
    assert abs(loss - expected.item()) < 1e-6
    assert np.allclose(dlogits, exact.grad.numpy(), atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_training_with_adam(weight_decay: float) -> None:
    """Twenty steps on one batch: two modules, one optimizer, clipped gradients."""
    theirs = torch.nn.Sequential(random_parameters(torch.nn.Linear(E, E)), random_parameters(torch.nn.LayerNorm(E)))
    ours = [nn.Linear(E, E), nn.LayerNorm(E)]
    for mine, their in zip(ours, theirs, strict=True):
        mine.load_state_dict(their.state_dict())
    x, target = numbers(1, 6, E), numbers(2, 6, E)
    adam = nn.Adam(ours, lr=1e-2, weight_decay=weight_decay)
    make = torch.optim.AdamW if weight_decay else torch.optim.Adam
    reference = make(theirs.parameters(), lr=1e-2, weight_decay=weight_decay)
    for _ in range(20):
        reference.zero_grad()
        loss = 0.5 * ((theirs(torch.tensor(x)) - torch.tensor(target)) ** 2).sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()

        adam.zero_grad()
        first, second = nn.Saved(), nn.Saved()
        y = ours[1](ours[0](x, saved=first), saved=second)
        ours[0].backward(ours[1].backward(y - target, second), first, need_dx=False)
        assert nn.clip_grad_norm(ours, 1.0) == pytest.approx(norm.item(), rel=1e-4)
        adam.step()
        assert 0.5 * ((y - target) ** 2).sum() == pytest.approx(loss.item(), rel=1e-4)
    assert adam.steps == 20
    for mine, their in zip(ours, theirs, strict=True):
        for name, p in their.named_parameters():
            assert np.allclose(mine.state_dict()[name], p.detach().numpy(), atol=1e-4), name
