"""Nested tensors of jagged layout through qkv.torch.scaled_dot_product_attention, and through PyTorch's under enable(): against
PyTorch's function on each sequence alone. Not: packed sequences themselves (test_torch_varlen.py)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv.torch as qt
import torch.nn.functional as F
from support_torch import compare, numbers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LENGTHS = {"alike": ([5, 1, 9], [5, 1, 9]), "cross": ([3, 6, 1], [7, 2, 4])}
D, DV = 8, 6


def patched(*arguments: Any, **options: Any) -> Tensor:
    with qt.enable():
        return F.scaled_dot_product_attention(*arguments, **options)


FUNCTIONS = {"own": qt.scaled_dot_product_attention, "patched": patched}


def leaves(lengths: tuple[list[int], list[int]], heads: int = 4, kv_heads: int = 4) -> list[Tensor]:
    """Packed q, k, v, [total, heads, width]."""
    shapes = ((sum(lengths[0]), heads, D), (sum(lengths[1]), kv_heads, D), (sum(lengths[1]), kv_heads, DV))
    return [numbers(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]


def nested(x: Tensor, lengths: list[int]) -> Any:
    """[B, heads, j, width] of [total, heads, width]."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(x, offsets).transpose(1, 2)


def ours(function: str, lengths: tuple[list[int], list[int]], **options: Any) -> Any:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query = nested(q, lengths[0])
        key = query if k is q else nested(k, lengths[1])
        out = FUNCTIONS[function](query, key, nested(v, lengths[1]), **options)
        assert out.shape == (*query.shape[:-1], DV) and out.layout is torch.jagged
        return out.transpose(1, 2).values()

    return call


def theirs(lengths: tuple[list[int], list[int]], **options: Any) -> Any:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(q.split(lengths[0]), k.split(lengths[1]), v.split(lengths[1]))
        with sdpa_kernel(SDPBackend.MATH):
            outs = [F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in part), **options)[0] for part in parts]
        return torch.cat([x.transpose(0, 1) for x in outs])

    return call


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("name", LENGTHS)
def test_each_sequence_is_as_if_it_were_alone(name: str, causal: bool, dtype: torch.dtype, function: str) -> None:
    lengths = LENGTHS[name]
    compare(
        ours(function, lengths, is_causal=causal), theirs(lengths, is_causal=causal), leaves(lengths), dtype
    )  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("causal", (False, True))
def test_grouped_heads_and_scale(causal: bool, function: str) -> None:
    lengths = LENGTHS["cross"]
    options = {"is_causal": causal, "enable_gqa": True, "scale": 0.3}
    compare(ours(function, lengths, **options), theirs(lengths, **options), leaves(lengths, kv_heads=2))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_dropout_and_autocast(function: str) -> None:
    lengths = ([2, 3], [2, 3])
    call, inputs = ours(function, lengths, dropout_p=0.5), leaves(lengths)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(call(*inputs))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(function, lengths)(*(x.detach().float() for x in inputs)).dtype is torch.bfloat16


def test_the_lengths_are_the_querys() -> None:
    """The result goes on with the query: a residual, a linear layer, attention again."""
    lengths = [5, 1, 9]
    q, k, _ = (nested(x.detach(), lengths) for x in leaves((lengths, lengths)))
    out = patched(q, q, q, is_causal=True)
    twice = patched(out + q, out, k if k.shape == q.shape else out)
    merged = twice.transpose(1, 2).flatten(-2)
    assert twice.shape == q.shape and F.linear(merged, torch.ones(3, 4 * D, dtype=torch.float64)).shape == (
        *merged.shape[:-1],
        3,
    )


@pytest.mark.parametrize("function", ("own", "patched"))
def test_compiles_whole(function: str) -> None:
    torch._dynamo.reset()
    lengths = [5, 1, 9]

    def call(x: Any) -> Any:
        q = x.transpose(1, 2)
        sdpa = F.scaled_dot_product_attention if function == "patched" else qt.scaled_dot_product_attention
        return sdpa(q, q, q, is_causal=True).sin()

    packed, *_ = leaves((lengths, lengths))
    results = []
    with qt.enable():
        for one in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
            out = one(nested(packed, lengths).transpose(1, 2)).values()
            results.append((out, *torch.autograd.grad(out.sum(), packed)))
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_what_is_not_computed_is_refused_or_pytorchs() -> None:
    lengths = [5, 1, 9]
    q, k, v = (nested(x.detach(), lengths) for x in leaves((lengths, lengths)))
    sdpa = qt.scaled_dot_product_attention
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="attn_mask is not supported, as in PyTorch"):
            sdpa(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool))
        with pytest.raises(error, match="ragged on axis 2"):
            sdpa(*(x.transpose(1, 2) for x in (q, k, v)))
        with pytest.raises(error, match="must all be of layout torch.jagged"):
            sdpa(q, torch.zeros(3, 4, 5, D, dtype=torch.float64), v)
        with pytest.raises(error, match="same number of sequences"):
            sdpa(q, *(nested(x.detach(), [10, 5]) for x in leaves((lengths, lengths))[1:]))
        with pytest.raises(error, match="enable_gqa=True"):
            sdpa(q, *(nested(x.detach(), lengths) for x in leaves((lengths, lengths), kv_heads=2)[1:]))
        with pytest.raises(error, match="key and value must have the same lengths"):
            sdpa(q, k, nested(leaves((lengths, lengths))[2].detach(), [1, 5, 9]))
        with pytest.raises(error, match="one type"):
            sdpa(q, k.float(), v)
        holes = torch.nested.nested_tensor_from_jagged(
            numbers(1, 15, 4, D), torch.tensor([0, 5, 6, 15]), torch.tensor([4, 1, 3])
        ).transpose(1, 2)
        with pytest.raises(error, match="holes"):
            sdpa(holes, holes, holes)
    with pytest.raises(ValueError, match="Masks are not yet supported"):  # PyTorch's own answer
        patched(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool))
