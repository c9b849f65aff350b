"""Layers of qkv.nn with the weights of Hugging Face's attention modules: every scaling of rotary positions, norms of q and k, partial and interleaved
rotation, BERT; outputs, weights and gradients. Slopes of ALiBi, buckets of T5."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

import qkv
from support_torch import everything_in, expect_all, numbers
from torch import Tensor

DTYPES = (torch.float64, torch.float32)


def check(layer: Callable[[dict[str, Tensor]], Any], make: Callable[[], Any], call: Callable[[Any, Tensor], Any], sizes: tuple[int, int, int],
          renamed: Callable[[str], str] = str, **options: Any) -> None:  # fmt: skip
    """make() is their module, call(module, x) gives (y, weights); layer(state) is ours, called with options."""
    x, dy = numbers(1, *sizes), numbers(2, *sizes)
    state = {name: numbers(20 + n, *p.shape) / 4 + (p.ndim == 1) for n, (name, p) in enumerate(make().named_parameters())}
    theirs = []
    for dtype in DTYPES:
        module, given = make().eval().to(dtype), x.to(dtype, copy=True).requires_grad_()
        for name, p in module.named_parameters():
            p.data = state[name].to(dtype)
        with everything_in(dtype):
            y, weights = call(module, given)
        y.backward(dy.to(dtype))
        theirs.append({"y": y, "weights": weights, "dx": given.grad} | {"d" + renamed(n): p.grad for n, p in module.named_parameters()})
    ours, saved = layer({renamed(name): p.float() for name, p in state.items()}), qkv.nn.Saved()
    y, weights = ours(x.float(), weights="all", saved=saved, **options)
    dx = ours.backward(dy.float(), saved)
    expect_all({"y": y, "weights": weights, "dx": dx} | {"d" + n: torch.as_tensor(g) for n, g in ours.grads.items()}, *theirs)


def causal_mask(length: int, keep: Tensor | None, dtype: torch.dtype) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    mask = mask if keep is None else mask & keep[:, None, None]
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


SMALL = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
WIDE = {"hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
PADDED = torch.tensor([[1] * 7, [1] * 4 + [0] * 3], dtype=torch.bool)
# Their module, (B, T), position of the first token, their sizes, their rotation, ours.
ROTATIONS: dict[str, tuple[str, tuple[int, int], int, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", (2, 7), 0, SMALL, {}, {}),
    "dynamic": ("Llama", (1, 24), 0, WIDE | {"max_position_embeddings": 8}, {"rope_type": "dynamic", "factor": 2.0},
                {"scaling": "ntk", "factor": 5.0}),  # trained on 8 tokens, used on 24: 2 * 24 / 8 - (2 - 1)
    "yarn": ("Llama", (1, 12), 50, WIDE | {"max_position_embeddings": 16384},
             {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, {"scaling": "yarn", "factor": 4.0, "original_context": 4096}),
    "llama3": ("Llama", (1, 12), 50, WIDE | {"max_position_embeddings": 512},
               {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}, {"base": 5e5, "scaling": "llama3", "factor": 8.0, "original_context": 64}),
    "qwen3": ("Qwen3", (2, 6), 0, SMALL | {"head_dim": 8}, {"rope_theta": 1e6}, {"base": 1e6}),
    "olmo2": ("Olmo2", (2, 6), 0, SMALL, {"rope_theta": 5e5}, {"base": 5e5}),
    "stablelm": ("StableLm", (2, 6), 9, SMALL | {"hidden_size": 32, "head_dim": 8, "use_qkv_bias": True}, {"partial_rotary_factor": 0.5}, {"rotary_dim": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROTATIONS)
def test_grouped_query_attention(name: str) -> None:
    kind, (batch, length), offset, sizes, theirs, rotary = ROTATIONS[name]
    code = importlib.import_module(f"transformers.models.{kind.lower()}.modeling_{kind.lower()}")
    config = getattr(tf, kind + "Config")(num_hidden_layers=1, vocab_size=8, intermediate_size=8, attn_implementation="eager",
                                          rope_parameters={"rope_type": "default", "rope_theta": 1e4, **theirs}, **sizes)  # fmt: skip
    keep = PADDED if name == "llama" else None

    def call(module: Any, x: Tensor) -> Any:
        angles = getattr(code, kind + "RotaryEmbedding")(config)(x, torch.arange(offset, offset + length)[None].expand(batch, -1))
        return module(x, position_embeddings=angles, attention_mask=causal_mask(length, keep, x.dtype))

    def layer(state: dict[str, Tensor]) -> Any:
        eps = getattr(config, "rms_norm_eps", 1e-6)
        made = qkv.nn.GroupedQueryAttention.from_state_dict(state, num_heads=sizes["num_attention_heads"], rotary=rotary, norm_eps=eps)
        assert made.num_kv_heads == sizes["num_key_value_heads"]
        return made

    check(layer, lambda: getattr(code, kind + "Attention")(config, 0), call, (batch, length, sizes["hidden_size"]),
          causal=True, offset=offset, keep=keep)  # fmt: skip


def test_gptj_turns_adjacent_columns() -> None:
    code = importlib.import_module("transformers.models.gptj.modeling_gptj")
    config = tf.GPTJConfig(n_embd=24, n_head=2, n_positions=64, rotary_dim=8, n_layer=1, vocab_size=8, attn_pdrop=0.0, resid_pdrop=0.0,
                           attn_implementation="eager")  # fmt: skip

    def call(module: Any, x: Tensor) -> Any:
        angle = torch.arange(64, dtype=x.dtype)[:, None] * 1e4 ** (-torch.arange(0, 8, 2, dtype=x.dtype) / 8)
        module.embed_positions = torch.cat((angle.sin(), angle.cos()), 1)  # the module's own are float32 always
        return module(x, attention_mask=causal_mask(6, None, x.dtype), position_ids=torch.arange(2, 8)[None].expand(2, -1))[:2]

    def layer(state: dict[str, Tensor]) -> Any:
        return qkv.nn.GroupedQueryAttention.from_state_dict(state, num_heads=2, rotary={"rotary_dim": 8, "interleaved": True})

    check(layer, lambda: code.GPTJAttention(config, 0), call, (2, 6, 24), causal=True, offset=2)


def test_bert_is_multi_head_attention() -> None:
    """Without the residual sum and the norm behind its output projection."""
    code = importlib.import_module("transformers.models.bert.modeling_bert")
    config = tf.BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1, vocab_size=8, attn_implementation="eager")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.output = code.BertSelfAttention(config), code.BertSelfOutput(config).dense

    def call(module: Any, x: Tensor) -> Any:
        y, weights = module.attention(x)
        return module.output(y), weights

    def renamed(name: str) -> str:
        *_, part, kind = name.split(".")
        return f"{part}_proj.{kind}"

    check(lambda state: qkv.nn.MultiHeadAttention.from_state_dict(state, num_heads=2), Attention, call, (2, 5, 12), renamed)


def biases(position_bias: Any, heads: int, length: int) -> np.ndarray:
    """[H, length, length]: what is added to a score."""
    zeros = np.zeros((1, heads, length, 1))
    return qkv.attention(zeros, zeros, zeros, weights="scores", position_bias=position_bias)[1][0]


@pytest.mark.parametrize("heads", [4, 6])
def test_slopes_of_alibi_are_blooms(heads: int) -> None:
    code = importlib.import_module("transformers.models.bloom.modeling_bloom")
    theirs = code.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # powers of a base rounded to float
    np.testing.assert_allclose(-biases(qkv.PositionBias.alibi(heads), heads, 2)[:, 0, 1], theirs, rtol=1e-6)


@pytest.mark.parametrize("bidirectional,num_buckets,max_distance", [(True, 32, 128), (False, 32, 128), (True, 64, 256), (False, 8, 20), (True, 12, 100)])
def test_buckets_are_t5s(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    """A table whose numbers are the buckets themselves."""
    code = importlib.import_module("transformers.models.t5.modeling_t5")
    distance = torch.arange(601)[None] - torch.arange(601)[:, None]
    theirs = code.T5Attention._relative_position_bucket(distance, bidirectional, num_buckets, max_distance)
    table = np.arange(num_buckets, dtype=np.float64)[:, None]
    ours = qkv.PositionBias.t5(table, max_distance=max_distance, bidirectional=bidirectional)
    assert np.array_equal(np.rint(biases(ours, 1, 601)[0]), theirs)
