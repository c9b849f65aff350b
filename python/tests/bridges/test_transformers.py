"""qkv.transformers: logits, gradients and generated text of small random models against transformers' eager attention, its
masks against transformers' own, and what capture_attention sees against eager's weights. Not: downloaded weights.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")
if not hasattr(tf, "AttentionMaskInterface"):
    pytest.skip("needs transformers with AttentionMaskInterface", allow_module_level=True)
import qkv
import qkv.transformers
from transformers import masking_utils

qkv.transformers.register()
tf.logging.set_verbosity_error()

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 61}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SIZES, **TOKENS, "num_key_value_heads": 2}

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: tf.BertModel(tf.BertConfig(**SIZES, pad_token_id=0)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=64, **TOKENS)),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**GROUPED)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**GROUPED, sliding_window=5)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(**GROUPED, head_dim=8, sliding_window=4, attn_logit_softcapping=1.0)
    ),
    "gpt-oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**GROUPED, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)
    ),
    "llama4": lambda: tf.Llama4ForCausalLM(
        tf.Llama4TextConfig(**GROUPED, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48)
    ),
    "t5": lambda: tf.T5EncoderModel(tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61)),
    "vit": lambda: tf.ViTModel(
        tf.ViTConfig(**{k: n for k, n in SIZES.items() if k != "vocab_size"}, image_size=24, patch_size=8),
        add_pooling_layer=False,
    ),
}
T = 11


def model_of(name: str, dtype: Any = torch.float32, seed: int = 0) -> Any:
    """Random weights, large enough that attention is far from uniform; the same numbers in every type."""
    torch.manual_seed(seed)
    model = MODELS[name]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.ndim > 1 else 0.2) + (parameter.ndim == 1) * 1.0)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype)


def inputs_of(name: str, padding: str = "none") -> dict[str, Any]:
    torch.manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 24, 24)}
    mask = torch.ones(2, T, dtype=torch.long)
    if padding == "right":
        mask[1, 7:] = 0
    elif padding == "left":
        mask[0, :4] = 0
    elif padding == "holes":
        mask[0, [2, 3, 6]] = 0
    ids = torch.randint(3, 61, (2, T))
    return {"input_ids": ids} if padding == "none" else {"input_ids": ids, "attention_mask": mask}


@contextlib.contextmanager
def exact_softmax() -> Iterator[None]:
    """transformers' eager attention asks for softmax in float32 of float64 scores too: here it stays float64."""
    kept = torch.nn.functional.softmax
    torch.nn.functional.softmax = lambda x, dim=-1, dtype=None: kept(x, dim=dim)
    try:
        yield
    finally:
        torch.nn.functional.softmax = kept


def term_sum(x: Any) -> float:
    """The largest column sum of absolute values: x [..., features]."""
    return float(x.abs().flatten(0, -2).sum(0).max())


def product_sum(dout: Any, x: Any) -> float:
    """The largest of sum_t |dout[t, n] x[t, m]|: what a weight's gradient adds up, every term made positive."""
    if dout is None:
        return 0.0
    return float((dout.abs().flatten(0, -2).T @ x.abs().flatten(0, -2)).max())


def run(name: str, dtype: Any, implementation: str, inputs: dict[str, Any], gradients: bool = False) -> dict[str, np.ndarray]:
    model = model_of(name, dtype)
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    arrived: dict[str, float] = {}  # at a layer's bias: the sum of all terms made positive (softmax makes key biases' sum 0)
    came: dict[str, Any] = {}  # what a layer was given: its weight's gradient is a sum over tokens too
    for key, layer in model.named_modules():
        if not gradients or getattr(layer, "bias", None) is None:
            continue
        layer.register_full_backward_hook(
            lambda _, __, dout, key=key: arrived.update({f"A d {key}.bias": 0.0 if dout[0] is None else term_sum(dout[0])})
        )
        if isinstance(layer, (torch.nn.Linear, tf.pytorch_utils.Conv1D)):
            layer.register_forward_pre_hook(lambda _, x, key=key: came.update({key: x[0].detach()}))
            layer.register_full_backward_hook(
                lambda _, __, dout, key=key: arrived.update({f"A d {key}.weight": product_sum(dout[0], came[key])})
            )
    with exact_softmax() if dtype == torch.float64 else contextlib.nullcontext(), torch.set_grad_enabled(gradients):
        out = model(**inputs, use_cache=False)[0] if name not in ("vit", "bert", "t5") else model(**inputs)[0]
        results = {"out": out.detach().double().numpy()}
        if gradients:
            torch.manual_seed(2)
            dout = torch.randn(out.shape, dtype=torch.float64).to(dtype)
            if "attention_mask" in inputs:  # as a loss does: what stands at padding does not count
                dout = dout * inputs["attention_mask"][:, :, None]
            (out * dout).sum().backward()
            results |= {f"d {key}": p.grad.double().numpy() for key, p in model.named_parameters() if p.grad is not None}
            results |= {key: np.array(size) for key, size in arrived.items()}
    return results


def expect_equal(name: str, inputs: dict[str, Any], gradients: bool = False) -> None:
    """error(qkv, float32) <= 2 error(eager, float32) + 4 eps A, 3 for gradients; A: the largest sum of the terms made positive, where known."""
    exact = run(name, torch.float64, "eager", inputs, gradients)
    naive = run(name, torch.float32, "eager", inputs, gradients)
    fast = run(name, torch.float32, "qkv", inputs, gradients)
    assert fast.keys() == exact.keys()
    for key, value in fast.items():
        if key.startswith("A d "):
            continue
        factor = 3 if key.startswith("d ") else 2
        error, naive_error = (float(abs(x[key] - exact[key]).max()) for x in (fast, naive))
        size = max(float(abs(exact[key]).max()), float(exact.get(f"A {key}", 0)))
        bound = factor * naive_error + 4 * np.finfo(np.float32).eps * size
        assert error <= bound, f"{name} {key}: error {error:.3g} > bound {bound:.3g} (eager {naive_error:.3g})"
        assert np.isfinite(value).all()


@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_eagers(name: str, padding: str) -> None:
    if name == "vit" and padding != "none":
        pytest.skip("images have no padding")
    expect_equal(name, inputs_of(name, padding))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_eagers(name: str) -> None:
    expect_equal(name, inputs_of(name, "none" if name == "vit" else "right"), gradients=True)


def test_attention_is_far_from_uniform_here() -> None:
    """The comparisons above would pass with any attention if the weights were all alike."""
    seen = qkv.transformers.capture_attention(model_of("llama"), inputs_of("llama"))
    assert np.mean([row["max"] for row in seen.statistics()]) > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: Any) -> None:
    inputs = inputs_of("qwen2", "left")
    exact = run("qwen2", torch.float64, "eager", inputs)["out"]
    naive, fast = (run("qwen2", dtype, which, inputs)["out"] for which in ("eager", "qkv"))
    assert abs(fast - exact).max() <= 2 * abs(naive - exact).max() + 4 * torch.finfo(dtype).eps * abs(exact).max()


def test_packed_sequences_and_four_axes() -> None:
    ids = torch.randint(3, 61, (1, 9), generator=torch.Generator().manual_seed(3))
    expect_equal("llama", {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0]])})
    keep = torch.tril(torch.ones(9, 9, dtype=torch.bool)).roll(1, 1)[None, None]
    expect_equal("gpt2", {"input_ids": ids, "attention_mask": torch.where(keep, 0.0, torch.finfo(torch.float32).min)})


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_generate_is_eagers(name: str, options: dict[str, Any]) -> None:
    texts = []
    for implementation in ("eager", "qkv"):
        model = model_of(name)
        model.set_attn_implementation(implementation)
        options_now = {"disable_compile": True, **options} if "cache_implementation" in options else options
        made = model.generate(**inputs_of(name, "left"), max_new_tokens=9, do_sample=False, **options_now)
        texts.append(made)
    assert texts[0].shape[1] > T + 3
    assert torch.equal(*texts)


# Masks.

_CAUSAL, _BOTH = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
_BLOCKS = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, 2, 2], [0, 0, -1, -1, -1, 1, 1, 1, 1, -1, -1]])
FUNCTIONS: dict[str, Any] = {
    "causal": _CAUSAL,
    "both": _BOTH,
    "sliding": masking_utils.sliding_window_causal_mask_function(3),
    "sliding both": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunked": masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
    "blocks": masking_utils.or_masks(_CAUSAL, masking_utils.blockwise_overlay(_BLOCKS)),
}
PLACES = {  # q_length, kv_length, q_offset, kv_offset
    "square": (11, 11, 0, 0),
    "decoding": (1, 11, 10, 0),
    "cached": (3, 11, 8, 0),
    "static cache": (4, 11, 3, 0),
    "static prefill": (4, 11, 0, 0),
    "sliding cache": (2, 5, 9, 6),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("padding", ["none", "all", "right", "left", "holes"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_masks_are_transformers(function: str, padding: str, place: str) -> None:
    q_length, kv_length, q_offset, kv_offset = PLACES[place]
    given = None if padding == "none" else torch.ones(2, 11, dtype=torch.bool)
    if padding in ("right", "left", "holes"):
        given = inputs_of("gpt2", padding)["attention_mask"].bool()
    if place.startswith("static") and given is not None:
        given = given[:, : q_offset + q_length]  # as generate() gives it: without the keys that are not there yet
    arguments = {
        "batch_size": 2, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": FUNCTIONS[function], "attention_mask": given,
    }  # fmt: skip
    made = qkv.transformers.model_mask(**arguments)
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    assert torch.equal(made.to_dense(), expected.expand(made.shape))
    counted_from_elsewhere = function == "chunked" and place in ("static cache", "sliding cache")
    assert made.dense == counted_from_elsewhere


def test_packed_and_unknown_masks() -> None:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]])
    packed = masking_utils.find_packed_sequence_indices(positions)
    for inner in (_CAUSAL, FUNCTIONS["sliding"], FUNCTIONS["chunked"]):
        function = masking_utils.packed_sequence_compatibility_function(inner, positions, packed)
        made = qkv.transformers.model_mask(2, 11, 11, mask_function=function)
        assert torch.equal(
            made.to_dense(), masking_utils.sdpa_mask(2, 11, 11, mask_function=function, allow_is_causal_skip=False)
        )
        assert made.dense == (inner is FUNCTIONS["chunked"])
    own = masking_utils.and_masks(_CAUSAL, lambda b, h, i, j: (i + j) % 3 != 1)
    made = qkv.transformers.model_mask(
        2, 11, 11, mask_function=own, attention_mask=inputs_of("gpt2", "right")["attention_mask"].bool()
    )
    assert made.dense
    assert made.to_dense()[1, 0, 10].tolist() == [(10 + j) % 3 != 1 and j < 7 for j in range(11)]


# Training.


def test_dropout_follows_torchs_generator() -> None:
    module = torch.nn.Module()
    q, k, v = (torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    torch.manual_seed(4)
    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    torch.manual_seed(4)
    out, _ = qkv.transformers.attention_forward(module, q, k, v, None, dropout=0.5, is_causal=True)
    want = qkv.attention(q, k, v, causal=True, dropout=0.5, seed=seed)
    assert torch.equal(out.transpose(1, 2), want)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_steps_learn_and_repeat(checkpointing: bool) -> None:
    losses = []
    for _ in range(2):
        model = model_of("gpt2")
        model.set_attn_implementation("qkv")
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(7)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        ids = inputs_of("gpt2")["input_ids"]
        steps = []
        for _ in range(8):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses.append(steps)
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.5 * losses[0][0]


# Looking.


def eager_weights(name: str, inputs: dict[str, Any]) -> list[np.ndarray]:
    model = model_of(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return [w.double().numpy() for w in model(**inputs, output_attentions=True).attentions]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_capture_sees_eagers_weights(name: str) -> None:
    inputs = inputs_of(name)
    weights = eager_weights(name, inputs)
    model = model_of(name)
    model.set_attn_implementation("sdpa")
    model.train()
    seen = qkv.transformers.capture_attention(model, inputs)
    assert model.config._attn_implementation == "sdpa" and all(m.training for m in model.modules())
    assert len(seen) == len(weights) == 2
    rows = {(row["layer"], row["head"]): row for row in seen.statistics()}
    assert len(rows) == 8
    for layer, w in enumerate(weights):
        entropy = -(w * np.log(np.maximum(w, 1e-300))).sum(-1)
        t = w.shape[-1]
        for head in range(4):
            # float32 on both sides; the weights' own comparison has its bound in test_attention.py
            np.testing.assert_allclose(seen.map(layer, head, sequence=1), w[1, head], atol=2e-5)
            row = rows[layer, head]
            np.testing.assert_allclose(row["entropy_nats"], entropy[:, head].mean(), atol=2e-5)
            np.testing.assert_allclose(row["self"], w[:, head, np.arange(t), np.arange(t)].mean(), atol=2e-5)
            np.testing.assert_allclose(row["first"], w[:, head, :, 0].mean(), atol=2e-5)
            np.testing.assert_allclose(row["max"], w[:, head].max(-1).mean(), atol=2e-5)
    assert seen.table().count("\n") == 8


def test_capture_of_some_layers_and_heads() -> None:
    inputs = inputs_of("llama", "right")
    weights = eager_weights("llama", inputs)
    seen = qkv.transformers.capture_attention(
        model_of("llama"), inputs, layers=[1], capture=qkv.Capture(heads=[3, 0], rows=[5], statistics=True)
    )
    assert len(seen) == 1 and seen.layers[0].name == "model.layers.1.self_attn" and seen.layers[0].heads == (3, 0)
    np.testing.assert_allclose(seen[1].rows[:, :, 0], weights[1][:, [3, 0], 5], atol=2e-5)
    coarse = qkv.transformers.capture_attention(model_of("llama"), inputs, capture=qkv.Capture(heads=[2], map=(4, 3)))
    blocks = [weights[0][0, 2][:, columns].sum(-1) for columns in (slice(0, 4), slice(4, 8), slice(8, 11))]
    want_map = [[part[rows].mean() for part in blocks] for rows in (slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11))]
    np.testing.assert_allclose(coarse.map(0, 2), want_map, atol=2e-5)
    assert coarse.plot(layer=0).svg().startswith("<svg")
    live = inputs["attention_mask"].bool().numpy()  # rows of padding do not count
    want = np.concatenate([weights[1][b, 3][live[b]].max(-1) for b in range(2)]).mean()
    np.testing.assert_allclose(seen.statistics()[0]["max"], want, atol=2e-5)
    with pytest.raises(IndexError, match="layer 0"):
        seen[0]
    with pytest.raises(ValueError, match="head 1"):
        qkv.transformers.capture_attention(model_of("llama"), inputs, heads=[2]).map(0, 1)
    with pytest.raises(ValueError, match=r"layers must lie in 0\.\.1"):
        qkv.transformers.capture_attention(model_of("llama"), inputs, layers=[2])


def test_capture_gives_the_models_own_output() -> None:
    inputs = inputs_of("gemma2", "left")
    model = model_of("gemma2")
    model.set_attn_implementation("qkv")
    with torch.no_grad():
        want = model(**inputs).logits
    assert torch.equal(qkv.transformers.capture_attention(model, inputs).outputs.logits, want)


def test_capture_takes_no_memory_of_the_order_of_length_squared() -> None:
    script = """
    import resource, torch, transformers, qkv.transformers
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=11, n_positions=8192, bos_token_id=1, eos_token_id=1)
    model = transformers.GPT2Model(config)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    qkv.transformers.capture_attention(model, torch.ones(1, 64, dtype=torch.long))
    before = peak()
    seen = qkv.transformers.capture_attention(model, torch.randint(0, 11, (1, 8192)))
    assert seen.layers[0].captured.map.shape == (1, 2, 64, 64)
    print(peak() - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 8192 * 8192 * 4 / 4  # a quarter of the scores of one head


# Errors.


def test_errors_say_what_to_do() -> None:
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="on the CPU"):
        meta = q.to("meta")
        qkv.transformers.attention_forward(torch.nn.Module(), meta, meta, meta, None)
    with pytest.raises(TypeError, match="4-D"):
        qkv.transformers.attention_forward(torch.nn.Module(), q, q, q, torch.ones(1, 4))
    with pytest.raises(ValueError, match="of its own"):
        qkv.transformers.capture_attention(torch.nn.Linear(2, 2), {"input": torch.ones(1, 2)})


@pytest.mark.parametrize("kind", ("Bloom", "Mpt"))
def test_models_that_compute_attention_by_themselves_are_refused(kind: str) -> None:
    sizes: dict[str, dict[str, Any]] = {
        "Bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50},
        "Mpt": {"d_model": 32, "n_layers": 1, "n_heads": 4, "vocab_size": 50},
    }
    config = getattr(tf, f"{kind}Config")(**sizes[kind])
    model = getattr(tf, f"{kind}ForCausalLM")._from_config(config, attn_implementation="qkv")
    with pytest.raises(qkv.UnsupportedError, match="computes attention by itself"):
        model(torch.tensor([[1, 2, 3]]))
