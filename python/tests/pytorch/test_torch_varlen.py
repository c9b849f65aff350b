"""qkv.torch.varlen_attn: torch.nn.attention.varlen's signature and meaning on packed sequences, against each sequence alone; memory.
Not: what differentiates, compiles and batches it (test_torch_varlen_transforms.py)."""

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
from packed import DV, LENGTHS, D, H, leaves, offsets, ours
from support_torch import compare, expect_close, numbers
from torch import Tensor
from torch.autograd import forward_ad

pytorchs = pytest.importorskip("torch.nn.attention.varlen")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WINDOWS = ((-1, -1), (-1, 0), (2, 0), (1, 2), (-1, 3), (3, -1), (0, 0))


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
    lengths, used, page = [2, 1, 1, 3, 0], [7, 0, 9, 4, 2], 4
    q, k, v = (x.detach().to(dtype) for x in leaves(lengths, used))
    table = torch.full((5, 3), -1, dtype=torch.int32)
    pools = [torch.full((9, page, *x.shape[1:]), torch.nan, dtype=dtype) for x in (k, v)]
    free = [8, 2, 5, 0, 7, 1, 3]
    for n, rows in enumerate(torch.arange(sum(used)).split(used)):
        for m, part in enumerate(rows.split(page) if len(rows) else ()):
            table[n, m] = free.pop()
            for pool, x in zip(pools, (k, v)):
                pool[table[n, m], : len(part)] = x[part]
    cu = offsets(lengths)
    given = {"window_size": window, "enable_gqa": True, "seqused_k": torch.tensor(used), "block_table": table}
    theirs = alone((lengths, used), window)
    exact, naive = theirs(*(x.double() for x in (q, k, v))), theirs(q, k, v)
    aux = qt.AuxRequest(lse=True)
    for cu_k in (None, offsets(used)):
        made = qt.varlen_attn(q, *pools, cu, cu_k, 3, 9, return_aux=aux, **given)
        for fast, *rest in zip(made, exact, naive):
            expect_close(fast, *rest, dtype, "pages")
    for n, rows in enumerate(torch.arange(len(q)).split(lengths)):  # whatever the others are
        own = given | {"seqused_k": torch.tensor(used[n : n + 1]), "block_table": table[n : n + 1]}
        out, lse = qt.varlen_attn(q[rows], *pools, offsets(lengths[n : n + 1]), None, 3, 9, return_aux=aux, **own)
        assert torch.equal(out, made[0][rows]) and torch.equal(lse, made[1][:, rows])
    with pytest.raises(NotImplementedError, match="block_table is for inference"):
        qt.varlen_attn(q.clone().requires_grad_(), *pools, cu, None, 3, 9, **given).sum().backward()
    with pytest.raises(ValueError, match=r"must name 2 of 9 pages for seqused_k\[0\] = 7: got"):
        qt.varlen_attn(q, *pools, cu, None, 3, 9, **{**given, "block_table": table + 6})
    with pytest.raises(ValueError, match="max_k must be the longest"):
        qt.varlen_attn(q, *pools, cu, None, 3, 8, **given)


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


def test_autocast_casts_what_differs() -> None:
    q, k, v = (x.detach().float() for x in leaves([5, 4], [5, 4], H))
    cu = offsets([5, 4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = qt.varlen_attn(q, k, v.bfloat16(), cu, cu, 5, 5)
        assert qt.varlen_attn(q, k, v, cu, cu, 5, 5).dtype is torch.float32
    assert torch.equal(mixed, qt.varlen_attn(q.bfloat16(), k.bfloat16(), v.bfloat16(), cu, cu, 5, 5))


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
    with pytest.raises(NotImplementedError, match="gradients and tangents are not computed, as in PyTorch"):
        qt.varlen_attn_out(out, q.requires_grad_(), k, v, cu, cu, 5, 5, enable_gqa=True)
    with forward_ad.dual_level(), torch.no_grad(), pytest.raises(NotImplementedError, match="tangents are not computed"):
        qt.varlen_attn_out(out, forward_ad.make_dual(q.detach(), q.detach()), k, v, cu, cu, 5, 5, enable_gqa=True)
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


# Memory


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
