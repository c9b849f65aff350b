"""Every function of qkv.torch under every relation that PyTorch asks of an operator: values and gradients are plain PyTorch's in each type;
gradients, gradients of gradients and forward mode are each other's; torch.func, compile, export, autocast, checkpoints and hooks give what
eager calls give. A new function is one row of operators.py."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operators import OPERATORS, Operator
from support_torch import DTYPES, compare, numbers
from torch import Tensor
from torch.autograd import forward_ad

every = pytest.mark.parametrize("name", OPERATORS)
twice = pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if not row.once])
forward = pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if not row.once and row.forward])


def results(x: Any) -> tuple[Tensor, ...]:
    return tuple(r for r in (x if isinstance(x, (tuple, list)) else (x,)) if r is not None)


def loss_of(row: Operator) -> Callable[..., Tensor]:
    return lambda *x: sum(r.sin().sum() for r in results(row.ours(*x)))


def plain(row: Operator) -> list[Tensor]:
    return [x.detach() for x in row.inputs()]


def gradients(row: Operator, inputs: list[Tensor] | None = None, loss: Any = None) -> tuple[Tensor, ...]:
    """By eager autograd, which gradcheck has checked."""
    inputs = [x.detach().requires_grad_() for x in inputs] if inputs is not None else row.inputs()
    return torch.autograd.grad((loss or loss_of(row))(*inputs), inputs)


def near(a: Any, b: Any) -> None:
    for x, y in zip(results(a), results(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def tangents(inputs: list[Tensor]) -> list[Tensor]:
    return [numbers(20 + n, *x.shape) for n, x in enumerate(inputs)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every
def test_values_and_gradients_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    row = OPERATORS[name]
    compare(row.ours, row.theirs, row.inputs(), dtype)


@twice
def test_first_and_second_derivatives(name: str) -> None:
    row = OPERATORS[name]
    assert torch.autograd.gradcheck(row.ours, row.inputs(), check_forward_ad=row.forward)
    assert torch.autograd.gradgradcheck(row.ours, row.inputs())


@every
def test_torch_func_is_autograd(name: str) -> None:
    row = OPERATORS[name]
    inputs, loss = plain(row), loss_of(row)
    positions = tuple(range(len(inputs)))
    exact = gradients(row)
    near(torch.func.grad(loss, positions)(*inputs), exact)
    if row.once:
        return
    hessian = torch.func.jacrev(torch.func.grad(loss))(*inputs)
    for vectorize in (False, True):
        near(torch.autograd.functional.hessian(lambda q: loss(q, *inputs[1:]), inputs[0], vectorize=vectorize), hessian)
    if row.forward:
        moved = tangents(inputs)
        value, slope = torch.func.jvp(loss, tuple(inputs), tuple(moved))
        assert torch.equal(value, loss(*inputs))
        near(slope, sum((a * t).sum() for a, t in zip(exact, moved)))
        near(torch.func.jacfwd(lambda *x: results(row.ours(*x)))(*inputs), torch.func.jacrev(lambda *x: results(row.ours(*x)))(*inputs))
        with forward_ad.dual_level():
            dual = row.ours(*map(forward_ad.make_dual, inputs, moved))
            eager = [forward_ad.unpack_dual(x).tangent for x in results(dual)]
        near(torch.func.jvp(lambda *x: results(row.ours(*x)), tuple(inputs), tuple(moved))[1], eager)


@every
def test_derivatives_that_are_not_computed_say_so(name: str) -> None:
    row = OPERATORS[name]
    inputs, loss = plain(row), loss_of(row)
    jvp = lambda: torch.func.jvp(loss, tuple(inputs), tuple(inputs))
    once, weights = "differentiated once, in reverse mode", "forward mode is not computed where weights are wanted too"
    ways = {lambda: torch.func.jacfwd(torch.func.grad(loss))(*inputs): once if row.once else "take backward twice"}
    if row.once:
        ways |= {jvp: once, lambda: torch.func.grad(lambda q: torch.func.grad(loss)(q, *inputs[1:]).sum())(inputs[0]): once}
    for way, words in ways.items():
        with pytest.raises(NotImplementedError, match=words):
            way()
    if row.once or not row.forward:
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=once if row.once else weights):
            row.ours(*map(forward_ad.make_dual, inputs, inputs))


@pytest.mark.parametrize("axis", (0, 1, -1))
@every
def test_vmap(name: str, axis: int) -> None:
    """Over the first tensor, the others shared; over all."""
    row = OPERATORS[name]
    inputs, loss = plain(row), loss_of(row)
    several = [torch.stack([x, 2 * x, x - 1] if n < 3 else [x] * 3, axis) for n, x in enumerate(inputs)]
    functions = [lambda *x: results(row.ours(*x)), torch.func.grad(loss, tuple(range(len(inputs))))]
    if row.forward and not row.once:
        functions.append(lambda q, *x: torch.func.jvp(lambda q: results(row.ours(q, *x)), (q,), (inputs[0],))[1])
    for batched in (1, len(inputs)):
        given = [*several[:batched], *inputs[batched:]]
        for function in functions:
            made = torch.vmap(function, tuple(axis if n < batched else None for n in range(len(inputs))))(*given)
            for n in range(3):
                near([x[n] for x in made], function(*(x.select(axis, n).contiguous() if m < batched else x for m, x in enumerate(given))))


@every
def test_batched_gradients(name: str) -> None:
    row = OPERATORS[name]
    inputs = row.inputs()
    out = results(row.ours(*inputs))[0]
    many = torch.stack([numbers(n, *out.shape) for n in range(3)])
    batched = torch.autograd.grad(out, inputs, many, is_grads_batched=True, retain_graph=True, allow_unused=True)
    for n in range(3):
        for a, b in zip(batched, torch.autograd.grad(out, inputs, many[n], retain_graph=True, allow_unused=True)):
            near(() if a is None else a[n], () if b is None else b)
    if not row.once:
        jacobian = torch.autograd.functional.jacobian
        near(*(jacobian(lambda q: results(row.ours(q, *inputs[1:]))[0], inputs[0].detach(), vectorize=way) for way in (True, False)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@forward
def test_forward_mode_of_other_types(name: str, dtype: torch.dtype) -> None:
    row = OPERATORS[name]
    inputs = plain(row)
    moved = tangents(inputs)
    exact = torch.func.jvp(lambda *x: results(row.ours(*x))[0], tuple(inputs), tuple(moved))[1]
    made = torch.func.jvp(lambda *x: results(row.ours(*x))[0], *(tuple(x.to(dtype) for x in side) for side in (inputs, moved)))[1]
    assert made.dtype is dtype and (made.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * exact.abs().max()


@twice
def test_second_derivatives_of_16_bits(name: str) -> None:
    """By float32: against the float32 result on the same inputs."""
    row = OPERATORS[name]

    def penalty(dtype: torch.dtype) -> Tensor:
        inputs = [x.to(dtype).requires_grad_() for x in plain(row)]
        (first,) = torch.autograd.grad(results(row.ours(*inputs))[0].float().square().sum(), inputs[0], create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), inputs[1])[0].double()

    wide = penalty(torch.float32)
    assert (penalty(torch.bfloat16) - wide).abs().max() < 0.05 * wide.abs().max()


@every
def test_compiles_and_exports_whole(name: str) -> None:
    torch._dynamo.reset()
    row = OPERATORS[name]
    expected = [loss_of(row)(*plain(row)), *gradients(row)]
    compiled = torch.compile(loss_of(row), fullgraph=bool(row.graph), backend="aot_eager")
    near([compiled(*plain(row)), *gradients(row, loss=compiled)], expected)
    if not row.graph:
        return

    class Layer(torch.nn.Module):
        def forward(self, *x: Tensor) -> Any:
            return results(row.ours(*x))

    for strict in (False, True):
        program = torch.export.export(Layer(), tuple(plain(row)), strict=strict)
        assert row.graph in str(program.graph) and "aten.scaled_dot" not in str(program.graph)
        near(program.module()(*plain(row)), row.ours(*plain(row)))


@every
def test_autocast(name: str) -> None:
    row = OPERATORS[name]
    wide = [x.float() for x in plain(row)]
    if name.startswith(("layer", "flex", "selective", "short")):
        pytest.skip("test_torch_mha.py compares layers with PyTorch's; flex_attention and what takes several types cast nothing")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = results(row.ours(*wide))[0]
        mixed = results(row.ours(*wide[:2], wide[2].bfloat16(), *wide[3:]))[0] if not name.startswith("latent") else made
    narrow = results(row.ours(*(x.bfloat16() for x in wide)))[0]
    assert torch.equal(mixed, narrow)
    # As PyTorch's: these two are on no list of autocast, and cast only what differs.
    assert torch.equal(made, results(row.ours(*wide))[0] if name.startswith("varlen") or row.once else narrow)


@every
def test_checkpoints_hooks_and_changes_in_place(name: str) -> None:
    row = OPERATORS[name]
    inputs, loss = row.inputs(), loss_of(row)
    expected = gradients(row)
    for reentrant in (False, True):
        for x in inputs:
            x.grad = None
        torch.utils.checkpoint.checkpoint(loss, *inputs, use_reentrant=reentrant).backward()
        assert all(torch.equal(x.grad, e) for x, e in zip(inputs, expected))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()):
        assert all(torch.equal(a, e) for a, e in zip(gradients(row), expected))
    out = results(row.ours(*(x * 1 for x in inputs)))[0]
    if name.startswith("sdpa"):
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@every
def test_negated_views_are_what_they_mean(name: str) -> None:
    row = OPERATORS[name]
    inputs = plain(row)
    for n, x in enumerate(inputs):
        near(*(row.ours(*(y if m == n else z for m, z in enumerate(inputs))) for y in (torch._neg_view(x), -x)))
