"""qkv.torch.varlen_attn: torch.nn.attention.varlen's signature and meaning on packed sequences, against each sequence alone; keys in use, pages,
memory."""

import inspect
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from operators import DV, D, H, each_alone, offsets, packed, packed_leaves
from support_torch import DTYPES, compare, expect_close, numbers

pytorchs = pytest.importorskip("torch.nn.attention.varlen")

WINDOWS = ((-1, -1), (-1, 0), (2, 0), (1, 2), (-1, 3), (3, -1), (0, 0))
# Lengths of queries and keys: alike, on both sides of a tile's; different, with more keys; more queries, so that some rows are empty; none.
LENGTHS = {
    "alike": ([5, 1, 9], [5, 1, 9]),
    "about a tile's": ([128, 127, 129, 3], [128, 127, 129, 3]),
    "more keys": ([3, 1, 6], [7, 4, 6]),
    "more queries": ([6, 2, 70], [3, 1, 65]),
    "empty ones": ([4, 0, 3, 0], [4, 5, 0, 0]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_each_sequence_is_as_if_it_were_alone(name: str, window: tuple[int, int], dtype: torch.dtype) -> None:
    lengths = LENGTHS[name]
    theirs = each_alone(lengths, window)
    _, lse = theirs(*(x.detach() for x in packed_leaves(*lengths)))
    whole = not torch.isneginf(lse).any()  # an lse of no keys has no gradient to compare
    compare(packed(lengths, whole, window_size=window), theirs if whole else lambda *x: theirs(*x)[0], packed_leaves(*lengths), dtype)
    assert torch.equal(torch.isneginf(packed(lengths, window_size=window)(*packed_leaves(*lengths))[1]), torch.isneginf(lse))


def test_offsets_may_be_vmapped() -> None:
    inputs, several = [x.detach() for x in packed_leaves([5, 4], [5, 4], H)], [offsets([5, 4]), offsets([4, 5])]
    made = torch.func.vmap(lambda cu: qt.varlen_attn(*inputs, cu, cu, 5, 5))(torch.stack(several))
    assert all(torch.equal(out, qt.varlen_attn(*inputs, cu, cu, 5, 5)) for out, cu in zip(made, several))


def test_scale_heads_and_offsets_of_64_bits() -> None:
    lengths = LENGTHS["more keys"]
    compare(packed(lengths, dtype=torch.int64, scale=0.3), each_alone(lengths, (-1, -1), 0.3), packed_leaves(*lengths, H))
    compare(packed(lengths, scale=-0.3), each_alone(lengths, (-1, -1), -0.3), packed_leaves(*lengths, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", ((-1, -1), (-1, 0)), ids=str)
def test_the_bits_are_those_of_each_alone(window: tuple[int, int], dtype: torch.dtype) -> None:
    lens = [1, 63, 64, 65, 200]
    inputs = [x.detach().to(dtype).requires_grad_() for x in packed_leaves(lens, lens)]
    dout = numbers(9, sum(lens), H, DV, dtype=dtype)
    out, lse = packed((lens, lens), window_size=window)(*inputs)
    gradients = torch.autograd.grad(out, inputs, dout)
    for n, rows in enumerate(torch.arange(sum(lens)).split(lens)):
        each = [x.detach()[rows].requires_grad_() for x in inputs]
        own, own_lse = packed(([lens[n]], [lens[n]]), window_size=window)(*each)
        assert torch.equal(out[rows], own) and torch.equal(lse[:, rows], own_lse)
        for whole, mine in zip(gradients, torch.autograd.grad(own, each, dout[rows])):
            assert torch.equal(whole[rows], mine)
        dense = [x.detach().transpose(0, 1)[None] for x in each]
        straight = qkv.attention(*dense, causal="bottom_right" if window[1] == 0 else False)
        assert torch.equal(own, straight[0].transpose(0, 1))


def test_strides_and_tokens_behind_the_last_sequence() -> None:
    lens = [5, 4]
    rows = numbers(1, 12, 3, H, D).requires_grad_()  # three tokens more than the sequences have
    out, lse = packed((lens, lens), window_size=(-1, 0))(*rows.unbind(1))
    (gradient,) = torch.autograd.grad(out.sum() + lse[:, :9].sum(), rows)
    own = rows.detach()[:9].requires_grad_()
    expected = packed((lens, lens), window_size=(-1, 0))(*own.unbind(1))
    assert torch.equal(out[:9], expected[0]) and not out[9:].any() and torch.isneginf(lse[:, 9:]).all()
    assert torch.equal(gradient[:9], torch.autograd.grad(sum(x.sum() for x in expected), own)[0]) and not gradient[9:].any()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_keys_in_use(window: tuple[int, int]) -> None:
    lengths, used = ([3, 1, 6, 2], [7, 4, 9, 2]), [5, 4, 3, 0]
    theirs = each_alone(lengths, window, used=used)
    for dtype in (torch.int32, torch.int64):
        mine = packed(lengths, False, window_size=window, seqused_k=torch.tensor(used, dtype=dtype))
        compare(mine, lambda *x: theirs(*x)[0], packed_leaves(*lengths))
    q, k, v = (x.detach() for x in packed_leaves(*lengths))  # those behind are not read
    expected = mine(q, k, v)
    for x in (k, v):
        x[5:7], x[14:20], x[20:] = torch.nan, torch.inf, torch.nan
    assert torch.equal(mine(q, k, v), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("modified", (False, True))
@pytest.mark.parametrize("window", ((-1, -1), (-1, 0), (3, 0)), ids=str)
def test_pages(window: tuple[int, int], modified: bool, dtype: torch.dtype) -> None:
    lengths, used, page = [2, 1, 1, 3, 0], [7, 0, 9, 4, 2], 4
    q, k, v = (x.detach().to(dtype) for x in packed_leaves(lengths, used))
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
    slopes = numbers(4, 5, H).abs()
    theirs = each_alone((lengths, used), window, softcap=2.0, slopes=slopes) if modified else each_alone((lengths, used), window)
    given |= {"softcap": 2.0, "alibi_slopes": slopes} if modified else {}
    exact, naive = theirs(*(x.double() for x in (q, k, v))), theirs(q, k, v)
    aux = qt.AuxRequest(lse=True)
    for cu_k in (None, offsets(used)):
        made = qt.varlen_attn(q, *pools, cu, cu_k, 3, 9, return_aux=aux, **given)
        for fast, *rest in zip(made, exact, naive):
            expect_close(fast, *rest, dtype, "pages")
    for n, rows in enumerate(torch.arange(len(q)).split(lengths)):  # whatever the others are
        own = given | {"seqused_k": torch.tensor(used[n : n + 1]), "block_table": table[n : n + 1]}
        own |= {"alibi_slopes": slopes[n]} if modified else {}
        out, lse = qt.varlen_attn(q[rows], *pools, offsets(lengths[n : n + 1]), None, 3, 9, return_aux=aux, **own)
        assert torch.equal(out, made[0][rows]) and torch.equal(lse, made[1][:, rows])
    with pytest.raises(NotImplementedError, match="block_table is for inference"):
        qt.varlen_attn(q.clone().requires_grad_(), *pools, cu, None, 3, 9, **given).sum().backward()
    with pytest.raises(ValueError, match=r"an entry of the block table must be a page in 0\.\.8: got"):
        qt.varlen_attn(q, *pools, cu, None, 3, 9, **{**given, "block_table": table + 6})
    with pytest.raises(ValueError, match="max_k must be the longest"):
        qt.varlen_attn(q, *pools, cu, None, 3, 8, **given)


def test_the_signature_and_the_shapes_are_pytorchs() -> None:
    a, b = (inspect.signature(f).parameters for f in (qt.varlen_attn, pytorchs.varlen_attn))
    shown = [[(p.name, p.kind, p.default) for p in x.values()] for x in (a, b)]
    assert shown[0][: len(b)] == shown[1]  # and more behind
    q, k, v = (x.detach().to(torch.bfloat16) for x in packed_leaves([5, 4], [5, 4], H))
    cu = offsets([5, 4])
    with torch._subclasses.FakeTensorMode() as mode:  # PyTorch's has no kernel for the CPU
        fake = [mode.from_tensor(x) for x in (q, k, k, cu, cu)]
        theirs = pytorchs.varlen_attn(*fake, 5, 5, return_aux=pytorchs.AuxRequest(lse=True))
        mine = qt.varlen_attn(*fake, 5, 5, return_aux=pytorchs.AuxRequest(lse=True))
    assert [(x.shape, x.dtype) for x in mine] == [(x.shape, x.dtype) for x in theirs]
    assert torch.equal(qt.varlen_attn(q, k, v, cu, cu, 5, 5, num_splits=1), qt.varlen_attn(q, k, v, cu, cu, 99, 5))


@pytest.mark.parametrize("each", (False, True))
def test_dropout_is_of_each_sequences_number(each: bool) -> None:
    lengths = LENGTHS["more keys"]
    q, k, v = (x.detach().float().requires_grad_() for x in packed_leaves(*lengths))
    slopes = torch.tensor([[0.5, 0.25, 1.0, 0.125]] * 3) if each else None  # slopes of each sequence: a call for each
    cu_q, cu_k = map(offsets, lengths)
    torch.manual_seed(3)
    out = qt.varlen_attn(q, k, v, cu_q, cu_k, 6, 7, enable_gqa=True, dropout_p=0.4, alibi_slopes=slopes)
    torch.manual_seed(3)
    options = {"dropout": 0.4, "seed": int(torch.randint(0, 2**63 - 1, (1,)))}
    if each:
        options["position_bias"] = qkv.PositionBias.alibi([0.5, 0.25, 1.0, 0.125], "bottom_right")
    own, lse = qkv.attention_varlen(q.detach(), k.detach(), v.detach(), cu_q, cu_k, return_lse=True, **options)
    assert torch.equal(out, own)
    dout = numbers(7, *out.shape, dtype=torch.float32)
    theirs = qkv.attention_varlen_backward(dout, *(x.detach() for x in (q, k, v)), own, lse, cu_q, cu_k, **options)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(out, (q, k, v), dout), theirs[:3]))
    for wrong in ({"dropout_p": 1.0}, {"alibi_slopes": torch.ones(3)}, {"sinks": torch.ones(5)}):
        with pytest.raises(ValueError, match="varlen_attn"):
            qt.varlen_attn(q, k, v, cu_q, cu_k, 6, 7, enable_gqa=True, **wrong)
    none = qt.varlen_attn(q[:0], k[:0], v[:0], cu_q[:1], cu_k[:1], 0, 0, enable_gqa=True, alibi_slopes=torch.ones(0, 4))
    assert none.shape == (0, *out.shape[1:])
    with pytest.raises(NotImplementedError, match="alibi_slopes beside seqused_k need as many queries"):
        qt.varlen_attn(q, k, v, cu_q, cu_k, 6, 7, enable_gqa=True, alibi_slopes=torch.ones(4), seqused_k=cu_k.diff() - 1)


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
