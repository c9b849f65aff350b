"""qkv.transformers: logits, gradients and generated text of small random models against transformers' eager attention. Not:
downloaded weights, masks (test_transformers_masks.py), captures (test_transformers_capture.py).
"""

import contextlib
from typing import Any

import numpy as np
import pytest
import qkv
import qkv.torch
import qkv.transformers
from support_torch import everything_in, expect_all
from support_transformers import (
    DECODERS,
    EVERY,
    WITH_SDPA,
    WITHOUT_TOKENS,
    T,
    choose,
    expect_equal,
    inputs_of,
    model_of,
    run,
    tf,
    torch,
)
from torch.autograd import forward_ad


@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("name", EVERY)
def test_logits_are_eagers(name: str, padding: str) -> None:
    if name in WITHOUT_TOKENS and padding != "none":
        pytest.skip("images and sounds have no padding here")
    if name == "mpt" and padding == "left":
        pytest.skip("transformers' eager attention gives NaN")
    expect_equal(name, inputs_of(name, padding))


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_eagers(name: str) -> None:
    expect_equal(name, inputs_of(name, "none" if name in WITHOUT_TOKENS else "right"), gradients=True)


def test_attention_is_far_from_uniform_here() -> None:
    """The comparisons above would pass with any attention if the weights were all alike."""
    maps = qkv.transformers.capture_attention(model_of("llama"), inputs_of("llama"))
    assert np.mean([row["max"] for row in maps.statistics()]) > 0.5


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


#: Keys and values that transformers keeps in 8 bits, and in 4, by a package that scripts/verify-release installs.
FP8 = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
INT4 = {"cache_implementation": "quantized", "cache_config": {"backend": "quanto", "nbits": 4, "q_group_size": 4, "residual_length": 4}}


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}, {"num_beams": 2}, FP8, INT4], ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_generate_is_eagers(name: str, options: dict[str, Any]) -> None:
    if options is INT4:
        pytest.importorskip("optimum.quanto")
    texts = []
    for implementation in ("eager", "qkv"):
        model = choose(model_of(name), implementation)
        options_now = {"disable_compile": True, **options} if "cache_implementation" in options else options
        try:
            texts.append(model.generate(**inputs_of(name, "left"), max_new_tokens=9, do_sample=False, **options_now))
        except ValueError as error:
            if implementation == "eager" and "only full attention layers" in str(error):
                pytest.skip("transformers quantises full attention alone")
            raise
    assert texts[0].shape[1] > T + 3
    assert torch.equal(*texts)


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


def test_what_is_not_computed_says_so() -> None:
    falcon = tf.FalconConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=50, alibi=True)
    with pytest.raises(qkv.UnsupportedError, match="Falcon with alibi=True"):
        tf.FalconForCausalLM._from_config(falcon, attn_implementation="qkv")(torch.tensor([[1, 2]]))
    mask = qkv.transformers.model_mask(1, 2, 2)
    with pytest.raises(qkv.UnsupportedError, match="computes attention by itself"):
        mask + torch.zeros(1)
    gptj = tf.GPTJConfig(n_embd=32, n_layer=1, n_head=4, rotary_dim=4, vocab_size=61, bos_token_id=1, eos_token_id=2)
    with pytest.raises(qkv.UnsupportedError, match="computes attention by itself"):
        tf.GPTJForCausalLM._from_config(gptj, attn_implementation="qkv")(torch.tensor([[1, 2]]))
    with pytest.raises(NotImplementedError, match="with sinks.*without gradients"):
        choose(model_of("gpt-oss"), "qkv")(**inputs_of("gpt-oss"), output_attentions=True)


def test_tensors_of_other_attentions_are_not_dropped() -> None:
    """block_indices of MiniMax-M3, sinks of each query of Inkling-2."""
    q, module = torch.randn(1, 2, 4, 8), torch.nn.Module()
    harmless = {"position_ids": torch.arange(4)[None], "sliding_window": 3, "block_indices": None, "use_cache": True}
    qkv.transformers.attention_forward(module, q, q, q, None, **harmless)
    for name, x in (("block_indices", torch.zeros(1, 2, 4, 1, dtype=torch.long)), ("sinks", torch.zeros(1, 2, 4, 1))):
        with pytest.raises(qkv.UnsupportedError, match=f'does not compute {name}: got a tensor .*"eager"'):
            qkv.transformers.attention_forward(module, q, q, q, None, **{name: x})
    with pytest.raises(qkv.UnsupportedError, match="does not compute biases: got a list of 2 tensors"):
        qkv.transformers.attention_forward(module, q, q, q, None, biases=[q, q])
    with pytest.raises(ValueError, match="cu_seq_lens_k alone"):
        qkv.transformers.attention_forward(module, q, q, q, None, cu_seq_lens_k=torch.tensor([0, 4]))


def test_as_many_indices_as_keys_need_not_be_all_of_them() -> None:
    q, module = torch.randn(1, 2, 4, 8), torch.nn.Module()
    attend = lambda indices: qkv.transformers.attention_forward(module, q, q, q, None, is_causal=False, indices=indices)[0]
    each = torch.tensor([2, 0, 3, 1])
    assert torch.equal(attend(each.expand(1, 4, 4)), attend(None))
    assert torch.equal(attend(torch.where(each > 1, each, -1).expand(1, 4, 4)), attend(torch.tensor([2, 3]).expand(1, 4, 2)))
    for wrong in (torch.zeros(4), torch.arange(1, 5)):
        with pytest.raises(ValueError):
            attend(wrong.long().expand(1, 4, 4))


@pytest.mark.parametrize("name", ["bert", "mistral", "gemma2", "gpt-oss", "t5", "whisper", "bloom", "mpt", "falcon"])
def test_weights_are_eagers(name: str) -> None:
    """output_attentions, also those of cross-attention, under "qkv" and of "sdpa" under qkv.torch.enable()."""
    inputs = inputs_of(name, "right" if name != "whisper" else "none")
    exact = attentions_of(name, torch.float64, "eager", inputs)
    naive = attentions_of(name, torch.float32, "eager", inputs)
    ways = ["qkv", *(["sdpa"] if name in (*WITH_SDPA, "whisper") else [])]
    for way in ways:
        with qkv.torch.enable() if way == "sdpa" else contextlib.nullcontext():
            fast = attentions_of(name, torch.float32, way, inputs)
        assert fast.keys() == exact.keys() and exact
        expect_all(fast, exact, naive, what=f"{name} {way}")


def attentions_of(name: str, dtype: Any, implementation: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Every weight that the model returns, of queries that are tokens."""
    model = choose(model_of(name, dtype), implementation)
    given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    with torch.no_grad(), everything_in(dtype) if dtype is torch.float64 else contextlib.nullcontext():
        made = model(**given, output_attentions=True)
    kept = inputs.get("attention_mask")
    found = {}
    for key, weights in made.items():
        for n, x in enumerate(weights if key.endswith("attentions") else ()):
            of_tokens = kept is not None and x.shape[2] == kept.shape[1]
            found[f"{key} {n}"] = x.transpose(1, 2)[kept.bool()] if of_tokens else x
    return found


def test_graphs_are_those_of_sdpa_under_enable() -> None:
    """Models that attn_implementation="qkv" refuses, and its message's remedy: the same numbers from "sdpa" under qkv.torch.enable()."""
    model, ids = model_of("llama"), inputs_of("llama")["input_ids"]
    model.set_attn_implementation("qkv")
    expected = model(ids, use_cache=False).logits
    parameters = dict(model.named_parameters())

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(model, parameters, (ids,), {"use_cache": False}).logits.square().sum()

    def results() -> list[Any]:
        torch._dynamo.reset()
        return [
            lambda: torch.export.export(model, (ids,), {"use_cache": False}).module()(ids, use_cache=False).logits,
            lambda: torch.compile(model, fullgraph=True, backend="aot_eager")(ids, use_cache=False).logits,
            lambda: torch.func.grad(loss)(parameters)["lm_head.weight"],
        ]

    for graph in results():
        with pytest.raises((NotImplementedError, RuntimeError), match="under qkv.torch.enable"):
            graph()
    assert torch.equal(torch.compile(model, backend="aot_eager")(ids, use_cache=False).logits, expected)  # in pieces
    model.set_attn_implementation("sdpa")
    with qkv.torch.enable():
        *logits, gradient = (graph() for graph in results())
        torch.testing.assert_close(gradient, torch.autograd.grad(loss(parameters), parameters["lm_head.weight"])[0])
    for made in logits:
        torch.testing.assert_close(made, expected)


def test_forward_mode_is_refused_and_not_lost() -> None:
    model = model_of("llama").requires_grad_(False)
    model.set_attn_implementation("qkv")
    x = torch.rand(1, 4, 32)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode.*under qkv.torch.enable"):
        model(inputs_embeds=forward_ad.make_dual(x, torch.ones_like(x)), use_cache=False)
