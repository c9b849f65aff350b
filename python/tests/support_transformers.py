"""Small random models of transformers, and what they compute: logits and gradients against eager attention in float64."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")
if not hasattr(tf, "AttentionMaskInterface"):
    pytest.skip("needs transformers with AttentionMaskInterface", allow_module_level=True)
import qkv.transformers
from support_torch import everything_in

qkv.transformers.register()
tf.logging.set_verbosity_error()

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 61}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SIZES, **TOKENS, "num_key_value_heads": 2}
VISION = {**{k: n for k, n in SIZES.items() if k != "vocab_size"}, "image_size": 24, "patch_size": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61}

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: tf.BertModel(tf.BertConfig(**SIZES, pad_token_id=0)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=64, **TOKENS)),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**GROUPED)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**GROUPED, sliding_window=5)),
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**GROUPED)),
    "gpt-neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**SIZES, **TOKENS)),
    "cohere2": lambda: tf.Cohere2ForCausalLM(tf.Cohere2Config(**GROUPED, sliding_window=4)),
    "opt": lambda: tf.OPTForCausalLM(tf.OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32, **TOKENS)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(**GROUPED, head_dim=8, sliding_window=4, attn_logit_softcapping=1.0)
    ),
    "gpt-oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**GROUPED, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)
    ),
    "llama4": lambda: tf.Llama4ForCausalLM(
        tf.Llama4TextConfig(**GROUPED, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48)
    ),
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=61, **TOKENS)),
    "mpt": lambda: tf.MptForCausalLM(tf.MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=61, max_seq_len=64, **TOKENS)),
    "falcon": lambda: tf.FalconForCausalLM(
        tf.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=61, alibi=False, **TOKENS)
    ),
    "t5-encoder": lambda: tf.T5EncoderModel(tf.T5Config(**T5)),
    "vit": lambda: tf.ViTModel(tf.ViTConfig(**VISION), add_pooling_layer=False),
}
# With QKV_TEST_CASES=all (scripts/verify-release).
MORE: dict[str, Callable[[], Any]] = {
    "distilbert": lambda: tf.DistilBertModel(tf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=61)),
    "roberta": lambda: tf.RobertaModel(tf.RobertaConfig(**SIZES, pad_token_id=0)),
    "xlm-roberta": lambda: tf.XLMRobertaModel(tf.XLMRobertaConfig(**SIZES, pad_token_id=0)),
    "electra": lambda: tf.ElectraModel(tf.ElectraConfig(**SIZES, embedding_size=24)),
    "albert": lambda: tf.AlbertModel(tf.AlbertConfig(**SIZES, embedding_size=24)),
    "camembert": lambda: tf.CamembertModel(tf.CamembertConfig(**SIZES, pad_token_id=0)),
    "modernbert": lambda: tf.ModernBertModel(tf.ModernBertConfig(**SIZES, **TOKENS, local_attention=24)),
    "nomic-bert": lambda: tf.AutoModel.from_config(tf.AutoConfig.for_model("nomic_bert", **SIZES)),
    "glm4": lambda: tf.Glm4ForCausalLM(tf.Glm4Config(**GROUPED, head_dim=8)),
    "gpt-bigcode": lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=64, **TOKENS)),
    "phi": lambda: tf.PhiForCausalLM(tf.PhiConfig(**SIZES, **TOKENS)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**GROUPED, head_dim=8)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=4)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**GROUPED)),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**GROUPED)),
    "starcoder2": lambda: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**GROUPED, sliding_window=4)),
    "stablelm": lambda: tf.StableLmForCausalLM(tf.StableLmConfig(**GROUPED)),
    "granite": lambda: tf.GraniteForCausalLM(tf.GraniteConfig(**GROUPED)),
    "cohere": lambda: tf.CohereForCausalLM(tf.CohereConfig(**GROUPED)),
    "glm": lambda: tf.GlmForCausalLM(tf.GlmConfig(**GROUPED, head_dim=8)),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1)),
    "qwen2-moe": lambda: tf.Qwen2MoeForCausalLM(
        tf.Qwen2MoeConfig(**GROUPED, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    ),
    "qwen3-moe": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**GROUPED, head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
    ),
    "deepseek-v3": lambda: tf.DeepseekV3ForCausalLM(
        tf.DeepseekV3Config(
            **GROUPED | {"num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
            first_k_dense_replace=2,
        )
    ),
}  # fmt: skip
# Of captures only.
EXPLORED: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    ),
    "dinov2": lambda: tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**VISION, num_register_tokens=4)),
    "t5": lambda: tf.T5Model(tf.T5Config(**T5, decoder_start_token_id=0)),
    "whisper": lambda: tf.WhisperModel(
        tf.WhisperConfig(
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, vocab_size=61, num_mel_bins=8, max_source_positions=20, max_target_positions=32, **TOKENS,
            decoder_start_token_id=1,
        )
    ),
}  # fmt: skip
SOUND = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8}
PAIR = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}
PAIR |= {"d_model": 32, "vocab_size": 61, "max_position_embeddings": 64, "decoder_start_token_id": 1, **TOKENS}
# Images, sound, encoders with a decoder, and proteins; with QKV_TEST_CASES=all too.
FURTHER: dict[str, Callable[[], Any]] = {
    "esm": lambda: tf.EsmModel(tf.EsmConfig(**SIZES, pad_token_id=0, mask_token_id=3, position_embedding_type="rotary")),
    "clip-text": lambda: tf.CLIPTextModel(tf.CLIPTextConfig(**SIZES, max_position_embeddings=64, eos_token_id=60, pad_token_id=0)),
    "clip-vision": lambda: tf.CLIPVisionModel(tf.CLIPVisionConfig(**VISION)),
    "siglip": lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**VISION, vision_use_head=False)),
    "deit": lambda: tf.DeiTModel(tf.DeiTConfig(**VISION), add_pooling_layer=False),
    "dinov2": EXPLORED["dinov2"],
    "wav2vec2": lambda: tf.Wav2Vec2Model(tf.Wav2Vec2Config(**SIZES, **SOUND, num_conv_pos_embedding_groups=2)),
    "hubert": lambda: tf.HubertModel(tf.HubertConfig(**SIZES, **SOUND, num_conv_pos_embedding_groups=2)),
    "bart": lambda: tf.BartModel(tf.BartConfig(**PAIR)),
    "marian": lambda: tf.MarianModel(tf.MarianConfig(**PAIR)),
    "whisper": EXPLORED["whisper"],
    "t5": EXPLORED["t5"],
}
OTHERS: dict[str, Callable[[], Any]] = {}  # of one test file alone
# Without padding (unpad). RoBERTa counts positions from its padding number on.
DEBERTA = {**SIZES, "relative_attention": True, "pos_att_type": "p2c|c2p", "position_biased_input": False}
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: tf.BertModel(tf.BertConfig(**SIZES, pad_token_id=1)),
    "roberta": lambda: tf.RobertaModel(tf.RobertaConfig(**SIZES)),
    "distilbert": lambda: tf.DistilBertModel(tf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=61)),
    "mpnet": lambda: tf.MPNetModel(tf.MPNetConfig(**SIZES)),
    "modernbert": lambda: tf.ModernBertModel(tf.ModernBertConfig(**SIZES, **TOKENS, local_attention=6)),
    "nomic-bert": lambda: tf.AutoModel.from_config(tf.AutoConfig.for_model("nomic_bert", **SIZES)),
    "electra": lambda: tf.ElectraModel(tf.ElectraConfig(**SIZES, embedding_size=24)),
    "xlm-roberta-xl": lambda: tf.XLMRobertaXLModel(tf.XLMRobertaXLConfig(**SIZES)),
    "deberta-v3": lambda: tf.DebertaV2Model(tf.DebertaV2Config(**DEBERTA, position_buckets=4, share_att_key=True, norm_rel_ebd="layer_norm")),
    "deberta-v2": lambda: tf.DebertaV2Model(tf.DebertaV2Config(**DEBERTA, max_relative_positions=8, type_vocab_size=2)),
}
ALL = os.environ.get("QKV_TEST_CASES") == "all"
EVERY = [*MODELS, *({**MORE, **FURTHER} if ALL else ())]
NO_DECODERS = {"bert", "t5-encoder", "vit", *list(MORE)[:8], *FURTHER}  # MORE begins with encoders
WITHOUT_TOKENS = ("vit", "clip-vision", "siglip", "deit", "dinov2", "wav2vec2", "hubert", "whisper")
DECODERS = [name for name in EVERY if name not in NO_DECODERS] if ALL else ["gpt2", "llama", "mistral", "gemma2", "gpt-oss", "falcon"]
# No soft caps, sinks or biases of its own.
WITH_SDPA = (
    "bert", "gpt2", "llama", "qwen2", "qwen3", "mistral", "phi3", "gpt-neox", "cohere2", "opt", "vit", *(MORE.keys() - {"gemma3", "deepseek-v3"}),
    *(FURTHER.keys() - {"t5"}),
)  # fmt: skip
T = 11


def model_of(name: str, dtype: Any = torch.float32, scale: float = 0.5) -> Any:
    """Random weights, large enough that attention is far from uniform; the same numbers in every type."""
    torch.manual_seed(0)
    model = (MODELS | MORE | EXPLORED | FURTHER | OTHERS)[name]().float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (scale if parameter.ndim > 1 else 0.2) + (parameter.ndim == 1) * 1.0)
            if name == "t5" and key.endswith(".q.weight"):
                parameter *= 8**-0.5  # the scale of scores, which T5 keeps in this weight
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype)


def choose(model: Any, implementation: str) -> Any:
    """The model with an implementation of attention; some models take it only when they are made."""
    model.set_attn_implementation(implementation)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = implementation
    return model


def encoder_of(name: str) -> Any:
    """One of ENCODERS, with random weights."""
    torch.manual_seed(0)
    model = ENCODERS[name]().float().eval()
    if name != "mpnet":
        model.set_attn_implementation("eager")
    return model


def inputs_of(name: str, padding: str = "none", length: int = T) -> dict[str, Any]:
    """Of two sequences."""
    torch.manual_seed(1)
    decoder = {"decoder_input_ids": torch.randint(3, 61, (2, 9))} if name in ("t5", "whisper", "bart", "marian") else {}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 40), **decoder}
    if name in WITHOUT_TOKENS:
        return {"input_values": torch.randn(2, 400)} if name in ("wav2vec2", "hubert") else {"pixel_values": torch.randn(2, 3, 24, 24)}
    mask = torch.ones(2, length, dtype=torch.long)
    if padding == "right":
        mask[1, 7:] = 0
    elif padding == "left":
        mask[0, :4] = 0
    elif padding == "holes":
        mask[0, [2, 3, 6]] = 0
    inputs = {"input_ids": torch.randint(3, 61, (2, length)), **decoder}
    return inputs if padding == "none" else inputs | {"attention_mask": mask}


def term_sum(x: Any) -> float:
    """The largest column sum of absolute values: x [..., features]."""
    return float(x.abs().flatten(0, -2).sum(0).max())


def weight_sum(layer: Any, dout: Any, x: Any) -> float:
    """What a weight's gradient adds up, every term made positive: the largest of sum_t |dout[t, n] x[t, m]|, in a layer norm of
    sum_t |dout[t, n] x'[t, n]|, x' the norm without its weight."""
    if dout is None:
        return 0.0
    if isinstance(layer, torch.nn.LayerNorm):
        return term_sum(dout * torch.nn.functional.layer_norm(x, layer.normalized_shape, eps=layer.eps))
    return float((dout.abs().flatten(0, -2).T @ x.abs().flatten(0, -2)).max())


def run(name: str, dtype: Any, implementation: str, inputs: dict[str, Any], gradients: bool = False, draw: int = 0) -> dict[str, np.ndarray]:
    model = choose(model_of(name, dtype), implementation)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    arrived: dict[str, float] = {}  # at a layer's bias: the sum of all terms made positive (softmax makes key biases' sum 0)
    came: dict[str, Any] = {}  # what a layer was given: its weight's gradient is a sum over tokens too
    for key, layer in model.named_modules():
        if not gradients or getattr(layer, "bias", None) is None:
            continue
        layer.register_full_backward_hook(
            lambda _, __, dout, key=key: arrived.update({f"A d {key}.bias": 0.0 if dout[0] is None else term_sum(dout[0])})
        )
        if isinstance(layer, (torch.nn.Linear, tf.pytorch_utils.Conv1D, torch.nn.LayerNorm)):
            layer.register_forward_pre_hook(lambda _, x, key=key: came.update({key: x[0].detach()}))
            layer.register_full_backward_hook(
                lambda layer, __, dout, key=key: arrived.update({f"A d {key}.weight": weight_sum(layer, dout[0], came[key])})
            )
    with everything_in(dtype) if dtype == torch.float64 else contextlib.nullcontext(), torch.set_grad_enabled(gradients):
        out = (model(**inputs, use_cache=False) if hasattr(model, "generate") and model.can_generate() else model(**inputs))[0]
        results = {"out": out.detach().double().numpy()}
        if gradients:
            torch.manual_seed(2 + draw)
            dout = torch.randn(out.shape, dtype=torch.float64).to(dtype)
            if "attention_mask" in inputs and "decoder_input_ids" not in inputs:  # as a loss does: what stands at padding does not count
                dout = dout * inputs["attention_mask"][:, :, None]
            (out * dout).sum().backward()
            results |= {f"d {key}": p.grad.double().numpy() for key, p in model.named_parameters() if p.grad is not None}
            results |= {key: np.array(size) for key, size in arrived.items()}
    return results


def expect_equal(name: str, inputs: dict[str, Any], gradients: bool = False) -> None:
    """error(qkv, float32) <= 2 error(transformers, float32) + 4 eps A, 3 for gradients; A: the largest sum of the terms made positive, where
    known. transformers' error: the larger of eager attention's and, where the model means the same with it, SDPA's. Its rounding of one
    number may be lucky: a gradient beyond the bound is judged by the mean errors of four draws of dout."""
    off = _beyond_bounds(name, inputs, gradients, 1)
    if off and gradients:
        off = _beyond_bounds(name, inputs, gradients, 4)
    assert not off, f"{name}: {off}"


def _beyond_bounds(name: str, inputs: dict[str, Any], gradients: bool, draws: int) -> list[str]:
    kinds = (("float64", "eager"), ("float32", "qkv"), ("float32", "eager"), *([("float32", "sdpa")] if name in WITH_SDPA else []))
    runs = [[run(name, getattr(torch, dtype), which, inputs, gradients, draw) for dtype, which in kinds] for draw in range(draws)]
    found = []
    for key in [key for key in runs[0][1] if not key.startswith("A d ")]:
        assert all(one.keys() == few[0].keys() and np.isfinite(one[key]).all() for few in runs for one in few[:2])
        errors = np.mean([[float(abs(one[key] - few[0][key]).max()) for one in few[1:]] for few in runs], axis=0)
        size = np.mean([max(float(abs(few[0][key]).max()), float(few[0].get(f"A {key}", 0))) for few in runs])
        bound = (3 if key.startswith("d ") else 2) * errors[1:].max() + 4 * np.finfo(np.float32).eps * size
        if errors[0] > bound:
            found.append(f"{key}: error {errors[0]:.3g} > bound {bound:.3g} (transformers {errors[1:].max():.3g}), {draws} draws")
    return found
