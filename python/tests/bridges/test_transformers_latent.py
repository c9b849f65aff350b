"""qkv.transformers on models with DeepSeek's latent attention: logits, gradients and generated text against eager attention, whichever
cache; that decoding is absorbed.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import qkv.transformers
from qkv.transformers import _latent
from support_torch import expect_close
from support_transformers import GROUPED, OTHERS, choose, expect_equal, inputs_of, model_of, tf, torch

if not hasattr(tf, "DeepseekV3Config"):
    pytest.skip("needs transformers with latent attention", allow_module_level=True)

SIZES = GROUPED | {"num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 10}
MOE = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
MOE |= {"first_k_dense_replace": 1, "n_shared_experts": 1}
SPARSE = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "q_lora_rank": 20}
MODELS: dict[str, Callable[[], Any]] = {
    "deepseek_v2": lambda: tf.DeepseekV2ForCausalLM(tf.DeepseekV2Config(**SIZES, **MOE, q_lora_rank=None)),
    "deepseek_v3": lambda: tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**SIZES, **MOE, q_lora_rank=20)),
    "deepseek_v32": lambda: tf.DeepseekV32ForCausalLM(tf.DeepseekV32Config(**SIZES, **MOE, **SPARSE)),
    "glm4_moe_lite": lambda: tf.Glm4MoeLiteForCausalLM(tf.Glm4MoeLiteConfig(**SIZES, **MOE, q_lora_rank=20)),
    "minicpm3": lambda: tf.MiniCPM3ForCausalLM(tf.MiniCPM3Config(**SIZES, q_lora_rank=20)),
}
OTHERS.update(MODELS)
LLAMA = tf.LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=61)


@pytest.fixture(autouse=True)
def put_in() -> Iterator[None]:
    qkv.transformers.register()
    yield
    qkv.transformers.register()


@pytest.fixture
def absorbed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each absorbed call had."""
    lengths: list[int] = []
    attend = _latent.LatentKeys.attend
    monkeypatch.setattr(_latent.LatentKeys, "attend", lambda self, q, *rest: lengths.append(q.shape[2]) or attend(self, q, *rest))
    return lengths


def model_with(name: str, implementation: str, dtype: Any = torch.float32) -> Any:
    return choose(model_of(name, dtype, 0.3), implementation)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_eagers(name: str, padding: str) -> None:
    expect_equal(name, inputs_of(name, padding), gradients=True)


CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {}, "growing": {}, "static": {"cache_implementation": "static", "disable_compile": True}, "none": {"use_cache": False},
    "beams": {"num_beams": 2}, "growing beams": {"num_beams": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_generate_is_eagers(name: str, padding: str, kind: str, absorbed: list[int]) -> None:
    texts = []
    for implementation in ("eager", "qkv"):
        model = model_with(name, implementation)
        options = dict(CACHES[kind])
        if kind.startswith("growing"):
            options["past_key_values"] = qkv.transformers.growing_cache(model.config)
        texts.append(model.generate(**inputs_of(name, padding), max_new_tokens=12, do_sample=False, **options))
    assert texts[0].shape[1] > 14
    assert torch.equal(*texts)
    assert (1 in absorbed) == (kind != "none")


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_steps_on_a_cache_are_the_whole_sequences(name: str, absorbed: list[int]) -> None:
    """Of one, two and three tokens, on both caches, with one that was copied and cropped."""
    ids = torch.randint(3, 61, (2, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        exact = model_with(name, "eager", torch.float64)(ids, use_cache=False).logits
        naive = model_with(name, "eager")(ids, use_cache=False).logits
        model = model_with(name, "qkv")
        for cache in (tf.DynamicCache(config=model.config), qkv.transformers.growing_cache(model.config)):
            absorbed.clear()
            steps, begin = [], 0
            for length in (30, 1, 2, 1, 3, 1, 2):
                part = ids[:, begin : begin + length]
                steps.append(model(part, past_key_values=cache, use_cache=True).logits)
                begin += length
                if begin == 33:
                    cache.crop(-1)
                    cache = copy.deepcopy(cache)
                    model(ids[:, 32:33], past_key_values=cache)
            expect_close(torch.cat(steps, 1), exact, naive, torch.float32, name)
            assert 1 in absorbed


def test_a_growing_cache_writes_behind_what_it_holds() -> None:
    model = model_with("deepseek_v3", "qkv")
    cache = qkv.transformers.growing_cache(model.config)
    with torch.no_grad():
        model(torch.randint(3, 61, (1, 8)), past_key_values=cache)
        before = cache.layers[0].keys
        model(torch.randint(3, 61, (1, 1)), past_key_values=cache)
    held = cache.layers[0]
    assert held.keys.data_ptr() == before.data_ptr() and held.keys.shape[2] == 9
    assert held.values.data_ptr() == held.keys.data_ptr() + 24 * 4  # c and r: columns of one tensor
    model = tf.LlamaForCausalLM._from_config(LLAMA, attn_implementation="qkv").eval()
    ids = torch.randint(3, 61, (1, 5))
    made = [model.generate(ids, max_new_tokens=90, do_sample=False, pad_token_id=0, eos_token_id=None, past_key_values=cache)
            for cache in (None, qkv.transformers.growing_cache(LLAMA))]  # fmt: skip
    assert made[0].shape == (1, 95) and torch.equal(*made)


def test_a_growing_cache_promotes_and_refuses_as_transformers_does() -> None:
    rows = torch.randn(2, 4, 5, 8)
    with torch.no_grad():
        for first, then in ((rows.bfloat16(), rows), (rows, rows.double())):
            held = [tf.DynamicCache(config=LLAMA), qkv.transformers.growing_cache(LLAMA)]
            keys = [[cache.update(x, x, 0)[0] for x in (first, then, then)][-1] for cache in held]
            assert keys[0].dtype == keys[1].dtype and torch.equal(*keys)
        cache = qkv.transformers.growing_cache(LLAMA)
        cache.update(rows, rows, 0)
        for wrong in (rows[:1], rows[:, :1], rows[..., :1]):
            with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
                cache.update(wrong, wrong, 0)
        assert torch.equal(cache.layers[0].keys, rows)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_masks_heads_count_where_keys_are_listed(heads: int, new: int) -> None:
    """DeepSeek-V3.2's steps of one token, which read listed keys alone, and of several."""
    ids = torch.randint(3, 61, (2, 20), generator=torch.Generator().manual_seed(5))
    hidden = torch.rand(2, heads, new, 20, generator=torch.Generator().manual_seed(6)) < 0.1
    hidden |= torch.ones(new, 20).triu(21 - new).bool()
    hidden[..., 0] = False
    logits = []
    for implementation in ("eager", "qkv"):
        model = model_with("deepseek_v32", implementation)
        with torch.no_grad():
            cache = model(ids[:, : 20 - new], use_cache=True).past_key_values
            mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
            logits.append(model(ids[:, 20 - new :], attention_mask=mask, past_key_values=cache).logits)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_a_mask_that_was_changed_since_is_refused() -> None:
    model = model_with("deepseek_v3", "qkv")
    keep = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    loss = model(torch.randint(3, 61, (1, 6)), attention_mask=keep).logits.sum()
    keep[..., 0] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_integer_mask_is_refused() -> None:
    """As by sdpa: added to scores it would hide nothing."""
    model = model_with("deepseek_v3", "qkv")
    with pytest.raises(TypeError, match="must be bool, or floats that are added to scores: got torch.int64"):
        model(torch.randint(3, 61, (1, 5)), attention_mask=torch.ones(1, 1, 5, 5, dtype=torch.long).tril())


def test_unregister_and_other_implementations_compute_keys_and_values(absorbed: list[int]) -> None:
    inputs = inputs_of("deepseek_v3")
    model = model_with("deepseek_v3", "sdpa")
    model.generate(**inputs, max_new_tokens=3, do_sample=False)
    model.set_attn_implementation("qkv")
    qkv.transformers.unregister()
    without = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert not absorbed
    qkv.transformers.register()
    assert torch.equal(model.generate(**inputs, max_new_tokens=3, do_sample=False), without) and absorbed


def test_what_a_growing_cache_returned_keeps_its_rows() -> None:
    """Behind crop, in a shallow copy, and where autograd saved it."""
    model = model_with("deepseek_v3", "qkv")
    ids = torch.randint(3, 61, (1, 14), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        cache = qkv.transformers.growing_cache(model.config)
        model(ids[:, :8], past_key_values=cache)
        fork = copy.copy(cache)
        fork.layers = [copy.copy(layer) for layer in cache.layers]
        held = cache.layers[0].keys
        before = held.clone()
        cache.crop(-3)
        model(ids[:, 8:11], past_key_values=cache)
        assert torch.equal(held, before)
        model(ids[:, 11:], past_key_values=fork)
        assert torch.equal(held, before) and fork.layers[0].keys.shape[2] == 11 and cache.layers[0].keys.shape[2] == 8
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".q_b_proj." in name)
    first = model(ids[:, :8], past_key_values=qkv.transformers.growing_cache(model.config))
    (first.logits.sum() + model(ids[:, 8:], past_key_values=first.past_key_values).logits.sum()).backward()


def test_what_changes_a_projection_is_obeyed_at_every_token(absorbed: list[int]) -> None:
    """A hook on kv_b_proj, of which a step would read the weight alone."""
    ids = torch.randint(3, 61, (1, 10), generator=torch.Generator().manual_seed(6))
    logits = []
    for implementation in ("eager", "qkv"):
        model = model_with("deepseek_v3", implementation)
        for layer in model.model.layers:
            layer.self_attn.kv_b_proj.register_forward_hook(lambda module, given, out: out * 2)
        cache = tf.DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :9], past_key_values=cache)
            logits.append(model(ids[:, 9:], past_key_values=cache).logits)
    assert not absorbed
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
