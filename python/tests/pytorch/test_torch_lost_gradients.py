"""Functions and layers that PyTorch's autograd does not see refuse what it wants a gradient of; JAX's tracers likewise. Numbers that
are tensors, which would get none, and negated views, whose memory is not what they mean: in qkv.torch too."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np
import qkv
import qkv.nn
import qkv.torch as qt
import torch.nn.functional as F
from qkv.standins import fla, flash_attn, xformers
from support_torch import numbers
from torch import Tensor
from torch.autograd import forward_ad


def f32(seed: int, *shape: int) -> Tensor:
    return numbers(seed, *shape, dtype=torch.float32)


Q, K, V, DOUT = (f32(n, 1, 2, 4, 8) for n in range(4))
OUT, LSE = qkv.attention(Q, K, V, return_lse=True)
X = f32(5, 2, 4, 8)
PACKED = [x[0].transpose(0, 1).contiguous() for x in (Q, K, V)]
NORMALIZER = qkv.linear_attention(Q, K, V, return_normalizer=True)


def cache() -> Any:
    made = qkv.KVCache(num_kv_heads=2, head_dim=8, capacity=8)
    made.append(K, V)
    return made


def after(make: Callable[[], Any], x: Tensor) -> Callable[[Tensor], Any]:
    """backward of a module whose forward saw x."""
    module, saved = make(), qkv.nn.Saved()
    module(x, saved=saved)
    return lambda dy: module.backward(dy, saved)


# name -> (function of one tensor, that tensor)
CALLS: dict[str, tuple[Callable[[Any], Any], Tensor]] = {
    "attention q": (lambda x: qkv.attention(x, K, V), Q),
    "attention k": (lambda x: qkv.attention(Q, x, V), K),
    "attention v": (lambda x: qkv.attention(Q, K, x), V),
    "attention bias": (lambda x: qkv.attention(Q, K, V, bias=x), f32(4, 1, 2, 4, 4)),
    "attention sinks": (lambda x: qkv.attention(Q, K, V, sinks=x), f32(4, 2)),
    "attention out": (lambda x: qkv.attention(Q, K, V, out=x), torch.empty(1, 2, 4, 8)),
    "attention_weights": (lambda x: qkv.attention_weights(x, K), Q),
    "attention_plan": (lambda x: qkv.attention_plan(x, K, V), Q),
    "attention_backward q": (lambda x: qkv.attention_backward(DOUT, x, K, V, OUT, LSE), Q),
    "attention_backward dout": (lambda x: qkv.attention_backward(x, Q, K, V, OUT, LSE), DOUT),
    "attention_backward dlse": (lambda x: qkv.attention_backward(DOUT, Q, K, V, OUT, LSE, dlse=x), torch.ones_like(LSE)),
    "merge_attention": (lambda x: qkv.merge_attention([x, OUT], [LSE, LSE]), OUT),
    "attention_varlen": (lambda x: qkv.attention_varlen(x, *PACKED[1:], [0, 1, 4]), PACKED[0]),
    "attention_varlen_backward": (
        lambda x: qkv.attention_varlen_backward(x, *PACKED, *qkv.attention_varlen(*PACKED, [0, 4], return_lse=True), [0, 4]),
        PACKED[0],
    ),
    "linear_attention": (lambda x: qkv.linear_attention(x, K, V), Q),
    "linear_attention decay": (lambda x: qkv.linear_attention(Q, K, V, causal=True, log_decay=x), -torch.ones(1, 2, 4)),
    "linear_attention_backward": (lambda x: qkv.linear_attention_backward(x, Q, K, V, *NORMALIZER), DOUT),
    "KVCache.append": (lambda x: cache().append(x, V), K),
    "KVCache attention": (lambda x: qkv.attention(x, cache(), causal="bottom_right"), Q),
    "Rotary": (lambda x: qkv.Rotary(8)(x), Q),
    "Rotary.backward": (lambda x: qkv.Rotary(8).backward(x), Q),
    "PositionBias.t5": (lambda x: qkv.attention(Q, K, V, position_bias=qkv.PositionBias.t5(x)), f32(4, 32, 2)),
    "PositionBias.relative": (lambda x: qkv.attention(Q, K, V, position_bias=qkv.PositionBias.relative(x)), f32(4, 7, 2)),
    "MultiHeadAttention": (lambda x: qkv.nn.MultiHeadAttention(8, 2)(x), X),
    "MultiHeadAttention weights": (lambda x: qkv.nn.MultiHeadAttention(8, 2)(x, weights="all")[1], X),
    "MultiHeadAttention.backward": (after(lambda: qkv.nn.MultiHeadAttention(8, 2), X), X),
    "GroupedQueryAttention.step": (
        lambda x: (a := qkv.nn.GroupedQueryAttention(8, 2)).step(x, a.cache(capacity=8, sequences=2)),
        X,
    ),
    "SelfAttentionV4": (lambda x: qkv.nn.SelfAttentionV4(8)(x), X),
    "AveragePooling": (lambda x: qkv.nn.AveragePooling()(x), X),
    "Linear": (lambda x: qkv.nn.Linear(8, 3)(x), X),
    "Linear.backward": (after(lambda: qkv.nn.Linear(8, 8), X), X),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_that_would_be_lost(name: str) -> None:
    call, x = CALLS[name]
    wants = x.clone().requires_grad_()
    with pytest.raises(ValueError, match=r"requires a gradient.*detach\(\)") as error:
        call(wants)
    assert "qkv.torch" in str(error.value) or "backward" in str(error.value)
    with pytest.raises(ValueError, match="requires a gradient"):
        call(wants * 1)
    with torch.no_grad():
        call(wants)
    call(wants.detach())


CU = torch.tensor([0, 4])


def in_turn(call: Callable[[Any], Any], x: Tensor) -> list[Any]:
    """Every array of call(x), with its bits."""
    flat, given = [], [call(x)]
    while given:
        one = given.pop()
        if isinstance(one, (tuple, list)):
            given.extend(one)
        elif isinstance(one, (Tensor, np.ndarray)):
            flat.append(np.asarray(one.detach().float() if isinstance(one, Tensor) else one).tobytes())
    return flat


@pytest.mark.parametrize("name", CALLS)
def test_negated_views_are_what_they_mean(name: str) -> None:
    """Those of qkv.torch: test_operators.py."""
    call, x = CALLS[name]
    negated = torch._neg_view(x)
    if name == "attention out":
        with pytest.raises(ValueError, match="negated view"):
            call(negated)
    else:
        assert in_turn(call, negated) == in_turn(call, -x)


def test_negated_gradients_and_masks_under_enable() -> None:
    leaf = Q.clone().requires_grad_()
    gradients = [torch.autograd.grad(qt.scaled_dot_product_attention(leaf, K, V), leaf, g)[0] for g in (torch._neg_view(DOUT), -DOUT)]
    assert torch.equal(*gradients)
    mask = f32(4, 4, 4)
    with qt.enable():
        assert torch.equal(*(F.scaled_dot_product_attention(Q, m, V, n) for m, n in ((torch._neg_view(K), -mask), (-K, torch._neg_view(mask)))))


PACK = xformers.CLASSES["BlockDiagonalMask"].from_seqlens([1, 1])
SCALED: dict[str, Callable[[Any], Any]] = {
    "attention": lambda s: qkv.attention(Q, K, V, scale=s),
    "softcap": lambda s: qkv.attention(Q, K, V, softcap=s),
    "sdpa": lambda s: qt.scaled_dot_product_attention(Q, K, V, scale=s),
    "flex": lambda s: qt.flex_attention(Q, K, V, scale=s),
    "varlen": lambda s: qt.varlen_attn(*PACKED, CU, CU, 4, 4, scale=s),
    "latent": lambda s: qt.latent_attention(Q, X[:1], f32(6, 1, 4, 2), f32(8, 28, 8), scale=s),
    "delta rule": lambda s: qt.chunk_gated_delta_rule(
        X[None], X[None], X[None], f32(6, 1, 2, 4), f32(7, 1, 2, 4).sigmoid(), scale=s
    ),
    "SoftCap": lambda s: qt.flex_attention(Q, K, V, qt.SoftCap(s)),
    "flash_attn softcap": lambda s: flash_attn.flash_attn_func(X[None], X[None], X[None], softcap=s),
    "xformers scale": lambda s: xformers._attention(X[None], X[None], X[None], scale=s),
    "xformers packs": lambda s: xformers._attention(X[None], X[None], X[None], PACK, scale=s),
    "fla scale": lambda s: fla.MODULES["fla.ops"]["chunk_gla"](X[None], X[None], X[None], X[None], scale=s),
    "linear": lambda s: qkv.linear_attention(Q, Q, Q, scale=s),
}


@pytest.mark.parametrize("name", SCALED)
def test_numbers_that_are_tensors(name: str) -> None:
    learns, fixed = torch.tensor(0.3, requires_grad=True), torch.tensor(0.3)
    for scale in (learns, fixed):
        if scale is fixed and name == "sdpa":  # PyTorch takes it
            continue
        with pytest.raises(TypeError, match="must be a number: got a tensor"):
            SCALED[name](scale)
    with qt.enable(), pytest.raises(TypeError):
        F.scaled_dot_product_attention(Q, K, V, scale=learns)
    with pytest.raises(TypeError, match="dropout_p must be a number: got a tensor"):
        qt.scaled_dot_product_attention(Q, K, V, dropout_p=learns)
    wanted = SCALED[name](0.3)
    if name == "sdpa":
        assert torch.equal(SCALED[name](fixed), wanted)


@pytest.mark.parametrize("name", CALLS)
def test_a_tangent_that_would_be_lost(name: str) -> None:
    call, x = CALLS[name]
    with forward_ad.dual_level():
        call(x)  # no tangent, nothing to lose
        with pytest.raises((ValueError, NotImplementedError), match="tangent"):
            call(forward_ad.make_dual(x, torch.ones_like(x)))


def test_forward_mode_is_not_mixed_with_backward() -> None:
    for call in (qt.scaled_dot_product_attention, qt.flex_attention):
        q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
        with forward_ad.dual_level():
            out = call(forward_ad.make_dual(q, torch.ones_like(q)), k, V)
            with pytest.raises(NotImplementedError, match="forward mode is not differentiated again"):
                torch.autograd.grad(forward_ad.unpack_dual(out).tangent.square().sum() + out.sum(), q)
            with pytest.raises(NotImplementedError, match="nor backward in forward mode"):
                torch.autograd.grad(out.sum(), k)
            assert torch.autograd.grad(call(q, k, V).sum(), k)[0].any()  # no tangent


def test_negated_gradients_of_lse() -> None:
    def second(negated: bool) -> Tensor:
        q, d = Q.clone().requires_grad_(), -LSE
        _, lse = qt.flex_attention(q, K, V, return_lse=True)
        (dq,) = torch.autograd.grad(lse, q, torch._neg_view(LSE) if negated else d, create_graph=True)
        return torch.autograd.grad(dq.square().sum(), q)[0]

    assert torch.equal(second(True), second(False))


def test_what_grad_mode_off_gives_is_what_detached_tensors_give() -> None:
    wants = Q.clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(qkv.attention(wants, K, V), qkv.attention(Q, K, V))
        layer, inputs = qkv.nn.MultiHeadAttention(8, 2), X.clone().requires_grad_()
        assert torch.equal(layer(inputs), layer(X))


@pytest.mark.parametrize("name", CALLS)
def test_subclasses_with_a_meaning_of_their_own(name: str) -> None:
    class Doubled(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    call, x = CALLS[name]
    with pytest.raises(TypeError, match="must be a plain tensor: got Doubled"):
        call(x.as_subclass(Doubled))
    call(torch.nn.Parameter(x, requires_grad=False))


def test_under_functorch() -> None:
    for call in (
        lambda: torch.func.grad(lambda q: qkv.attention(q, K, V).sum())(Q),
        lambda: torch.func.vmap(lambda q: qkv.attention(q, K, V))(Q[None]),
        lambda: torch.func.grad(lambda x: qkv.nn.MultiHeadAttention(8, 2)(x).sum())(X),
    ):
        with pytest.raises((ValueError, TypeError), match="qkv.torch"):
            call()


def test_tracers_of_jax() -> None:
    jax = pytest.importorskip("jax")
    q, x = (jax.numpy.asarray(a.numpy()) for a in (Q, X))
    layer = qkv.nn.MultiHeadAttention(8, 2)
    for call in (
        lambda: jax.jit(lambda q: qkv.attention(q, q, q))(q),
        lambda: jax.grad(lambda q: qkv.attention(q, q, q).sum())(q),
        lambda: jax.vmap(lambda q: qkv.attention(q, q, q))(q[None]),
        lambda: jax.jit(qkv.linear_attention)(q, q, q),
        lambda: jax.grad(lambda x: layer(x).sum())(x),
        lambda: jax.jit(qkv.nn.Linear(8, 3))(x),
    ):
        with pytest.raises(TypeError, match=r"must be an array: got \w+.*qkv.jax.attention"):
            call()
