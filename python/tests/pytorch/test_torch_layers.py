"""The forms written by hand in PyTorch (torch_layers.py) beside qkv on one state_dict: the same module with qkv's attention in
its
middle, and the layer of qkv.nn. Outputs, weights and gradients, with padding, a row that may attend nothing, and in training
with the same dropout mask. The hand-written form in float64 is the truth, in float32 the naive form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import torch_layers
from qkv.torch._calls import Rules
from qkv.torch._graph import attend_with_weights
from support_torch import expect_close, numbers
from torch import Tensor

B, T, E = 3, 9, 12
FORMS: dict[str, tuple[Callable[[], torch_layers.Form], Callable[[float], Any]]] = {
    "v1": (lambda: torch_layers.SelfAttentionV1(E), lambda p: qkv.nn.SelfAttentionV1(E, dropout=p)),
    "v2": (lambda: torch_layers.SelfAttentionV2(E), lambda p: qkv.nn.SelfAttentionV2(E, dropout=p)),
    "v3": (lambda: torch_layers.SelfAttentionV3(E), lambda p: qkv.nn.SelfAttentionV3(E, dropout=p, residual_dropout=0.0)),
    "v4": (lambda: torch_layers.SelfAttentionV4(E), lambda p: qkv.nn.SelfAttentionV4(E, dropout=p, residual_dropout=0.0)),
    "self-attention": (lambda: torch_layers.SelfAttention(E, 5), lambda p: qkv.nn.SelfAttention(E, 5, dropout=p)),
    "single-head": (
        lambda: torch_layers.SingleHeadAttention(E),
        lambda p: qkv.nn.SingleHeadAttention(E, dropout=p, residual_dropout=0.0),
    ),
    "mha": (
        lambda: torch_layers.MultiHeadAttention(E, 3),
        lambda p: qkv.nn.MultiHeadAttention(E, 3, dropout=p, residual_dropout=0.0, empty_row="mean"),
    ),
}
SEED = 2**40 + 5


def hand_written(name: str) -> torch_layers.Form:
    made = FORMS[name][0]()
    for n, parameter in enumerate(made.parameters()):
        parameter.data = numbers(20 + n, *parameter.shape, dtype=torch.float32) / 4
    return made


def masks(name: str) -> Tensor | None:
    """[B, 1, T, T]: padding of the second sequence, a row of the first that may attend nothing. -inf knows no such row: no
    mask."""
    if name == "single-head":
        return None
    keep = torch.ones(B, 1, T, T, dtype=torch.bool)
    keep[1, :, :, 6:] = False
    keep[0, :, 4] = False
    return keep


def dropout_factors(name: str, p: float) -> Tensor | None:
    if not p:
        return None
    return torch.from_numpy(qkv.dropout_factors((B, FORMS[name][0]().heads, T, T), p, SEED))


def run(module: torch_layers.Form, dtype: torch.dtype, *masked: Tensor | None) -> dict[str, Tensor]:
    """y, weights, dx and the gradients of the parameters, of a loss on y alone."""
    module = copy.deepcopy(module).to(dtype)
    x = numbers(1, B, T, E, dtype=dtype).requires_grad_()
    y, weights = module(x, *masked)
    y.backward(numbers(2, *y.shape, dtype=dtype))
    assert x.grad is not None
    return {"y": y, "weights": weights, "dx": x.grad} | {
        "d" + n: p.grad for n, p in module.named_parameters() if p.grad is not None
    }


def expect(fast: dict[str, Tensor], exact: dict[str, Tensor], naive: dict[str, Tensor]) -> None:
    assert fast.keys() == exact.keys()
    for name, truth in exact.items():
        expect_close(fast[name], truth, naive[name], torch.float32, name)


def qkvs(p: float) -> Callable[..., Any]:
    """The middle of a Form by qkv; its own dropout pattern must be the factors that the hand-written form was given."""

    def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, fill: float, factors: Tensor | None) -> Any:
        empty_row = "nan" if fill == -torch.inf else "mean"
        rules = Rules(dropout=0.0 if factors is None else p, seed=SEED, empty_row=empty_row)
        return attend_with_weights.apply(q, k, v, None, keep, rules)[:2]

    return attention


@pytest.mark.parametrize("p", (0.0, 0.3))
@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("name", FORMS)
def test_the_same_module_on_qkvs_attention(name: str, masked: bool, p: float) -> None:
    module = hand_written(name)
    given = (masks(name) if masked else None, dropout_factors(name, p))
    exact, naive = (run(module, dtype, *given) for dtype in (torch.float64, torch.float32))
    module.attention = qkvs(p)
    expect(run(module, torch.float32, *given), exact, naive)


@pytest.mark.parametrize("p", (0.0, 0.3))
@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("name", FORMS)
def test_qkvs_layer_on_one_state_dict(name: str, masked: bool, p: float) -> None:
    pytest.importorskip("qkv._nn")
    module, layer = hand_written(name), FORMS[name][1](p)
    layer.load_state_dict(module.state_dict())
    keep = masks(name) if masked else None
    given = (keep, dropout_factors(name, p))
    exact, naive = (run(module, dtype, *given) for dtype in (torch.float64, torch.float32))
    layer.train()
    x, saved = numbers(1, B, T, E, dtype=torch.float32), qkv.nn.Saved()
    y, weights = layer(x, keep=keep, weights="applied", seed=SEED, saved=saved)
    dx = layer.backward(numbers(2, *y.shape, dtype=torch.float32), saved)
    gradients = {"d" + n: torch.as_tensor(g) for n, g in layer.grads.items()}
    expect({"y": y, "weights": weights, "dx": dx} | gradients, exact, naive)
    back = hand_written(name)
    back.load_state_dict({n: torch.as_tensor(a) for n, a in layer.state_dict().items()})
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), module.parameters(), strict=True))
