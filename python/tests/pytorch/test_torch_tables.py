"""What PyTorch's own tests say of results, as tables of cases: scaled_dot_product_attention's lengths, masks and layouts
(test_transformers.py, TestSDPA and TestSDPACpuOnly), encoder and decoder layers under `enable()` (TestTransformers), packed
batches (test_varlen_attention.py). Values and gradients against PyTorch's math path in float64. Not: its tests of which kernel
is chosen, of error texts and of devices other than the CPU."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import qkv.torch as qt
from support_torch import compare, leaf, numbers, theirs
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


# Lengths on both sides of PyTorch's blocks of 32, 256 and 512; shapes of masks that repeat; a mask of booleans or of numbers.
LENGTHS = ((1, 514), (11, 17), (11, 514), (514, 17), (514, 514), (1030, 514))
MASKS = {
    "keys": ((1, 1), False),
    "pairs": ((), True),
    "sequences": ((2, 1), False),
    "all": ((2, 3), True),
}  # axes before; a row each


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind, mask", [("no", None), ("no", "causal"), *itertools.product(("keep", "float"), MASKS)])
def test_lengths_and_masks(lengths: tuple[int, int], kind: str, mask: str | None) -> None:
    q_len, kv_len = lengths
    arguments: list[Tensor | None] = [leaf(1, 2, 3, q_len, 16), leaf(2, 2, 3, kv_len, 16), leaf(3, 2, 3, kv_len, 16), None]
    if mask in MASKS:
        lead, a_row_each = MASKS[mask]
        dense = numbers(4, *lead, q_len if a_row_each else 1, kv_len)
        arguments[3] = dense > -0.5 if kind == "keep" else dense.requires_grad_()
    compare(
        lambda *a: qt.scaled_dot_product_attention(*a, is_causal=mask == "causal"),
        lambda *a: theirs(*a, is_causal=mask == "causal"),
        arguments,
    )


def separate(x: Tensor) -> Tensor:
    return x


def packed(x: Tensor) -> Tensor:
    """q, k or v as a third of one projection: [B, H, T, D] with strides (3 T H D, D, 3 H D, 1)."""
    b, h, t, d = x.shape
    return torch.cat([x.transpose(1, 2).reshape(b, t, h * d)] * 3, -1).chunk(3, -1)[1].view(b, t, h, d).transpose(1, 2)


def by_columns(x: Tensor) -> Tensor:
    """The head's width is not the innermost axis."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def one_head_for_all(x: Tensor) -> Tensor:
    """Stride 0 along the heads."""
    return x[:, :1].expand(x.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("layout", (separate, packed, by_columns, one_head_for_all), ids=lambda f: f.__name__)
def test_layouts(layout: object, causal: bool, dtype: torch.dtype) -> None:
    shape = (4, 2, 4, 16)

    def laid_out(attention: object) -> object:
        return lambda q, k, v: attention(q, layout(k), layout(v), is_causal=causal)  # type: ignore[operator]

    compare(laid_out(qt.scaled_dot_product_attention), laid_out(theirs), [leaf(n, *shape) for n in range(3)], dtype)


@pytest.mark.parametrize(
    "strides",
    (((2304, 128, 2048, 1), (3584, 0, 256, 1), (14, 14, 14, 1)), ((128, 128, 1, 1), (0, 0, 128, 1), (0, 0, 0, 1))),
    ids=str,
)
def test_one_query_and_strides_of_any_size(strides: tuple[tuple[int, ...], ...]) -> None:
    def cut(seed: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        return numbers(seed, 1 + sum((n - 1) * s for n, s in zip(shape, stride))).as_strided(shape, stride)

    q, k, v = cut(1, (3, 16, 1, 128), strides[0]), cut(2, (3, 16, 14, 128), strides[1]), cut(3, (3, 16, 14, 128), strides[1])
    compare(qt.scaled_dot_product_attention, theirs, [q, k, v, cut(4, (3, 1, 1, 14), strides[2])])


def test_a_width_of_one_with_another_stride() -> None:
    q = numbers(1, 1, 1, 1, 2).transpose(-1, -2)
    compare(qt.scaled_dot_product_attention, theirs, [q, numbers(2, 1, 1, 1, 1), numbers(3, 1, 1, 1, 1)])


@pytest.mark.parametrize("heads", ((32, 8), (5, 1), (6, 2)), ids=str)
@pytest.mark.parametrize("q_len", (1, 33, 128))
@pytest.mark.parametrize("causal", (False, True))
def test_groups_are_repeated_heads(heads: tuple[int, int], q_len: int, causal: bool) -> None:
    repeats = heads[0] // heads[1]
    compare(
        lambda q, k, v: qt.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        lambda q, k, v: theirs(q, *(x.repeat_interleave(repeats, 1) for x in (k, v)), is_causal=causal),
        [leaf(1, 2, heads[0], q_len, 24), leaf(2, 2, heads[1], 64, 24), leaf(3, 2, heads[1], 64, 40)],
    )


class Stack(torch.nn.Module):
    """An encoder, or a decoder over a memory of its own input."""

    def __init__(self, layer: str, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        made = getattr(torch.nn, layer)(12, 3, 24, 0.0, batch_first=batch_first, norm_first=norm_first)
        self.layers = torch.nn.ModuleList([made])
        for n, parameter in enumerate(self.parameters()):
            parameter.data = numbers(30 + n, *parameter.shape, dtype=torch.float32) / 4

    def forward(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        layer = self.layers[0]
        if isinstance(layer, torch.nn.TransformerDecoderLayer):
            return layer(x, 2 * x, mask, None, padding, padding, tgt_is_causal=causal)
        return layer(x, mask, padding, is_causal=causal)


@pytest.mark.parametrize("layer", ("TransformerEncoderLayer", "TransformerDecoderLayer"))
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("norm_first", (False, True))
@pytest.mark.parametrize("masks", ("none", "padding", "pairs", "causal", "causal and padding", "float and float padding"))
@pytest.mark.parametrize("train", (False, True))
def test_layers_of_transformers(layer: str, batch_first: bool, norm_first: bool, masks: str, train: bool) -> None:
    length, batch = 7, 2
    pairs = padding = None
    if "causal" in masks:
        pairs = torch.ones(length, length, dtype=torch.bool).triu(1)
    elif masks == "pairs":
        pairs = numbers(5, length, length) > 0.8
        pairs.fill_diagonal_(False)
    elif "float" in masks:
        pairs = numbers(5, length, length)
    if "padding" in masks:
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[1, 4:] = True
        padding = (
            torch.zeros(batch, length, dtype=torch.float64).masked_fill(padding, -torch.inf) if "float" in masks else padding
        )
    stack = Stack(layer, batch_first, norm_first).train(train)
    x = leaf(6, *((batch, length, 12) if batch_first else (length, batch, 12)))

    def plain(x: Tensor, *given: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(train):
            return stack.to(x.dtype)(x, *given, causal=masks == "causal")

    def enabled(*arguments: Tensor | None) -> Tensor:
        with qt.enable():
            return plain(*arguments)

    compare(enabled, plain, [x if train else x.detach(), pairs, padding])


@pytest.mark.parametrize("window", ((-1, -1), (-1, 0), (7, 0), (3, 5)), ids=str)
@pytest.mark.parametrize("lengths", ((64,), (3, 300, 1), (128, 127, 129), (1, 1, 1, 1)), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_packed_is_sequence_by_sequence(lengths: tuple[int, ...], window: tuple[int, int], dtype: torch.dtype) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()

    def ours(*tensors: Tensor) -> Tensor:
        return qt.varlen_attn(*tensors, offsets, offsets, max(lengths), max(lengths), window_size=window)

    def one_by_one(*tensors: Tensor) -> Tensor:
        parts = zip(*(x.split(lengths) for x in tensors))
        outs = []
        for q, k, v in parts:
            i, j = torch.arange(len(q))[:, None], torch.arange(len(q))[None, :]
            left, right = (len(q) if n < 0 else n for n in window)
            keep = (j >= i - left) & (j <= i + right)
            outs.append(theirs(*(x.transpose(0, 1) for x in (q, k, v)), keep).transpose(0, 1))
        return torch.cat(outs)

    compare(ours, one_by_one, [leaf(n, sum(lengths), 3, 16) for n in range(3)], dtype)
