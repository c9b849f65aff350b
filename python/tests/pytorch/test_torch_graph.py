"""The registered operators themselves, and graphs with what a table of cases does not have: dropout, shapes that change, other backends, tracers."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv.torch as qt
from operators import delta_inputs, leaves, offsets, packed_leaves
from qkv.torch import _varlen_calls as graph
from support_torch import numbers
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

sdpa = qt.scaled_dot_product_attention
opcheck = torch.library.opcheck


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


def operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [numbers(n, 2, 2, 5, 8, dtype=dtype) for n in range(3)]


# torch.library.opcheck: schema, fake kernels (shapes and strides), autograd registration, AOT dispatch.


@pytest.mark.parametrize("masks", ("none", "bias", "keep"))
def test_operators_of_attention_keep_their_contracts(masks: str) -> None:
    q, k, v = leaves((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    bias = numbers(4, 2, 1, 5, 5).requires_grad_() if masks == "bias" else None
    keep = numbers(4, 1, 1, 5, 5) > -0.5 if masks == "keep" else None
    rules = (0.0, False, None, "zero")
    opcheck(torch.ops.qkv.attention.default, (q, k, v, bias, keep, None, *rules))
    opcheck(torch.ops.qkv.attention.default, (*(x.transpose(1, 2) for x in (q, k, v)), None, None, None, *rules))
    out, lse, low = (x.detach() for x in torch.ops.qkv.attention.default(q, k, v, bias, keep, None, *rules))
    dout = numbers(9, *out.shape).requires_grad_()
    opcheck(torch.ops.qkv.attention_backward.default, (dout, None, q, k, v, bias, keep, None, out, lse, low, *rules, 7 if bias is None else 15))
    plain = [None if x is None else x.detach() for x in (dout, q, k, v, bias, keep)]
    cotangents = (*plain[1:4], None if bias is None else torch.ones_like(bias))
    for dlse in (None, numbers(10, *lse.shape)):
        opcheck(torch.ops.qkv.attention_double_backward.default, (*cotangents, plain[0], dlse, *plain[1:], None, out, lse, *rules))
    opcheck(torch.ops.qkv.attention_jvp.default, (plain[1], None, torch.ones_like(v), plain[4], *plain[1:], None, lse, *rules))


@pytest.mark.parametrize("window", ((-1, -1), (-1, 0)), ids=str)
def test_operators_of_packed_sequences_keep_their_contracts(window: tuple[int, int]) -> None:
    q, k, v = packed_leaves([3, 2], [4, 2])
    cu_q, cu_k, used = offsets([3, 2]), offsets([4, 2]), torch.tensor([2, 1])
    rules, extras = (3, 4, *window, 0.4, 2.0, 0.25), (torch.tensor([1.0, 0.5, 0.25, 0.125]), torch.tensor([7]))
    sinks = numbers(4, q.shape[1]).requires_grad_()
    packed = (q, k, v, sinks, cu_q, cu_k, None, None, *extras)
    opcheck(graph.packed.operator, (*packed, *rules))
    opcheck(graph.packed.operator, (*packed[:6], used, None, None, None, *rules[:-1], 0.0))
    plain = tuple(x.detach() if x is not None else None for x in packed)
    out, lse = graph.packed.operator(*plain, *rules)
    pages = tuple(x.detach()[None].contiguous() for x in (k, v))
    opcheck(graph.packed.operator, (plain[0], *pages, None, cu_q, None, used, torch.zeros(2, 1, dtype=torch.int32), None, None, *rules[:-1], 0.0))
    dout, dlse = numbers(5, *out.shape), numbers(6, *lse.shape)
    for given in (None, dlse):
        opcheck(graph.packed_backward.operator, (dout, given, *plain, out, lse, *rules))


@pytest.mark.parametrize("channels", (False, True))
def test_the_scan_is_one_operator_with_the_bits_of_eager_calls(channels: bool) -> None:
    tensors = [x.detach().float().requires_grad_() for x in delta_inputs(1, 70, 2, 4, 8, 8, channels)]
    tensors[5] = numbers(2, 2, 4, 8, 8, dtype=torch.float32).requires_grad_()
    cuts = torch.tensor([0, 3, 70])

    def call(tensors: list[Tensor], cuts: Tensor) -> Any:
        rule = qt.chunk_kimi_delta_attention if channels else qt.chunk_gated_delta_rule
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True, "cu_seqlens": cuts}
        return rule(*tensors[:5], initial_state=tensors[5], **options)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for traced, eager in zip(compiled(tensors, cuts), call(tensors, cuts)):
        assert torch.equal(traced, eager)
        assert all(map(torch.equal, *(torch.autograd.grad(x.sum(), tensors, retain_graph=True) for x in (traced, eager))))
    opcheck(torch.ops.qkv.linear_scan.default, (*tensors, cuts, 0.5, True))


# Compiled.


def test_dropout_grouped_heads_and_other_ranks_compile() -> None:
    q, k, v = operands()
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first = compiled(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(compiled(q, k, v), first) and not torch.equal(compiled(q, k, v), first)
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 4, 3):
        keys = (k[:, :1, :length], v[:, :1, :length])
        assert torch.equal(compiled(q, *keys), sdpa(q, *keys, enable_gqa=True))
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v), fullgraph=True, backend="eager")
    assert torch.equal(compiled(q[0], k[0], v[0]), sdpa(q[0], k[0], v[0]))

    def autocast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return sdpa(q, k, v)

    out = torch.compile(autocast, fullgraph=True, backend="aot_eager")(q, k, v)
    assert out.dtype is torch.bfloat16 and torch.equal(out, autocast(q, k, v))


def test_a_bias_of_any_strides_compiles() -> None:
    q, k, v = (numbers(n, 1, 2, 5, 8, dtype=torch.float32) for n in range(3))
    bias = numbers(4, 5, 5, dtype=torch.float32).requires_grad_()
    grads = []
    for call in (qt.scaled_dot_product_attention, torch.compile(qt.scaled_dot_product_attention, backend="aot_eager", fullgraph=True)):
        grads += torch.autograd.grad(call(q, k, v, bias.mT).sin().sum(), bias)
    assert torch.equal(*grads)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
def test_packed_sequences_of_other_lengths_compile_once(backend: str) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        out, lse = qt.varlen_attn(q * 2, k, v, cu, cu, 9, 9, window_size=(-1, 0), enable_gqa=True, return_aux=qt.AuxRequest(lse=True))
        return (out.sin().sum((1, 2)) + lse.cos().sum(0)).sum()

    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=True)
    for lens in ([5, 9], [2, 8, 3]):
        results = []
        for function in (compiled, call):
            inputs = packed_leaves(lens, lens)
            loss = function(*inputs, offsets(lens))
            results.append([loss, *torch.autograd.grad(loss, inputs)])
        for a, b in zip(*results):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_packed_sequences_of_other_lengths_export() -> None:
    class Layer(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
            return qt.varlen_attn(q, k, v, cu, cu, 9, 9, window_size=(-1, 0), enable_gqa=True)

    tokens = torch.export.Dim("tokens")
    dynamic = {n: {0: tokens} for n in "qkv"} | {"cu": {0: torch.export.Dim("sequences")}}
    inputs = [*(x.detach() for x in packed_leaves([5, 4], [5, 4])), offsets([5, 4])]
    for strict in (False, True):
        program = torch.export.export(Layer(), tuple(inputs), dynamic_shapes=dynamic, strict=strict)
        other = [*(x.detach() for x in packed_leaves([3, 2, 9], [3, 2, 9])), offsets([3, 2, 9])]
        assert torch.equal(program.module()(*other), Layer()(*other))


# Traced.


@pytest.mark.filterwarnings("ignore")
def test_tracers() -> None:
    q, k, v = operands()

    class Layer(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v, dropout_p=0.0, scale=0.5)

    expected = Layer()(k, q, v)
    for made in (torch.jit.trace(Layer(), (q, k, v)), make_fx(Layer())(q, k, v), torch.fx.symbolic_trace(Layer())):
        assert torch.equal(made(k, q, v), expected)
    with torch._subclasses.FakeTensorMode() as mode:
        assert sdpa(*(mode.from_tensor(x) for x in (q, k, v))).shape == q.shape


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", ({}, {"is_causal": True, "scale": 0.7}, {"attn_mask": numbers(3, 5, 5)}), ids=lambda o: "-".join(o) or "plain")
def test_linearize(options: dict[str, Any]) -> None:
    """It traces forward mode, where a registered operator would drop the tangents."""
    q, k, v = operands(torch.float64)
    call, tangent = (lambda q: sdpa(q, k, v, **options)), numbers(5, *q.shape)
    out, slope = torch.func.linearize(call, q)
    assert torch.equal(out, call(q))
    torch.testing.assert_close(slope(tangent), torch.func.jvp(call, (q,), (tangent,))[1], rtol=1e-11, atol=1e-13)


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


def test_masks_and_keys_under_vmap() -> None:
    """Heads batched outside, keys shared; one query, many masks."""
    q, k, v = operands(torch.float64)
    out = torch.func.vmap(lambda q: sdpa(q, k[:, :1], v[:, :1]), in_dims=1, out_dims=1)(q[:, :, None])
    assert torch.allclose(out[:, :, 0], sdpa(q, k[:, :1], v[:, :1]))
    masks = numbers(6, 3, 1, 5, 5) > -0.5
    assert torch.equal(torch.func.vmap(lambda m: sdpa(q, k, v, attn_mask=m))(masks)[1], sdpa(q, k, v, attn_mask=masks[1]))
