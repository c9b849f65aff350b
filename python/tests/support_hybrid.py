"""Small random models of transformers with linear attention or state spaces, beside attention or alone."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")
if not hasattr(tf, "Qwen3NextConfig") or not hasattr(tf, "OlmoHybridConfig"):
    pytest.skip("needs transformers with hybrid models", allow_module_level=True)
from torch import Tensor, nn

tf.logging.set_verbosity_error()

TOKENS = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | TOKENS
SIZES |= {"intermediate_size": 48, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
SIZES |= {"linear_value_head_dim": 16}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
MAMBA = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2}

# Kimi Delta Attention: a decay per channel.
KIMI = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
KIMI |= {"moe_intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "kv_lora_rank": 16, "v_head_dim": 16}
KIMI |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2} | TOKENS
LAYERS = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
KIMI_HEADS = {"linear_head_dim": 16, "linear_num_heads": 2}
BAILING = {"head_dim": 16, "layer_group_size": 4, "num_mtp_layers": 0}

# Mamba-2 beside attention.
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= TOKENS
BLOCKS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16}
GRANITE = {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 48, "num_local_experts": 0}
NEMOTRON = {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16}
ZAMBA = {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 2, "mamba_d_state": 16}
JAMBA = {"mamba_d_state": 16, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1}

MODELS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: tf.Qwen3NextForCausalLM(tf.Qwen3NextConfig(**SIZES, **MOE)),
    "qwen3_5": lambda: tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**SIZES)),
    "qwen3_5_moe": lambda: tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**SIZES, **MOE)),
    "olmo_hybrid": lambda: tf.OlmoHybridForCausalLM(tf.OlmoHybridConfig(**SIZES)),
    "kimi_linear": lambda: tf.KimiLinearForCausalLM(tf.KimiLinearConfig(**KIMI, **KIMI_HEADS, **LAYERS)),
    "bailing_hybrid": lambda: tf.BailingHybridForCausalLM(tf.BailingHybridConfig(**KIMI, **BAILING, **LAYERS)),
    "mamba": lambda: tf.MambaForCausalLM(tf.MambaConfig(hidden_size=32, state_size=16, num_hidden_layers=2, **TOKENS)),
    "mamba2": lambda: tf.Mamba2ForCausalLM(tf.Mamba2Config(**MAMBA, **TOKENS)),
    "bamba": lambda: tf.BambaForCausalLM(tf.BambaConfig(**SMALL, **BLOCKS, attn_layer_indices=[1])),
    "falcon_h1": lambda: tf.FalconH1ForCausalLM(tf.FalconH1Config(**SMALL, **BLOCKS, mamba_d_ssm=64)),
    "granitemoehybrid": lambda: tf.GraniteMoeHybridForCausalLM(tf.GraniteMoeHybridConfig(**SMALL, **BLOCKS, **GRANITE)),
    "nemotron_h": lambda: tf.NemotronHForCausalLM(tf.NemotronHConfig(**SMALL, **NEMOTRON)),
    "jamba": lambda: tf.JambaForCausalLM(tf.JambaConfig(**SMALL, **JAMBA)),
    "zamba2": lambda: tf.Zamba2ForCausalLM(tf.Zamba2Config(**SMALL, **ZAMBA)),
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Random weights, the same numbers in every type."""
    torch.manual_seed(0)
    model = MODELS[name]().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.bfloat16())
    if "num_experts" in model.config.to_dict():
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype)


def run(model: nn.Module, ids: Tensor, **more: Any) -> dict[str, Tensor]:
    """Logits and every parameter's gradient."""
    result = model(ids, labels=ids, use_cache=False, **more)
    result.loss.backward()
    return {"logits": result.logits, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}
