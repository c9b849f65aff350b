"""Small models of real architectures, with random weights from transformers' configurations, and what their eager attention gives. Not:
downloaded weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as tf
from support_torch import exact_softmax

tf.logging.set_verbosity_error()

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SIZES, "vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
VISION = {**SIZES, "image_size": 24, "patch_size": 8}
T, PATCHES = 23, 9

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: tf.BertModel(tf.BertConfig(**SIZES, vocab_size=61, pad_token_id=0)),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=64, bos_token_id=1, eos_token_id=2)
    ),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**GROUPED)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GROUPED, sliding_window=6, attn_logit_softcapping=1.0)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**GROUPED, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt-oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**GROUPED, sliding_window=6, num_local_experts=2, num_experts_per_tok=1)
    ),
    "vit": lambda: tf.ViTModel(tf.ViTConfig(**VISION), add_pooling_layer=False),
    "dinov2": lambda: tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**VISION, num_register_tokens=4)),
    "t5": lambda: tf.T5Model(
        tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61, decoder_start_token_id=0)
    ),
    "whisper": lambda: tf.WhisperModel(
        tf.WhisperConfig(
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, vocab_size=61, num_mel_bins=8, max_source_positions=20, max_target_positions=32, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    ),
}  # fmt: skip
IMAGES = {"vit": 1, "dinov2": 5}  # tokens before the patches


def model_of(name: str, dtype: Any = torch.float32) -> Any:
    """Random weights, large enough that attention is far from uniform; the same numbers in every type."""
    torch.manual_seed(0)
    model = MODELS[name]().float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.ndim > 1 else 0.2) + (parameter.ndim == 1) * 1.0)
            if name == "t5" and key.endswith(".q.weight"):
                parameter *= 8**-0.5  # the scale of scores, which T5 keeps in this weight
    if name == "gpt-oss":
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype)


def inputs_of(name: str, *, padded: bool = False) -> dict[str, Any]:
    """Of two sequences; padded: the first on the left, where the model reads text."""
    torch.manual_seed(1)
    if name in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 24, 24)}
    decoder = {"decoder_input_ids": torch.randint(3, 61, (2, 9))}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 40), **decoder}
    inputs: dict[str, Any] = {"input_ids": torch.randint(3, 61, (2, T))}
    if padded:
        inputs["attention_mask"] = torch.ones(2, T, dtype=torch.long)
        inputs["attention_mask"][0, :4] = 0
    return inputs | (decoder if name == "t5" else {})


def eager_weights(name: str, inputs: dict[str, Any], dtype: Any = torch.float64) -> dict[str, list[np.ndarray]]:
    """[B, H, Tq, Tk] of every layer, by stack: "self" (the only one, or the encoder's), "decoder", "cross"."""
    model = model_of(name, dtype)
    model.set_attn_implementation("eager")
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    with torch.no_grad(), exact_softmax() if dtype == torch.float64 else contextlib.nullcontext():
        out = model(**inputs, output_attentions=True)
    parts = {"self": "attentions"}
    if name in ("t5", "whisper"):
        parts = {"self": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {part: [w.double().numpy() for w in getattr(out, attribute)] for part, attribute in parts.items()}
