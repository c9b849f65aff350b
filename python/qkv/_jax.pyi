"""
Targets of XLA's foreign function interface: what qkv/jax.py registers.
"""

from typing_extensions import CapsuleType

import qkv._core

def forward_target() -> CapsuleType: ...
def backward_target() -> CapsuleType: ...
def keep_mask(arg: qkv._core.Mask, /) -> int: ...
