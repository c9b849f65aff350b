"""A generated token's attention in one call: the same bits as by transformers' own steps, wherever that call is taken."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from qkv import _core
from qkv.transformers import _decode
from support_transformers import GROUPED, MODELS, MORE, qkv, tf, torch

OWN = {
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**GROUPED, sliding_window=None)),
    "granite": lambda: MORE["granite"](),
    "gemma": lambda: MORE["gemma"](),
} | {name: MODELS[name] for name in ("llama", "qwen2", "qwen3")}  # fmt: skip


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each call of decode_step."""
    made: list[int] = []
    monkeypatch.setattr(_core, "decode_step", lambda *given, _step=_core.decode_step: (made.append(given[1]), _step(*given))[1])
    yield made


def logits(model: Any, ids: Any, one_call: bool, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Of a prompt and of each token after it, on one cache."""
    with monkeypatch.context() as m, torch.no_grad():
        if not one_call:
            m.setattr(_decode, "_room", lambda *_: None)
        cache = tf.DynamicCache(config=model.config)
        mask = options.pop("attention_mask", None)
        made = []
        for begin, end in [(0, 5), *((n, n + 1) for n in range(5, ids.shape[1]))]:
            more = {} if mask is None else {"attention_mask": mask[:, :end]}
            made.append(model(ids[:, begin:end], past_key_values=cache, use_cache=True, **more).logits)
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", OWN)
def test_bits_are_those_of_the_layers_own_steps(name: str, dtype: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = OWN[name]().eval().to(dtype)
    model.set_attn_implementation("qkv")
    ids = torch.randint(3, 60, (2, 80))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    ours = logits(model, ids, True, monkeypatch, attention_mask=mask)
    assert len(steps) >= 2 * (75 - 3)  # two layers; where memory grows, transformers' own steps
    count = len(steps)
    for one, other in zip(ours, logits(model, ids, False, monkeypatch, attention_mask=mask), strict=True):
        assert torch.equal(one, other)
    assert len(steps) == count


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}, {"num_return_sequences": 2, "num_beams": 2}, {"prompt_lookup_num_tokens": 3}])
def test_generate_gives_the_ids_of_eager(how: dict[str, Any], steps: list[int]) -> None:
    torch.manual_seed(2)
    model = MODELS["llama"]().eval()
    ids = torch.randint(3, 60, (1 if "prompt_lookup_num_tokens" in how else 2, 7))
    made = []
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        torch.manual_seed(3)
        made.append(model.generate(ids, max_new_tokens=40, min_new_tokens=40, **how))
    assert torch.equal(*made)
    assert steps or how.keys() & {"num_beams", "prompt_lookup_num_tokens"}  # reordered at each token; several tokens at a time


def test_others_take_their_own_steps(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients, another rotation, caches of another kind."""
    torch.manual_seed(4)
    model = MODELS["llama"]().eval()
    model.set_attn_implementation("qkv")
    ids = torch.randint(3, 60, (1, 9))
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        fork = copy.deepcopy(cache)
        wanted = model(ids, output_attentions=True)
        got = model(ids[:, -1:], past_key_values=cache, output_attentions=True)
        torch.testing.assert_close(got.attentions[0][:, :, -1], wanted.attentions[0][:, :, -1])
    got = model(ids[:, -1:], past_key_values=fork)
    assert got.logits.requires_grad
    torch.testing.assert_close(got.logits[:, -1], wanted.logits[:, -1])
    from transformers.models.llama import modeling_llama

    turn = modeling_llama.apply_rotary_pos_emb
    with monkeypatch.context() as m, torch.no_grad():  # someone's own rotation
        m.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: turn(q, k, -cos, sin))
        logits(model, ids, True, monkeypatch)

    class Own(tf.DynamicCache):
        def update(self, *given: Any, **more: Any) -> Any:
            return super().update(*given, **more)

    model.generate(ids, max_new_tokens=4, past_key_values=Own(config=model.config))
    mistral = MODELS["mistral"]().eval()  # a window
    mistral.set_attn_implementation("qkv")
    mistral.generate(ids, max_new_tokens=4)
    model.generate(ids, max_new_tokens=4, cache_implementation="static")
    assert not steps


def test_caches_are_transformers_own_afterwards(steps: list[int]) -> None:
    """Cut, copied, reordered and repeated between steps."""
    torch.manual_seed(5)
    model = MODELS["qwen3"]().eval()
    ids = torch.randint(3, 60, (2, 30))
    outs = []
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        made, cache = [], tf.DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :4], past_key_values=cache)
            for n in range(4, 20):
                made.append(model(ids[:, n : n + 1], past_key_values=cache).logits)
            cache.crop(-9)
            fork = copy.deepcopy(cache)
            cache.reorder_cache(torch.tensor([1, 0]))
            for n in range(11, 16):
                made.append(model(ids[:, n : n + 1], past_key_values=cache).logits)
                made.append(model(ids[:, n + 9 : n + 10], past_key_values=fork).logits)
            cache.batch_select_indices(torch.tensor([0]))
            made += [model(ids[:1, 20:21], past_key_values=cache).logits, model(ids[:, 9:10], past_key_values=fork).logits]
        outs.append(made)
    assert steps
    for one, other in zip(*outs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_only_code_that_is_known_is_replaced() -> None:
    from transformers.models.glm import modeling_glm  # interleaved
    from transformers.models.llama import modeling_llama
    from transformers.models.olmo2 import modeling_olmo2  # norms before the heads

    assert _decode.is_known(modeling_llama, modeling_llama.LlamaAttention)
    assert not _decode.is_known(modeling_glm, modeling_glm.GlmAttention)
    assert not _decode.is_known(modeling_olmo2, modeling_olmo2.Olmo2Attention)
    qkv.transformers.unregister()
    try:
        assert not hasattr(modeling_llama.LlamaAttention.forward, "__wrapped__")
    finally:
        qkv.transformers.register()


def test_arrays_that_do_not_fit_are_refused() -> None:
    def arrays(**other: Any) -> list[Any]:
        shapes = {"q": (2, 1, 32), "k": (2, 1, 16), "v": (2, 1, 16), "cos": (1, 1, 8), "sin": (1, 1, 8)}
        shapes |= {"keys": (2, 2, 5, 8), "values": (2, 2, 5, 8), "out": (2, 1, 32)}
        return [np.zeros(shape, np.float32) for shape in (shapes | other).values()]

    _core.decode_step(None, 4, *arrays())
    for held in (-1, 5, 2**40):
        with pytest.raises(ValueError, match="a row left"):
            _core.decode_step(None, held, *arrays())
    wrong = {"q": (2, 1, 33), "k": (2, 1, 8), "v": (2, 2, 16), "cos": (3, 1, 8), "sin": (1, 1, 4), "keys": (1, 2, 5, 8), "values": (2, 1, 5, 8)}
    for name, shape in (wrong | {"out": (2, 1, 24)}).items():
        with pytest.raises(ValueError, match="decode_step"):
            _core.decode_step(None, 0, *arrays(**{name: shape}))
    with pytest.raises(TypeError):
        _core.decode_step(None, 0, *arrays()[:-1])
    with pytest.raises(TypeError, match="keys"):
        _core.decode_step(None, 0, *(x.astype(np.float64) if n == 5 else x for n, x in enumerate(arrays())))


def test_invariant_bits_give_the_whole_sequence_s_logits() -> None:
    """Of a small Llama whose Linears run through qkv: each generated token's logits are the training forward's."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=61, pad_token_id=0, bos_token_id=1, eos_token_id=None, attn_implementation="qkv",
    )  # fmt: skip
    model = tf.LlamaForCausalLM(config).eval()
    prompt = torch.arange(3, 12)[None]
    qkv.set_bits("invariant")
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(10 if parameter.ndim > 1 else 1)  # attention is far from uniform
            qkv.transformers.optimize(model)
            made = model.generate(prompt, max_new_tokens=24, do_sample=False, return_dict_in_generate=True, output_logits=True)
            whole = model(made.sequences).logits[0]
    finally:
        qkv.set_bits("fast")
    assert len(made.logits) == 24
    for step, row in enumerate(made.logits):
        assert torch.equal(row[0], whole[8 + step]), f"token {step}"
