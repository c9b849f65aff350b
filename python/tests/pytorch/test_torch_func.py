"""torch.func (vmap, grad, jvp and what is made of them), batched gradients, and torch.export of models under enable(). Not: the
operators and torch.compile (test_torch_transforms.py), packed sequences (test_torch_varlen_transforms.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
import torch.nn.functional as F
from qkv.torch import _graph
from qkv.torch._varlen_calls import packed as attend_packed
from support_torch import numbers
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

K, V, BIAS = numbers(1, 1, 2, 4, 3), numbers(2, 1, 2, 4, 2), numbers(3, 2, 3, 4)
Q, TANGENT = numbers(4, 1, 2, 3, 3), numbers(5, 1, 2, 3, 3)
KEEP = numbers(6, 3, 4) > -0.7
sdpa, flex = qt.scaled_dot_product_attention, qt.flex_attention

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda q: sdpa(q, K, V),
    "causal": lambda q: sdpa(q, K, V, is_causal=True, scale=0.7),
    "bias": lambda q: sdpa(q, K, V, BIAS),
    "keep": lambda q: sdpa(q, K, V, KEEP),
    "grouped": lambda q: sdpa(q, K[:, :1], V[:, :1], enable_gqa=True),
    "flex": lambda q: flex(q, K, V),
    "flex, soft cap and mask": lambda q: flex(q, K, V, qt.SoftCap(2.0), qkv.Mask.causal("bottom_right")),
    "flex, alibi": lambda q: flex(q, K, V, qkv.PositionBias.alibi(2, "top_left")),
    "flex, lse": lambda q: flex(q, K, V, return_lse=True)[1],
}
calls = pytest.mark.parametrize("name", CALLS)


def scalar(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda q: call(q).sin().sum()


def gradient(call: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    """By eager autograd, which gradcheck has checked."""
    q = q.detach().requires_grad_()
    return torch.autograd.grad(scalar(call)(q), q)[0]


def near(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-11, atol=1e-13)


@calls
def test_reverse_and_forward_mode(name: str) -> None:
    call = CALLS[name]
    exact = gradient(call, Q)
    assert near(torch.func.grad(scalar(call))(Q), exact)
    value, slope = torch.func.jvp(scalar(call), (Q,), (TANGENT,))
    assert torch.equal(value, scalar(call)(Q)) and near(slope, (exact * TANGENT).sum())
    assert near(torch.func.jacfwd(call)(Q), torch.func.jacrev(call)(Q))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(Q, TANGENT)
        eager = torch.autograd.forward_ad.unpack_dual(call(dual)).tangent
    assert near(torch.func.jvp(call, (Q,), (TANGENT,))[1], eager)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("flex")])
def test_linearize(name: str) -> None:
    """It traces forward mode, where a registered operator would drop the tangents."""
    out, slope = torch.func.linearize(CALLS[name], Q)
    assert torch.equal(out, CALLS[name](Q)) and near(slope(TANGENT), torch.func.jvp(CALLS[name], (Q,), (TANGENT,))[1])


@calls
def test_second_derivatives(name: str) -> None:
    call, q = CALLS[name], Q[:, :, :2, :].clone()
    if name in ("bias", "keep"):
        call = lambda q: sdpa(q, K, V, BIAS[:, :2] if name == "bias" else KEEP[:2])  # noqa: E731
    exact = torch.autograd.functional.hessian(scalar(call), q)
    assert near(torch.func.jacrev(torch.func.grad(scalar(call)))(q), exact)
    assert near(torch.autograd.functional.hessian(scalar(call), q, vectorize=True), exact)
    with pytest.raises(NotImplementedError, match="take backward twice"):
        torch.func.hessian(scalar(call))(q)  # forward mode of backward


@calls
def test_vmap(name: str) -> None:
    call, many = CALLS[name], torch.stack([Q, 2 * Q, Q - 1], 1)
    for function in (call, torch.func.grad(scalar(call)), lambda q: torch.func.jvp(call, (q,), (TANGENT,))[1]):
        made = torch.func.vmap(function, in_dims=1)(many)
        for n in range(3):
            assert near(made[n], function(many[:, n].contiguous()))
    last = torch.func.vmap(torch.func.grad(scalar(call)), in_dims=4)(torch.stack([Q, 2 * Q], 4))
    assert near(last[1], torch.func.grad(scalar(call))(2 * Q))


@calls
def test_batched_gradients(name: str) -> None:
    q = Q.detach().requires_grad_()
    out = CALLS[name](q)
    many = torch.stack([numbers(n, *out.shape) for n in range(3)])
    (batched,) = torch.autograd.grad(out, q, many, is_grads_batched=True, retain_graph=True)
    for n in range(3):
        assert torch.equal(batched[n], torch.autograd.grad(out, q, many[n], retain_graph=True)[0])
    whole, row = (torch.autograd.functional.jacobian(CALLS[name], Q, vectorize=way) for way in (True, False))
    assert torch.equal(whole, row)


def test_dropout_under_vmap_is_refused() -> None:
    many = torch.stack([Q, Q])
    layer = qt.MultiheadAttention(6, 2, dropout=0.5, batch_first=True).double().train()
    x = numbers(1, 2, 1, 3, 6)
    packed, cu = Q[0].transpose(0, 1), torch.tensor([0, 3])
    rules = (3, 3, -1, -1, True, None, 0.5)
    for call, given in (
        (lambda q: sdpa(q, q, q, dropout_p=0.5), many),
        (lambda x: layer(x, x, x, need_weights=False)[0], x),
        (
            lambda q: attend_packed(q, packed, packed, cu, cu, None, None, torch.tensor([7]), *rules)[0],
            torch.stack([packed] * 2),
        ),
    ):
        with pytest.raises(NotImplementedError, match="vmap over attention with dropout is not computed"):
            torch.func.vmap(call, randomness="different")(given)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_forward_mode_of_other_types(dtype: torch.dtype) -> None:
    exact = torch.func.jvp(CALLS["plain"], (Q,), (TANGENT,))[1]
    made = torch.func.jvp(lambda q: sdpa(q, K.to(dtype), V.to(dtype)), (Q.to(dtype),), (TANGENT.to(dtype),))[1]
    assert made.dtype is dtype and (made.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * exact.abs().max()


def test_models_in_forward_mode() -> None:
    layer = qt.MultiheadAttention(6, 2, batch_first=True).double()
    x = numbers(1, 2, 3, 6)
    state = dict(layer.named_parameters())

    def call(state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, state, (x, x, x), {"need_weights": False})[0].sin().sum()

    tangents = {name: numbers(n, *p.shape) for n, (name, p) in enumerate(state.items())}
    slope = torch.func.jvp(call, (state,), (tangents,))[1]
    gradients = torch.func.grad(call)(state)
    assert near(slope, sum((gradients[name] * t).sum() for name, t in tangents.items()))


def test_the_operator_of_forward_mode_keeps_its_contract() -> None:
    for bias in (None, BIAS[None].contiguous()):
        _, lse, _ = _graph.attention.operator(Q, K, V, bias, None, None, 0.0, False, None, "zero")
        tangents = (TANGENT, None, torch.ones_like(V), bias)
        torch.library.opcheck(_graph.attention_jvp.operator, (*tangents, Q, K, V, bias, None, None, lse, 0.0, False, None, "zero"))


@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpoints_repeat_dropout(reentrant: bool) -> None:
    q = numbers(1, 1, 2, 5, 4).requires_grad_()

    def call(q: Tensor) -> Tensor:
        return sdpa(q, q, q, dropout_p=0.5)

    results = []
    for way in (call, lambda q: torch.utils.checkpoint.checkpoint(call, q, use_reentrant=reentrant)):
        torch.manual_seed(3)
        q.grad = None
        way(q).sin().sum().backward()
        results.append(q.grad)
    assert torch.equal(*results)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, k, is_causal=True).mean(1)
        return self.layer(out, k[:, 0], k[:, 0], need_weights=False)[0]


@pytest.mark.filterwarnings("ignore")
def test_enable_is_kept_by_export_and_make_fx() -> None:
    model, (q, k) = Model(), (numbers(n, 2, 4, 5, 8, dtype=torch.float32) for n in range(2))
    dynamic = {"q": {2: torch.export.Dim("t")}, "k": {2: torch.export.Dim("t")}}
    longer = [numbers(n, 2, 4, 9, 8, dtype=torch.float32) for n in range(2)]
    with qt.enable():
        for strict in (False, True):
            program = torch.export.export(model, (q, k), dynamic_shapes=dynamic, strict=strict)
            assert str(program.graph).count("qkv.attention") == 2 and "aten.scaled_dot" not in str(program.graph)
            assert torch.allclose(program.module()(*longer), model(*longer), atol=1e-6)
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(lambda q, k: F.scaled_dot_product_attention(q, k, k), tracing_mode=mode)(q, k).graph
            assert str(graph).count("qkv.attention") == 1 and "aten.scaled_dot" not in str(graph)
