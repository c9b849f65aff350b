"""qkv.nn.MultiHeadLatentAttention against transformers' deepseek_v2 and deepseek_v3 with random weights: forward, every gradient,
and steps on a cache in both forms. Not: the formula itself (tests/nn/latent_attention_test.cc)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import qkv
import torch
from support_torch import expect_all, expect_close, numbers

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 12, "num_hidden_layers": 1, "intermediate_size": 32, "moe_intermediate_size": 16,
    "vocab_size": 32, "max_position_embeddings": 64, "attention_dropout": 0.0,
}  # fmt: skip


def theirs(version: int, rank: int | None, bias: bool) -> tuple[Any, Any]:
    """Attention of a DeepSeek model and its rotary embedding."""
    torch.manual_seed(3)
    name = f"deepseek_v{version}"
    models = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["x"])
    config_class = getattr(transformers, f"DeepseekV{version}Config")
    config = config_class(**SIZES, q_lora_rank=rank, attention_bias=bias, attn_implementation="eager")
    attention = getattr(models, f"DeepseekV{version}Attention")(config, 0)
    for parameter in attention.parameters():  # norms other than 1, and values that every type holds
        parameter.data = torch.randn_like(parameter).mul(0.3).add(parameter.dim() == 1).to(torch.bfloat16).float()
    return attention, getattr(models, f"DeepseekV{version}RotaryEmbedding")(config)


def run(attention: Any, rotary: Any, x: torch.Tensor, dy: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """y, dx and the gradients of all parameters, in dtype."""
    attention, x = attention.to(dtype), x.detach().to(dtype, copy=True).requires_grad_()
    attention.zero_grad()
    positions = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=dtype).triu(1)[None, None]
    embeddings = rotary(x, positions)
    if isinstance(embeddings, tuple):
        embeddings = tuple(part.to(dtype) for part in embeddings)
    y = attention(x, position_embeddings=embeddings, attention_mask=mask)[0]
    (y * dy.to(dtype)).sum().backward()
    return {"y": y.detach(), "dx": x.grad, **{n: p.grad.clone() for n, p in attention.named_parameters()}}


def ours(attention: Any, rank: int | None, bias: bool) -> qkv.nn.MultiHeadLatentAttention:
    layer = qkv.nn.MultiHeadLatentAttention(
        48, 4, q_lora_rank=rank, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, bias=bias,
        norm_eps=attention.kv_a_layernorm.variance_epsilon,
    )  # fmt: skip
    layer.load_state_dict(attention.float().state_dict())
    return layer


CASES = pytest.mark.parametrize(("version", "rank", "bias"), ((2, None, False), (2, 20, True), (3, 20, False), (3, None, True)))


@CASES
def test_equals_deepseek(version: int, rank: int | None, bias: bool) -> None:
    attention, rotary = theirs(version, rank, bias)
    layer = ours(attention, rank, bias)
    assert set(layer.state_dict()) == set(attention.state_dict())
    x, dy = numbers(1, 2, 11, 48, dtype=torch.float32), numbers(2, 2, 11, 48, dtype=torch.float32)
    naive = run(attention, rotary, x, dy, torch.float32)
    exact = run(attention, rotary, x, dy, torch.float64)
    saved = qkv.nn.Saved()
    fast = {"y": layer(x, saved=saved), "dx": layer.backward(dy, saved)}
    fast |= {name: torch.from_numpy(gradient) for name, gradient in layer.grads.items()}
    expect_all(fast, exact, naive)


@CASES
@pytest.mark.parametrize("form", ("auto", "absorbed", "materialised"))
@pytest.mark.parametrize(
    "storage", ({"capacity": 20}, {"layout": "paged", "page_size": 4, "pages": 12}), ids=("whole", "paged")
)
def test_steps_equal_deepseek(version: int, rank: int | None, bias: bool, form: str, storage: dict[str, Any]) -> None:
    attention, rotary = theirs(version, rank, bias)
    layer = ours(attention, rank, bias)
    x, dy = numbers(1, 2, 16, 48, dtype=torch.float32), torch.zeros(2, 16, 48)
    naive, exact = (run(attention, rotary, x, dy, dtype)["y"] for dtype in (torch.float32, torch.float64))
    cache = layer.cache(sequences=2, **storage)
    parts = [layer.step(part.contiguous(), cache, form=form) for part in x.split([7, 1, 3, 1, 1, 1, 2], dim=1)]
    expect_close(torch.cat(parts, dim=1), exact, naive, torch.float32, form)


def test_a_cache_holds_each_token_once() -> None:
    layer = qkv.nn.MultiHeadLatentAttention(32, 2, kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
    assert layer.cache(capacity=10).nbytes == 10 * 28 * 4
    assert layer.cache(capacity=10, storage="int8").nbytes == 10 * (28 + 4)


def test_listed_keys_on_the_cache() -> None:
    """DeepSeek's sparse attention: every query its own keys, the same for all heads."""
    layer = qkv.nn.MultiHeadLatentAttention(32, 24, kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
    x = np.random.default_rng(1).standard_normal((1, 201, 32)).astype(np.float32)
    index = np.arange(3, 200, 11, dtype=np.int32).reshape(1, 1, 1, -1)
    keep = np.isin(np.arange(201), index).reshape(1, 1, 1, -1)
    outs = []
    for mask in (qkv.Mask.keys(index), qkv.Mask.keep(keep)):
        cache = layer.cache(capacity=201)
        layer.step(x[:, :200], cache)
        outs.append(layer.step(x[:, 200:], cache, mask=mask, form="absorbed"))
    assert np.abs(outs[0] - outs[1]).max() <= 24 * np.finfo(np.float32).eps * np.abs(outs[1]).max()


def test_pickle_and_errors() -> None:
    layer = qkv.nn.MultiHeadLatentAttention(32, 2, kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
    x = np.ones((1, 3, 32), np.float32)
    assert np.array_equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    with pytest.raises(TypeError, match="float32"):
        layer(x.astype(np.float64))
    with pytest.raises(qkv.ShapeError, match="B, T, E"):
        layer(x[0])
    with pytest.raises(qkv.OptionError, match="cache_config"):
        layer.step(x, qkv.KVCache(num_kv_heads=1, head_dim=28, v_head_dim=24, capacity=4))
    with pytest.raises(qkv.OptionError, match="form"):
        layer.step(x, layer.cache(capacity=4), form="best")
    with pytest.raises(qkv.OptionError, match="even"):
        qkv.nn.MultiHeadLatentAttention(32, 2, qk_rope_head_dim=5)
    with pytest.raises(qkv.OptionError, match="columns of k"):
        layer.cache(capacity=4).append(np.ones((1, 1, 1, 28), np.float32), np.ones((1, 1, 1, 24), np.float32))
