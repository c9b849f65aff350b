"""What differentiates, compiles, exports and batches qkv.torch.varlen_attn. Not: numbers (test_torch_varlen.py)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv.torch as qt
from packed import leaves, offsets, ours
from qkv.torch import _varlen_calls as graph
from support_torch import numbers
from torch import Tensor


@pytest.mark.parametrize("options", ({}, {"window_size": (-1, 0)}, {"seqused_k": torch.tensor([2, 0, 3])}), ids=str)
def test_first_and_second_derivatives(options: dict[str, Any]) -> None:
    """out and lse, in reverse and in forward mode."""
    lengths = ([2, 1, 3], [3, 1, 4])
    keep = torch.ones(3, 4, dtype=torch.bool) if "seqused_k" not in options else None
    call = ours(lengths, keep is not None, **options)
    inputs = leaves(*lengths)
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("options", ({}, {"window_size": (-1, 0)}), ids=str)
def test_operators_keep_their_contracts(options: dict[str, Any]) -> None:
    """torch.library.opcheck: schema, fake kernels, autograd registration, AOT dispatch."""
    q, k, v = leaves([3, 2], [4, 2])
    cu_q, cu_k = offsets([3, 2]), offsets([4, 2])
    rules = (3, 4, *options.get("window_size", (-1, -1)), True, 0.4, 0.0)
    packed = (q, k, v, cu_q, cu_k, None, None, None)
    torch.library.opcheck(graph.packed.operator, (*packed, *rules))
    used = torch.tensor([2, 1])
    torch.library.opcheck(graph.packed.operator, (*packed[:5], used, None, None, *rules))
    seed = torch.tensor([7])
    torch.library.opcheck(graph.packed.operator, (*packed[:7], seed, *rules[:-1], 0.5))
    plain = tuple(x.detach() if x is not None else None for x in packed)
    out, lse = graph.packed.operator(*plain, *rules)
    torch.library.opcheck(graph.packed_out, (out.clone(), *plain, *rules))
    pages = tuple(x.detach()[None].contiguous() for x in (k, v))
    table = torch.zeros(2, 1, dtype=torch.int32)
    torch.library.opcheck(graph.packed.operator, (plain[0], *pages, cu_q, None, used, table, None, *rules))
    dout, dlse = numbers(5, *out.shape).requires_grad_(), numbers(6, *lse.shape)
    for given in (None, dlse):
        torch.library.opcheck(graph.packed_backward.operator, (dout, given, *packed, out, lse, *rules))
        cotangents = (plain[0], None, plain[2], dout.detach(), given)
        torch.library.opcheck(graph.packed_double_backward.operator, (*cotangents, *plain, out, lse, *rules))
    torch.library.opcheck(graph.packed_jvp.operator, (plain[0], None, plain[2], *plain, lse, *rules))


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
def test_compiles_whole(backend: str) -> None:
    torch._dynamo.reset()

    def call(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        out, lse = qt.varlen_attn(
            q * 2, k, v, cu, cu, 9, 9, window_size=(-1, 0), enable_gqa=True, return_aux=qt.AuxRequest(lse=True)
        )
        return (out.sin().sum((1, 2)) + lse.cos().sum(0)).sum()

    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=True)
    for lens in ([5, 9], [2, 8, 3]):
        results = []
        for function in (compiled, call):
            inputs = leaves(lens, lens)
            loss = function(*inputs, offsets(lens))
            results.append([loss, *torch.autograd.grad(loss, inputs)])
        for a, b in zip(*results):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_exports() -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
            return qt.varlen_attn(q, k, v, cu, cu, 9, 9, window_size=(-1, 0), enable_gqa=True)

    tokens = torch.export.Dim("tokens")
    dynamic = {n: {0: tokens} for n in "qkv"} | {"cu": {0: torch.export.Dim("sequences")}}
    inputs = [*(x.detach() for x in leaves([5, 4], [5, 4])), offsets([5, 4])]
    for strict in (False, True):
        program = torch.export.export(Layer(), tuple(inputs), dynamic_shapes=dynamic, strict=strict)
        assert "qkv.varlen_attention" in str(program.graph)
        other = [*(x.detach() for x in leaves([3, 2, 9], [3, 2, 9])), offsets([3, 2, 9])]
        assert torch.equal(program.module()(*other), Layer()(*other))


def test_torch_func() -> None:
    lengths = ([3, 2], [3, 2])
    call = ours(lengths, window_size=(-1, 0))
    inputs = leaves(*lengths)
    plain = [x.detach() for x in inputs]

    def loss(*x: Tensor) -> Tensor:
        out, lse = call(*x)
        return out.sin().sum() + lse.cos().sum()

    expected = torch.autograd.grad(loss(*inputs), inputs)
    for a, b in zip(torch.func.grad(loss, (0, 1, 2))(*plain), expected):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    tangents = [numbers(20 + n, *x.shape) for n, x in enumerate(plain)]
    value, slope = torch.func.jvp(loss, tuple(plain), tuple(tangents))
    assert torch.allclose(slope, sum((a * t).sum() for a, t in zip(expected, tangents))) and torch.equal(value, loss(*plain))
    by_columns, by_rows = (f(call)(*plain) for f in (torch.func.jacfwd, torch.func.jacrev))
    for a, b in zip(by_columns, by_rows):
        assert torch.allclose(a, b)
    hessian = torch.func.jacrev(torch.func.grad(loss))(*plain)
    exact = torch.autograd.functional.hessian(lambda q: loss(q, *plain[1:]), plain[0])
    assert torch.allclose(hessian, exact)
    with pytest.raises(NotImplementedError, match="take backward twice"):
        torch.func.jacfwd(torch.func.grad(loss))(*plain)


@pytest.mark.parametrize("in_dims", ((0, 0, 0), (1, None, None), (None, 2, 0), (3, 1, None)), ids=str)
def test_vmap(in_dims: tuple[int | None, ...]) -> None:
    lengths = ([3, 2], [4, 2])
    call = ours(lengths, window_size=(-1, 0))
    plain = [x.detach() for x in leaves(*lengths)]
    batched = [x if d is None else torch.stack([x, 2 * x, x + 1], d) for x, d in zip(plain, in_dims)]

    def loss(*x: Tensor) -> Tensor:
        return sum(r.sin().sum() for r in call(*x))

    results = torch.func.vmap(call, in_dims)(*batched)
    gradients = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), in_dims)(*batched)
    for n in range(3):
        own = [x if d is None else x.select(d, n).contiguous() for x, d in zip(batched, in_dims)]
        for a, b in zip(results, call(*own)):
            assert torch.allclose(a[n], b, rtol=1e-12, atol=1e-13)
        for a, b in zip(gradients, torch.func.grad(loss, (0, 1, 2))(*own)):
            assert torch.allclose(a[n], b, rtol=1e-12, atol=1e-13)


def test_vmap_over_offsets_is_refused() -> None:
    q, k, v = (x.detach() for x in leaves([3, 2], [3, 2]))
    many = torch.stack([offsets([3, 2]), offsets([2, 3])])
    with pytest.raises(NotImplementedError, match="offsets, lengths or pages that differ"):
        torch.func.vmap(lambda cu: qt.varlen_attn(q, k, v, cu, cu, 3, 3, enable_gqa=True))(many)


def test_batched_gradients() -> None:
    lengths = ([3, 2], [3, 2])
    call, inputs = ours(lengths, False), leaves(*lengths)
    out = call(*inputs)
    dout = torch.stack([numbers(n, *out.shape) for n in range(3)])
    batched = torch.autograd.grad(out, inputs, dout, is_grads_batched=True, retain_graph=True)
    for n in range(3):
        for a, b in zip(batched, torch.autograd.grad(out, inputs, dout[n], retain_graph=True)):
            assert torch.allclose(a[n], b, rtol=1e-12, atol=1e-14)


def test_checkpoints() -> None:
    lengths = ([3, 2], [3, 2])
    call, inputs = ours(lengths, False, window_size=(-1, 0)), leaves(*lengths)
    expected = torch.autograd.grad(call(*inputs).sin().sum(), inputs)
    for reentrant in (False, True):
        out = torch.utils.checkpoint.checkpoint(call, *inputs, use_reentrant=reentrant)
        for a, b in zip(torch.autograd.grad(out.sin().sum(), inputs) if not reentrant else _backward(out, inputs), expected):
            assert torch.equal(a, b)


def _backward(out: Tensor, inputs: list[Tensor]) -> list[Tensor | None]:
    out.sin().sum().backward()  # what use_reentrant=True asks for
    return [x.grad for x in inputs]


# The switch


def test_enable_and_disable() -> None:
    torch._dynamo.reset()
    import torch.nn.attention.varlen as pytorchs

    names = ("varlen_attn", "varlen_attn_out")
    before = [getattr(pytorchs, name) for name in names]
    q, k, v = leaves([5, 4], [5, 4], 4)
    cu = offsets([5, 4])

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return pytorchs.varlen_attn(q, k, v, cu, cu, 5, 5, window_size=(-1, 0))

    expected = qt.varlen_attn(q, k, v, cu, cu, 5, 5, window_size=(-1, 0))
    with qt.enable():
        assert pytorchs.varlen_attn is before[0]
        with pytest.raises(RuntimeError):
            call(q, k, v)  # PyTorch has none for the CPU
    qt.enable()
    with qt.enable(varlen=True):
        with qt.enable(varlen=True):
            pass
        out = call(q, k, v)
        assert torch.equal(out, expected)
        for a, b in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), (q, k, v))):
            assert torch.equal(a, b)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), expected)
        into = torch.empty_like(expected)
        with torch.no_grad():
            assert pytorchs.varlen_attn_out(into, q, k, v, cu, cu, 5, 5, window_size=(-1, 0)) is into
        assert torch.equal(into, expected)
        assert call(*(x.detach().to("meta") for x in (q, k, v))).device.type == "meta"  # another device: PyTorch's
    assert [getattr(pytorchs, name) for name in names] == before and qt.is_enabled()
    qt.disable()
    assert not qt.is_enabled()
