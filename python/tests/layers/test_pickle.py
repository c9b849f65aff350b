"""What goes into a file or another process: layers and models with their parameters, rotary positions, what to capture."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
import qkv
from qkv import nn
from support import numbers

MODULES: dict[str, Any] = {
    "average": lambda: nn.AveragePooling(),
    "fixed weights": lambda: nn.FixedWeights(5, seed=1),
    "v1": lambda: nn.SelfAttentionV1(8, causal=True),
    "v2 of v1": lambda: nn.SelfAttentionV1(8).to_v2(),
    "self-attention": lambda: nn.SelfAttention(8, 4, bias=False),
    "mha": lambda: nn.MultiHeadAttention(8, 2, init="torch_mha", seed=3),
    "grouped": lambda: nn.GroupedQueryAttention(8, 4, 2, qk_norm="head", rotary=qkv.Rotary(2, base=100.0)),
    "from a dict": lambda: nn.MultiHeadAttention.from_state_dict(nn.MultiHeadAttention(8, 2).state_dict(), num_heads=2),
    "linear": lambda: nn.Linear(8, 3, bias=False, seed=4),
    "norm": lambda: nn.LayerNorm(8, eps=1e-3, bias=False),
    "mlp": lambda: nn.MLP(8, 12),
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


def test_a_copy_has_parameters_of_its_own() -> None:
    layer = nn.Embedding(4, 3)
    back = copy.deepcopy(layer)
    back.load_state_dict({"weight": np.zeros((4, 3), np.float32)})
    assert layer.state_dict()["weight"].any() and not back([0, 3]).any()


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
    rotary, look = qkv.Rotary(8, base=500.0, interleaved=True), qkv.Capture(heads=(1,), top_k=2)
    assert np.array_equal(again(rotary).frequencies, rotary.frequencies) and repr(again(rotary)) == repr(rotary)
    assert again(look) == look
