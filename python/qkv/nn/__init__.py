"""Layers, forward and backward, float32 (a linear map in bfloat16 too), on NumPy, PyTorch (CPU) and JAX arrays.

    mha = qkv.nn.MultiHeadAttention(embed_dim=64, num_heads=4)
    mha.load_state_dict(torch_module.state_dict())         # PyTorch's names and layouts
    saved = qkv.nn.Saved()
    y, weights = mha(x, causal=True, weights="all", saved=saved)
    dx = mha.backward(dy, saved)                           # mha.grads: by the same names

No tape: who calls forward calls backward. This is not a general framework for networks.
"""

from ._attention import Layer, load_layer
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
from ._linear import Linear
from ._module import Module, Saved

__all__ = [
    "AveragePooling",
    "FixedWeights",
    "GroupedQueryAttention",
    "Layer",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Saved",
    "SelfAttention",
    "SelfAttentionV1",
    "SelfAttentionV2",
    "SelfAttentionV3",
    "SelfAttentionV4",
    "SingleHeadAttention",
    "load_layer",
]
