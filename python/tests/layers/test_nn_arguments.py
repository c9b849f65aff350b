"""Arguments that layers require (their heads, the axes of their masks), and how layers print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import qkv
from qkv import nn
from support import numbers

E = 24
WITH_HEADS = (nn.MultiHeadAttention, nn.GroupedQueryAttention)


@pytest.mark.parametrize("cls", WITH_HEADS)
def test_heads_are_no_default(cls: Any) -> None:
    layer = cls(E, 4, seed=1)
    state = layer.state_dict()
    with pytest.raises(qkv.OptionError, match="num_heads of .* must be given, since weights of one shape fit several: here 1, 2, 3, 4"):
        cls.from_state_dict(state, dropout=0.0)
    x = numbers(1, 2, 5, E)
    assert np.array_equal(cls.from_state_dict(state, num_heads=4)(x), layer(x))
    with pytest.raises(TypeError, match="num_heads"):
        cls(E)


def test_a_forward_that_is_refused_leaves_nothing_to_go_back_through() -> None:
    layer, x = nn.MultiHeadAttention(E, 4), numbers(1, 1, 6, E)
    dy = numbers(2, 1, 6, E)
    for wrong in ({"seed": 1.5}, {"causal": "top_left"}, {"empty_row": "bogus"}, {"keep": np.ones((1, 5))}):
        saved = nn.Saved()
        layer(x, keep=np.tri(6), mask_axes="qk", saved=saved)
        with pytest.raises((TypeError, ValueError)):
            layer(x, saved=saved, **wrong)
        with pytest.raises(ValueError, match="saved must be what this module's forward filled"):
            layer.backward(dy, saved)
        layer(x, saved=saved)
        layer.backward(dy, saved)
    linear, saved = nn.Linear(E, 2), nn.Saved()
    linear(x, saved=saved)
    with pytest.raises(TypeError):
        linear(x.astype(np.float64), saved=saved)
    assert linear.backward(numbers(3, 1, 6, 2), saved).shape == x.shape


def test_arguments_that_would_change_nothing() -> None:
    x = numbers(1, 2, 6, E)
    for layer in (nn.MultiHeadAttention(E, 4), nn.AveragePooling(), nn.GroupedQueryAttention(E, 4)):
        for given in ({"offset": 5}, {"offsets": [5, 6]}, {"position_ids": np.arange(6)}):
            with pytest.raises(ValueError, match="this layer has none"):
                layer(x, **given)
        with pytest.raises(ValueError, match="mask_axes names the axes"):
            layer(x, mask_axes="bogus")
    turned = nn.GroupedQueryAttention(E, 4, rotary=qkv.Rotary(6))
    with pytest.raises(ValueError, match="exclude each other"):
        turned(x, offset=5, position_ids=np.arange(6))
    with pytest.raises(qkv.OptionError, match="head_dim must be at least 1.*got -5"):
        nn.GroupedQueryAttention(E, 4, head_dim=-5)
    with pytest.raises(qkv.OptionError, match="rotary must be of the layer's head_dim 6: got Rotary"):
        nn.GroupedQueryAttention(E, 4, rotary=qkv.Rotary(64))
    for make in (lambda align: qkv.Mask.causal(align, offsets=[0]), lambda align: qkv.Mask.window(1, 2, align, offsets=[0])):
        for align in ("nonsense", "bottom_right"):
            with pytest.raises(ValueError):
                make(align)
    index = numbers(2, 1, 2, 4, 8)
    for causal in ("top_left", "no", 1.5):
        with pytest.raises(qkv.OptionError, match="causal must be True or False"):
            qkv.top_keys(index, index[:, :1], numbers(3, 1, 2, 4), 2, causal=causal)


def test_layers_say_their_sizes() -> None:
    assert repr(nn.MultiHeadAttention(E, 4)) == "MultiHeadAttention(embed_dim=24, num_heads=4, parameters=2400)"
    assert repr(nn.SelfAttention(E, 10)) == "SelfAttention(embed_dim=24, parameters=750)"


@pytest.mark.parametrize("name", ("keep", "drop"))
@pytest.mark.parametrize("framework", ("numpy", "torch"))
def test_axes_are_named_where_two_readings_fit(name: str, framework: str) -> None:
    mask: Any = np.tri(6, dtype=bool) if name == "keep" else ~np.tri(6, dtype=bool)
    kept = np.tri(6, dtype=bool)
    if framework == "torch":
        mask = pytest.importorskip("torch").from_numpy(mask)
    square, other = numbers(1, 6, 6, E), numbers(2, 2, 6, E)
    for layer in (nn.MultiHeadAttention(E, 4, seed=1), nn.SelfAttentionV4(E, seed=1)):
        for x in (square, other):
            with pytest.raises(ValueError, match=r'both fit: mask_axes="bk" or "qk": got \[6, 6\] for x'):
                layer(x, **{name: mask})
        assert np.array_equal(layer(square, **{name: mask}, mask_axes="qk"), layer(square, causal=True))
        assert np.array_equal(layer(other, **{name: mask}, mask_axes="qk"), layer(other, causal=True))
        by_key = layer(square, **{name: mask}, mask_axes="bk")
        assert np.array_equal(by_key, layer(square, mask=qkv.Mask.keep(kept, "bk")))
        assert not np.array_equal(by_key, layer(square, causal=True))
        # One token: both readings are the same mask.
        assert layer(square[:1, :1], **{name: mask[:1, :1]}).shape == (1, 1, E)


def test_named_axes_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    x, mha, single = numbers(1, 3, 5, E), nn.MultiHeadAttention(E, 4, seed=1), nn.SelfAttentionV4(E, seed=1)
    per_sequence, per_head = rng.random((3, 5, 5)) < 0.8, rng.random((4, 5, 5)) < 0.8
    assert np.array_equal(mha(x, keep=per_sequence, mask_axes="bqk"), mha(x, keep=per_sequence[:, None]))
    assert np.array_equal(mha(x, keep=per_head, mask_axes="hqk"), mha(x, keep=per_head[None]))
    assert np.array_equal(single(x, keep=per_sequence), single(x, keep=per_sequence, mask_axes="bqk"))
    assert np.array_equal(single(x, keep=per_head[:1], mask_axes="hqk"), single(x, mask=qkv.Mask.keep(per_head[0], "qk")))
    assert np.array_equal(mha(x[0], keep=per_head, mask_axes="hqk"), mha(x[:1], keep=per_head[None])[0])
    assert np.array_equal(mha(x, keep=per_sequence[:, 0]), mha(x, keep=per_sequence[:, :1, None]))


def test_the_error_shows_what_came_in() -> None:
    """Every shape: tests/nn/masks_test.cc."""
    for layer in (nn.MultiHeadAttention(E, 4), nn.SelfAttentionV4(E)):
        for shape, axes in (((6, 7), None), ((4, 6, 6), "bqk")):
            with pytest.raises(qkv.ShapeError, match=rf"got \[{', '.join(map(str, shape))}\] for \[B, H, Tq, Tk\] \[2, "):
                layer(numbers(1, 2, 6, E), keep=np.ones(shape, bool), mask_axes=axes)
    with pytest.raises(ValueError, match="kb"):
        nn.SelfAttentionV4(E)(numbers(1, 2, 6, E), keep=np.ones((2, 6)), mask_axes="kb")
