"""qkv for Hugging Face models on the CPU: an attention implementation, and captures of every head without S x S memory.

    import qkv.transformers
    qkv.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="qkv")    # or model.set_attn_implementation("qkv")
    captures = qkv.transformers.capture_attention(model, inputs)
    print(captures.table())
    qkv.transformers.register(linear=True)     # the linear-attention layers of hybrid models too, until unregister()

Forward, backward and generation of every model whose attention goes through transformers' AttentionInterface: grouped heads,
causal and sliding windows, padding on either side, soft caps, sinks, additive position biases, dropout. Not supported: devices
other than the CPU; models with an attention of their own. output_attentions=True costs B x H x T x T numbers a layer, as eager's does;
capture_attention shows the same without them.
"""

from .._needs import need

need("qkv.transformers", "transformers", "torch")

from .._explore.layer import Layer as LayerCapture
from ._attention import attention_forward, register, unregister
from ._cache import growing_cache
from ._capture import AttentionCapture, capture_attention
from ._masks import ModelMask, model_mask
from ._optimize import optimize, optimized, restore
from ._unpad import pad, unpad, unpadded

__all__ = [
    "AttentionCapture",
    "LayerCapture",
    "ModelMask",
    "attention_forward",
    "capture_attention",
    "growing_cache",
    "model_mask",
    "optimize",
    "optimized",
    "pad",
    "register",
    "restore",
    "unpad",
    "unpadded",
    "unregister",
]
