"""Layers, forward and backward, float32 (a linear map in bfloat16 too), on NumPy, PyTorch (CPU) and JAX arrays.

    mha = qkv.nn.MultiHeadAttention(embed_dim=64, num_heads=4)
    mha.load_state_dict(torch_module.state_dict())         # PyTorch's names and layouts
    saved = qkv.nn.Saved()
    y, weights = mha(x, causal=True, weights="all", saved=saved)
    dx = mha.backward(dy, saved)                           # mha.grads: by the same names

No tape: who calls forward calls backward. This is not a general framework for networks.
"""

from ._attention import Layer, load_layer
from ._bf16 import linear, linear_backward
from ._forms import (
    AveragePooling,
    FixedWeights,
    GroupedQueryAttention,
    MultiHeadAttention,
    SelfAttention,
    SelfAttentionV1,
    SelfAttentionV2,
    SelfAttentionV3,
    SelfAttentionV4,
    SingleHeadAttention,
)
from ._latent import MultiHeadLatentAttention
from ._module import Module, Saved
from ._optimizer import Adam, clip_grad_norm
from ._rows import MLP, Embedding, LayerNorm, Linear, cross_entropy

__all__ = [
    "MLP",
    "Adam",
    "AveragePooling",
    "Embedding",
    "FixedWeights",
    "GroupedQueryAttention",
    "Layer",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "Saved",
    "SelfAttention",
    "SelfAttentionV1",
    "SelfAttentionV2",
    "SelfAttentionV3",
    "SelfAttentionV4",
    "SingleHeadAttention",
    "clip_grad_norm",
    "cross_entropy",
    "linear",
    "linear_backward",
    "load_layer",
]
