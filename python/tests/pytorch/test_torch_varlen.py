"""qkv.torch.varlen_attn: torch.nn.attention.varlen's signature and meaning on packed sequences, against each sequence alone; what
differentiates, compiles and batches it; memory. Not: nested tensors (test_torch_nested.py)."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from qkv.torch import _varlen_operators
from support_torch import compare, numbers
from torch import Tensor

pytorchs = pytest.importorskip("torch.nn.attention.varlen")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
H, HKV, D, DV = 4, 2, 8, 6
# Lengths of queries and keys: alike; different, with more keys; more queries, so that some rows are empty; no queries, no keys.
LENGTHS = {
    "alike": ([5, 1, 9], [5, 1, 9]),
    "more keys": ([3, 1, 6], [7, 4, 6]),
    "more queries": ([6, 2, 70], [3, 1, 65]),
    "empty ones": ([4, 0, 3, 0], [4, 5, 0, 0]),
}
WINDOWS = ((-1, -1), (-1, 0), (2, 0), (1, 2), (-1, 3), (3, -1), (0, 0))


def offsets(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def leaves(q_lens: list[int], k_lens: list[int], kv_heads: int = HKV) -> list[Tensor]:
    shapes = ((sum(q_lens), H, D), (sum(k_lens), kv_heads, D), (sum(k_lens), kv_heads, DV))
    return [numbers(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]


def shown(q_len: int, k_len: int, window: tuple[int, int]) -> Tensor:
    """bool [q_len, k_len]: the window, aligned at the bottom right."""
    centre = torch.arange(q_len)[:, None] + k_len - q_len
    j = torch.arange(k_len)
    left, right = (10**6 if n == -1 else n for n in window)
    return (j >= centre - left) & (j <= centre + right)


def one(q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], scale: float | None) -> tuple[Tensor, Tensor]:
    """The textbook on one sequence: out [T, H, Dv], lse [H, T]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) * (D**-0.5 if scale is None else scale)
    s = torch.where(shown(q.shape[0], k.shape[0], window), s, -torch.inf)
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[2]), q.new_full((q.shape[1], q.shape[0]), -torch.inf)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    w = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, s), -1))
    return torch.einsum("hij,jhd->ihd", w, v), torch.logsumexp(s, -1)


def alone(lengths: tuple[list[int], list[int]], window: tuple[int, int], scale: float | None = None, used: Any = None) -> Any:
    """Each sequence by the textbook, then packed again."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys = [[x[: used[n]] if used else x for n, x in enumerate(y.split(lengths[1]))] for y in (k, v)]
        parts = [one(*x, window, scale) for x in zip(q.split(lengths[0]), *keys)]
        lse = torch.cat([lse for _, lse in parts], 1)
        return torch.cat([out for out, _ in parts]), lse.to(torch.float64 if lse.dtype is torch.float64 else torch.float32)

    return call


def ours(lengths: tuple[list[int], list[int]], lse: bool = True, dtype: torch.dtype = torch.int32, **options: Any) -> Any:
    cu_q, cu_k = (offsets(x, dtype) for x in lengths)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        longest, aux = (max(x, default=0) for x in lengths), qt.AuxRequest(lse=lse)
        return qt.varlen_attn(q, k, v, cu_q, cu_k, *longest, enable_gqa=k.shape[1] != H, return_aux=aux, **options)

    return call


# Numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_each_sequence_is_as_if_it_were_alone(name: str, window: tuple[int, int], dtype: torch.dtype) -> None:
    lengths = LENGTHS[name]
    theirs = alone(lengths, window)
    _, lse = theirs(*(x.detach() for x in leaves(*lengths)))
    whole = not torch.isneginf(lse).any()  # an lse of no keys has no gradient to compare
    compare(
        ours(lengths, whole, window_size=window), theirs if whole else lambda *x: theirs(*x)[0], leaves(*lengths), dtype
    )  # fmt: skip
    assert torch.equal(torch.isneginf(ours(lengths, window_size=window)(*leaves(*lengths))[1]), torch.isneginf(lse))


def test_scale_heads_and_offsets_of_64_bits() -> None:
    lengths = LENGTHS["more keys"]
    compare(ours(lengths, dtype=torch.int64, scale=0.3), alone(lengths, (-1, -1), 0.3), leaves(*lengths, kv_heads=H))
    compare(ours(lengths, scale=-0.3), alone(lengths, (-1, -1), -0.3), leaves(*lengths, kv_heads=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", ((-1, -1), (-1, 0)), ids=str)
def test_the_bits_are_those_of_each_alone(window: tuple[int, int], dtype: torch.dtype) -> None:
    lens = [1, 63, 64, 65, 200]
    inputs = [x.detach().to(dtype).requires_grad_() for x in leaves(lens, lens)]
    dout = numbers(9, sum(lens), H, DV, dtype=dtype)
    out, lse = ours((lens, lens), window_size=window)(*inputs)
    gradients = torch.autograd.grad(out, inputs, dout)
    for n, rows in enumerate(torch.arange(sum(lens)).split(lens)):
        each = [x.detach()[rows].requires_grad_() for x in inputs]
        own, own_lse = ours(([lens[n]], [lens[n]]), window_size=window)(*each)
        assert torch.equal(out[rows], own) and torch.equal(lse[:, rows], own_lse)
        for whole, mine in zip(gradients, torch.autograd.grad(own, each, dout[rows])):
            assert torch.equal(whole[rows], mine)
        dense = [x.transpose(0, 1)[None] for x in each]
        straight = qkv.attention(*(x.detach() for x in dense), causal="bottom_right" if window[1] == 0 else False)
        assert torch.equal(own, straight[0].transpose(0, 1))


def test_strides_and_tokens_behind_the_last_sequence() -> None:
    lens = [5, 4]
    packed = numbers(1, 12, 3, H, D).requires_grad_()  # three tokens more than the sequences have
    out, lse = ours((lens, lens), window_size=(-1, 0))(*packed.unbind(1))
    (gradient,) = torch.autograd.grad(out.sum() + lse[:, :9].sum(), packed)
    own = packed.detach()[:9].requires_grad_()
    expected = ours((lens, lens), window_size=(-1, 0))(*own.unbind(1))
    assert torch.equal(out[:9], expected[0]) and not out[9:].any() and torch.isneginf(lse[:, 9:]).all()
    assert torch.equal(gradient[:9], torch.autograd.grad(sum(x.sum() for x in expected), own)[0]) and not gradient[9:].any()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_keys_in_use(window: tuple[int, int]) -> None:
    lengths, used = ([3, 1, 6, 2], [7, 4, 9, 2]), [5, 4, 3, 0]
    theirs = alone(lengths, window, used=used)
    for dtype in (torch.int32, torch.int64):
        mine = ours(lengths, False, window_size=window, seqused_k=torch.tensor(used, dtype=dtype))
        compare(mine, lambda *x: theirs(*x)[0], leaves(*lengths))


def test_keys_behind_those_in_use_are_not_read() -> None:
    q, k, v = (x.detach() for x in leaves([2, 1], [5, 6]))
    used = torch.tensor([3, 2])
    call = ours(([2, 1], [5, 6]), False, window_size=(-1, 0), seqused_k=used)
    expected = call(q, k, v)
    for x in (k, v):
        x[3:5], x[7:] = torch.nan, torch.inf
    assert torch.equal(call(q, k, v), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", ((-1, -1), (-1, 0), (3, 0)), ids=str)
def test_pages(window: tuple[int, int], dtype: torch.dtype) -> None:
    used, page = [7, 0, 9, 4], 4
    q, k, v = (x.detach().to(dtype) for x in leaves([2, 1, 3, 1], used))
    table = torch.full((4, 3), -1, dtype=torch.int32)
    pools = [torch.full((9, page, *x.shape[1:]), torch.nan, dtype=dtype) for x in (k, v)]
    free = [8, 2, 5, 0, 7, 1]
    for n, rows in enumerate(torch.arange(sum(used)).split(used)):
        for m, part in enumerate(rows.split(page) if len(rows) else ()):
            table[n, m] = free.pop()
            for pool, x in zip(pools, (k, v)):
                pool[table[n, m], : len(part)] = x[part]
    cu = offsets([2, 1, 3, 1])
    given = {"window_size": window, "enable_gqa": True, "seqused_k": torch.tensor(used), "block_table": table}
    for cu_k in (None, offsets(used)):
        out = qt.varlen_attn(q, *pools, cu, cu_k, 3, 9, **given)
        assert torch.equal(out, ours(([2, 1, 3, 1], used), False, window_size=window)(q, k, v))
    with pytest.raises(NotImplementedError, match="block_table is for inference"):
        qt.varlen_attn(q.clone().requires_grad_(), *pools, cu, None, 3, 9, **given).sum().backward()
    with pytest.raises(ValueError, match=r"must name 2 of 9 pages for seqused_k\[0\] = 7: got"):
        qt.varlen_attn(q, *pools, cu, None, 3, 9, **{**given, "block_table": table + 4})


def test_the_signature_and_the_shapes_are_pytorchs() -> None:
    for mine, theirs in ((qt.varlen_attn, pytorchs.varlen_attn), (qt.varlen_attn_out, pytorchs.varlen_attn_out)):
        a, b = (inspect.signature(f).parameters for f in (mine, theirs))
        assert [(p.name, p.kind, p.default) for p in a.values()] == [(p.name, p.kind, p.default) for p in b.values()]
    q, k, v = (x.detach().to(torch.bfloat16) for x in leaves([5, 4], [5, 4], H))
    cu = offsets([5, 4])
    with torch._subclasses.FakeTensorMode() as mode:  # PyTorch's has no kernel for the CPU
        fake = [mode.from_tensor(x) for x in (q, k, k, cu, cu)]
        theirs = pytorchs.varlen_attn(*fake, 5, 5, return_aux=pytorchs.AuxRequest(lse=True))
        mine = qt.varlen_attn(*fake, 5, 5, return_aux=pytorchs.AuxRequest(lse=True))
    assert [(x.shape, x.dtype) for x in mine] == [(x.shape, x.dtype) for x in theirs]
    assert torch.equal(qt.varlen_attn(q, k, v, cu, cu, 5, 5, num_splits=1), qt.varlen_attn(q, k, v, cu, cu, 99, 5))


def test_into_a_given_tensor() -> None:
    q, k, v = (x.detach() for x in leaves([5, 4], [5, 4]))
    cu = offsets([5, 4])
    out = torch.full((9, 2 * H, DV), torch.nan, dtype=q.dtype)[:, ::2]
    expected = ours(([5, 4], [5, 4]), window_size=(-1, 0))(q, k, v)
    made = qt.varlen_attn_out(
        out, q, k, v, cu, cu, 5, 5, window_size=(-1, 0), enable_gqa=True, return_aux=qt.AuxRequest(lse=True)
    )
    assert made[0] is out and torch.equal(out, expected[0]) and torch.equal(made[1], expected[1])
    assert qt.varlen_attn_out(out, q, k, v, cu, cu, 5, 5, enable_gqa=True) is out
    with pytest.raises(NotImplementedError, match="gradients are not computed, as in PyTorch"):
        qt.varlen_attn_out(out, q.requires_grad_(), k, v, cu, cu, 5, 5, enable_gqa=True)
    with pytest.raises(ValueError, match="out must be"):
        qt.varlen_attn_out(out[:3], q.detach(), k, v, cu, cu, 5, 5, enable_gqa=True)


def test_arguments_that_do_not_fit() -> None:
    q, k, v = (x.detach() for x in leaves([5, 4], [5, 4], H))
    cu, used = offsets([5, 4]), torch.tensor([5, 4])

    def call(q: Tensor = q, k: Tensor = k, v: Tensor = v, cu_q: Any = cu, cu_k: Any = cu, most: int = 5, **options: Any) -> Any:
        return qt.varlen_attn(q, k, v, cu_q, cu_k, most, most, **options)

    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="must have the same number of heads"):
            call(k=k[:, :2], v=v[:, :2])
        with pytest.raises(error, match="must divide"):
            call(k=k[:, :3], v=v[:, :3], enable_gqa=True)
        with pytest.raises(error, match=r"\[tokens, heads, width\]"):
            call(q=q[None])
        with pytest.raises(error, match="same tokens and heads"):
            call(v=v[1:])
        with pytest.raises(error, match="must start with 0"):
            call(cu_q=cu + 1)
        with pytest.raises(error, match="end at no more than 9 tokens"):
            call(cu_k=cu * 2)
        with pytest.raises(error, match="max_q must be the longest"):
            call(most=4)
        with pytest.raises(error, match="cu_seq_k must be int32"):
            call(cu_k=cu[:2])
        with pytest.raises(error, match="cu_seq_q must be int32"):
            call(cu_q=cu.float())
        with pytest.raises(error, match="cu_seq_k must be given"):
            call(cu_k=None)
        with pytest.raises(error, match="seqused_k must be from 0"):
            call(seqused_k=used + 1)
        with pytest.raises(error, match="block_table needs seqused_k"):
            call(k=k[None], v=v[None], block_table=torch.zeros(2, 1, dtype=torch.int32))
        with pytest.raises(error, match="window_size must be two counts"):
            call(window_size=(-2, 0))
        with pytest.raises(error, match="CPU's memory"):
            call(q=q.to("meta"))
    with pytest.raises(TypeError, match="cast them"):
        call(q=q.float())


# Derivatives and transforms


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
    torch.library.opcheck(_varlen_operators.attention, (*packed, *rules))
    used = torch.tensor([2, 1])
    torch.library.opcheck(_varlen_operators.attention, (*packed[:5], used, None, None, *rules))
    seed = torch.tensor([7])
    torch.library.opcheck(_varlen_operators.attention, (*packed[:7], seed, *rules[:-1], 0.5))
    plain = tuple(x.detach() if x is not None else None for x in packed)
    out, lse = _varlen_operators.attention(*plain, *rules)
    torch.library.opcheck(_varlen_operators.attention_out, (out.clone(), *plain, *rules))
    pages = tuple(x.detach()[None].contiguous() for x in (k, v))
    table = torch.zeros(2, 1, dtype=torch.int32)
    torch.library.opcheck(_varlen_operators.attention, (plain[0], *pages, cu_q, None, used, table, None, *rules))
    dout, dlse = numbers(5, *out.shape).requires_grad_(), numbers(6, *lse.shape)
    for given in (None, dlse):
        torch.library.opcheck(_varlen_operators.attention_backward, (dout, given, *packed, out, lse, *rules))
        cotangents = (plain[0], None, plain[2], dout.detach(), given)
        torch.library.opcheck(_varlen_operators.attention_double_backward, (*cotangents, *plain, out, lse, *rules))
    torch.library.opcheck(_varlen_operators.attention_jvp, (plain[0], None, plain[2], *plain, lse, *rules))


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


def test_memory_is_of_the_order_of_the_tokens() -> None:
    """128 sequences of 512 tokens, forward and backward: what they return and the gradient of out, twice over, and no more; their
    weights would be 2.6 times that."""
    script = """
    import resource, torch, qkv.torch
    def run(count, length):
        q, k, v = (torch.randn(count * length, 2, 32, requires_grad=True) for _ in range(3))
        cu = torch.arange(count + 1, dtype=torch.int32) * length
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out = qkv.torch.varlen_attn(q, k, v, cu, cu, length, length)
        out.sum().backward()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    run(2, 64)
    print(run(128, 512))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    results = (3 + 1 + 1) * 128 * 512 * 2 * 32 * 4  # dq, dk, dv, out, dout
    assert int(done.stdout) * 1024 < 2 * results < 128 * 2 * 512**2 * 4 * 2
