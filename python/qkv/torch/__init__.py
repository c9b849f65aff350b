"""qkv for PyTorch, on the CPU: attention that is differentiable, compiles, and can replace PyTorch's own.

    from qkv.torch import scaled_dot_product_attention, MultiheadAttention, flex_attention
    with qkv.torch.capture() as captures: model(x)  # every head of any model; captures.save("page.html")
    qkv.torch.enable()         # torch.nn.functional.scaled_dot_product_attention is qkv's on the CPU, until disable()

There are no kernels for other devices (enable() leaves those to PyTorch).
"""

from .._needs import need

need("qkv.torch", "torch")

import torch

if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    raise ImportError(f"qkv.torch needs PyTorch 2.10 or newer: got {torch.__version__}", name="torch")

from . import _capture, flex, latent, linear, multihead_attention, parallel, patch, scan, sdpa, varlen
from ._capture import *
from .flex import *
from .latent import *
from .linear import *
from .multihead_attention import *
from .parallel import *
from .patch import *
from .scan import *
from .sdpa import *
from .varlen import *

__all__ = [
    *_capture.__all__, *flex.__all__, *latent.__all__, *linear.__all__, *multihead_attention.__all__,
    *parallel.__all__, *patch.__all__, *scan.__all__, *sdpa.__all__, *varlen.__all__,
]  # fmt: skip
