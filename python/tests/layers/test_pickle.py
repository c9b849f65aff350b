"""Objects in a file or another process: layers and models with their parameters, rotary positions, what to capture, masks,
biases, caches."""

import copy
import gc
import multiprocessing
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import qkv
from qkv import nn
from support import MASKS, numbers

MODULES: dict[str, Any] = {
    "average": lambda: nn.AveragePooling(),
    "fixed weights": lambda: nn.FixedWeights(5, seed=1),
    "v1": lambda: nn.SelfAttentionV1(8, causal=True),
    "v2": lambda: nn.SelfAttentionV2(8),
    "self-attention": lambda: nn.SelfAttention(8, 4, bias=False),
    "mha": lambda: nn.MultiHeadAttention(8, 2, init="torch_mha", seed=3),
    "grouped": lambda: nn.GroupedQueryAttention(8, 4, 2, qk_norm="head", rotary=qkv.Rotary(2, base=100.0)),
    "from a dict": lambda: nn.MultiHeadAttention.from_state_dict(nn.MultiHeadAttention(8, 2).state_dict(), num_heads=2),
    "linear": lambda: nn.Linear(8, 3, bias=False, seed=4),
}


def again(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("way", [again, copy.deepcopy])
def test_a_module_comes_back_as_it_was(name: str, way: Any) -> None:
    module, x = MODULES[name](), numbers(1, 2, 5, 8)
    back = way(module)
    assert type(back) is type(module) and repr(back) == repr(module)
    state = module.state_dict()
    assert list(back.state_dict()) == list(state) and all(np.array_equal(back.state_dict()[n], state[n]) for n in state)
    assert np.array_equal(back(x), module(x))


def test_a_copy_is_made_of_what_was_given_not_of_what_it_became() -> None:
    rope, square, table = {"base": 1e4}, np.tri(4, dtype=np.int32), np.ones((6, 2))
    rows = [[1, 0, 0, 0]] * 4
    layer = nn.GroupedQueryAttention(8, 2, rotary=rope)
    masks = [qkv.Mask.keep(square, "qk"), qkv.Mask.drop(rows, "qk")]
    turned = qkv.Rotary.from_tables(table, table)
    rope["base"], square[:], rows[0][0], table[:] = 10.0, 0, 0, 3.0
    x = numbers(1, 1, 4, 8)
    assert np.array_equal(copy.deepcopy(layer)(x), layer(x))
    for mask in masks:
        assert np.array_equal(copy.deepcopy(mask).to_dense(4, 4), mask.to_dense(4, 4))
    y = numbers(2, 1, 1, 6, 4)
    assert np.array_equal(again(turned)(y), turned(y))


def test_a_used_score_mod_is_copied_and_freed() -> None:
    class Owner:
        def __init__(self) -> None:
            self.mod = qkv.ScoreMod(self.double)

        def double(self, score: Any, b: int, h: int, i: Any, j: Any) -> Any:
            return 2 * score

    q, owner = numbers(1, 1, 2, 4, 8), Owner()
    used = qkv.ScoreMod(twice)
    out = qkv.attention(q, q, q, score_mod=used)
    assert np.array_equal(qkv.attention(q, q, q, score_mod=again(copy.deepcopy(used))), out)
    assert np.array_equal(qkv.attention(q, q, q, score_mod=owner.mod), out)
    left = weakref.ref(owner)
    del owner
    gc.collect()
    assert left() is None
    with pytest.raises(TypeError, match="value must return the scores: got None"):
        qkv.attention(q, q, q, score_mod=qkv.ScoreMod(lambda *_: None))


def twice(score: Any, b: int, h: int, i: Any, j: Any) -> Any:
    return 2 * score


def test_a_copy_has_parameters_of_its_own() -> None:
    layer = nn.Linear(3, 4, bias=False)
    back = copy.deepcopy(layer)
    back.load_state_dict({"weight": np.zeros((4, 3), np.float32)})
    assert layer.state_dict()["weight"].any() and not back(np.ones((1, 3), np.float32)).any()


def test_training_mode_and_another_process() -> None:
    layer = nn.MultiHeadAttention(8, 2, dropout=0.5, seed=5).train()
    x = numbers(2, 1, 4, 8)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(run, (layer, x))
    assert np.array_equal(there, layer(x, seed=7))


def run(layer: nn.MultiHeadAttention, x: np.ndarray) -> np.ndarray:
    return layer(x, seed=7)


def test_a_model_goes_on_learning_where_it_was() -> None:
    model = qkv.AttentionLM(context=8, width=8)
    model.fit(steps=4, batch=4, progress=False)
    back = again(model)
    assert back.losses == model.losses and back.vocabulary == model.vocabulary
    assert back.fit(steps=8, batch=4, resume=True, progress=False) == model.fit(steps=8, batch=4, resume=True, progress=False)


def test_options() -> None:
    rotary, capture = qkv.Rotary(8, base=500.0, interleaved=True), qkv.Capture(heads=(1,), top_k=2)
    assert np.array_equal(again(rotary).frequencies, rotary.frequencies) and repr(again(rotary)) == repr(rotary)
    assert again(capture) == capture


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("way", [again, copy.deepcopy, copy.copy])
def test_masks(name: str, way: Any) -> None:
    mask, back = MASKS[name][0], way(MASKS[name][0])
    assert repr(back) == repr(mask)
    assert np.array_equal(back.to_dense(6, 6), mask.to_dense(6, 6))
    assert np.array_equal((again(back) & qkv.Mask.first(3)).to_dense(6, 6), (mask & qkv.Mask.first(3)).to_dense(6, 6))


def test_a_mask_remembers_numbers_not_their_list() -> None:
    lengths = [4]
    mask = qkv.Mask.key_lengths(lengths)
    lengths[0] = 1
    assert again(mask).to_dense(6, 6).sum() == 24


def test_a_mask_of_numbers_that_can_be_read_once() -> None:
    for mask in (qkv.Mask.key_lengths(map(len, ["abcd"])), qkv.Mask.causal(offsets=(n for n in [1]))):
        assert np.array_equal(again(mask).to_dense(6, 6), mask.to_dense(6, 6)) and repr(copy.deepcopy(mask)) == repr(mask)


@pytest.mark.parametrize("way", [again, copy.deepcopy])
def test_block_maps_and_position_biases(way: Any) -> None:
    for blocks in (qkv.BlockMap.from_mask(qkv.Mask.causal(), 256, 256, num_heads=2), qkv.BlockMap.from_mask(qkv.Mask.causal(), 200, 200)):
        back = way(blocks)
        heads = blocks.num_heads
        assert repr(back) == repr(blocks)
        both = [qkv.Mask.blocks(x).to_dense(200, 200, num_heads=heads) for x in (blocks, back)]
        assert np.array_equal(*both)
    q = numbers(4, 1, 2, 7, 8)
    table = numbers(5, 9, 2)
    for bias in (qkv.PositionBias.alibi(2), qkv.PositionBias.t5(table[:8], max_distance=16), qkv.PositionBias.relative(table)):
        assert np.array_equal(qkv.attention(q, q, q, position_bias=way(bias)), qkv.attention(q, q, q, position_bias=bias))


CACHES: dict[str, dict[str, Any]] = {
    "contiguous": {"capacity": 16, "sequences": 2},
    "bfloat16": {"capacity": 16, "storage": "bfloat16"},
    "float64": {"capacity": 16, "storage": "float64"},
    "paged": {"layout": "paged", "page_size": 4, "pages": 16, "sequences": 2, "max_sequences": 4},
}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("way", [again, copy.deepcopy])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_caches(name: str, way: Any, steps: int) -> None:
    dtype = "float64" if name == "float64" else "float32"
    cache = qkv.KVCache(num_kv_heads=2, head_dim=4, v_head_dim=3, **CACHES[name])

    def grow(n: int, seed: int, *caches: qkv.KVCache) -> None:
        for one in caches:
            batch = len(one.sequences)
            one.append(numbers(seed, batch, 2, n, 4, dtype=dtype), numbers(seed + 1, batch, 2, n, 3, dtype=dtype))

    for step in range(steps):
        grow(2, step, cache)
    if name == "paged":
        cache.fork(0)
        cache.free(1)
    if steps == 5:
        cache.truncate(0, 9)
    back = way(cache)
    assert repr(back) == repr(cache) and back.sequences == cache.sequences
    for step in range(3):
        grow(1, 20 + step, cache, back)
        q = numbers(30 + step, len(cache.sequences), 4, 1, 4, dtype=dtype)
        results = [qkv.attention(q, one, causal="bottom_right", return_lse=True) for one in (cache, back)]
        assert all(np.array_equal(a, b) for a, b in zip(*results))
    lengths = back.lengths
    grow(1, 40, cache)
    assert back.lengths == lengths  # tokens of its own


@pytest.mark.parametrize("way", [again, copy.deepcopy])
def test_forks_share_their_pages_again(way: Any) -> None:
    """A cache that holds its forks only because they share: a sequence cut within a page, one grown, a number that was freed."""
    cache = qkv.KVCache(num_kv_heads=1, head_dim=2, layout="paged", page_size=4, pages=5, max_sequences=4)

    def grow(n: int, seed: int, s: int) -> None:
        cache.append(numbers(seed, 1, 1, n, 2), numbers(seed + 1, 1, 1, n, 2), [s])

    grow(14, 1, 0)
    gone, grown, cut = (cache.fork(0) for _ in range(3))
    cache.free(gone)
    cache.truncate(cut, 10)
    grow(2, 3, grown)
    back = way(cache)
    assert back.sequences == cache.sequences and back.lengths == cache.lengths == [14, 16, 10]
    for s in cache.sequences:
        assert all(np.array_equal(a, b) for a, b in zip(cache.read(s), back.read(s)))


class OwnCache(qkv.KVCache):
    def __init__(self, label: str) -> None:
        super().__init__(num_kv_heads=1, head_dim=2, capacity=4)
        self.label = label


class OwnRotary(qkv.Rotary):
    label = ""


class OwnModel(qkv.AttentionLM):
    label = ""


@pytest.mark.parametrize("way", [again, copy.deepcopy])
def test_a_class_of_ones_own_stays_with_what_it_holds(way: Any) -> None:
    rotary, model, cache = OwnRotary(4), OwnModel(context=4, width=4), OwnCache("mine")
    cache.append(numbers(1, 1, 1, 3, 2), numbers(2, 1, 1, 3, 2))
    rotary.label = model.label = "mine"
    for one in (rotary, model, cache):
        back = way(one)
        assert type(back) is type(one) and back.label == "mine"
    assert way(cache).lengths == [3] and way(model).generate("a", 4) == model.generate("a", 4)


def test_what_cannot_be_pickled_says_so() -> None:
    for options in ({"capacity": 4, "storage": "int8"}, {"layout": "ring", "window": 4}):
        with pytest.raises(NotImplementedError, match="int8, int4 or a ring cannot be pickled"):
            again(qkv.KVCache(num_kv_heads=1, head_dim=4, **options))
