"""What stand-ins share: what they refuse (tensors of other devices or types, arguments that are not computed), and functions by name."""

from typing import Any

import torch
from torch import Tensor


def require_cpu(package: str, **tensors: Tensor | None) -> None:
    """Raises NotImplementedError for the first tensor that does not lie in the CPU's memory."""
    for name, x in tensors.items():
        if isinstance(x, Tensor) and not x.is_cpu:
            raise NotImplementedError(
                f"[{package} of qkv.standins] computes on the CPU: got {name} on {x.device}; install the real {package}, or pass {name}.cpu()"
            )


def require_real(package: str, function: str, **tensors: Tensor | None) -> None:
    """Raises TypeError for the first tensor that holds no floating-point numbers."""
    for name, x in tensors.items():
        if x is not None and not x.is_floating_point():
            raise TypeError(f"[{package} of qkv.standins] {function}: {name} must hold real numbers: got {x.dtype}")


def require_integers(package: str, function: str, **tensors: Any) -> None:
    """Raises TypeError for the first tensor that holds no integers, which would be cut; numbers pass."""
    for name, x in tensors.items():
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool):
            raise TypeError(f"[{package} of qkv.standins] {function}: {name} must hold integers: got {x.dtype}")


def require_within(package: str, function: str, count: int, **tensors: Tensor) -> None:
    """Raises ValueError for numbers that name none of `count` rows; PyTorch takes those below 0 from the end."""
    for name, x in tensors.items():
        if bool(((x < 0) | (x >= count)).any()):
            raise ValueError(f"[{package} of qkv.standins] {function}: {name} must name one of {count} rows: got {x.unique().tolist()}")


def bound(package: str, function: str, **arguments: Any) -> None:
    """Raises NotImplementedError for the first argument that is given and not computed."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            shown = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise NotImplementedError(f"[{package} of qkv.standins] {function}: {name} is not computed on the CPU: got {name}={shown}")


def named(*functions: Any) -> dict[str, Any]:
    """Functions and classes by their names, as a module holds them."""
    return {one.__name__: one for one in functions}
