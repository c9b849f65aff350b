"""Layers, forward and backward, float32 (a linear map in bfloat16 too), on NumPy, PyTorch (CPU) and JAX arrays.

    mha = qkv.nn.MultiHeadAttention(embed_dim=64, num_heads=4)
    mha.load_state_dict(torch_module.state_dict())         # PyTorch's names and layouts
    saved = qkv.nn.Saved()
    y, weights = mha(x, causal=True, weights="all", saved=saved)
    dx = mha.backward(dy, saved)                           # mha.grads: by the same names

No tape: who calls forward calls backward. This is not a general framework for networks.
"""

from . import _attention, _forms, _linear, _module
from ._attention import *
from ._forms import *
from ._linear import *
from ._module import *

__all__ = [*_attention.__all__, *_forms.__all__, *_linear.__all__, *_module.__all__]
