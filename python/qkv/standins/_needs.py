"""What stand-ins share: what they refuse (tensors of other devices or types, arguments that are not computed), and functions by name."""

from typing import Any

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


def bound(package: str, function: str, **arguments: Any) -> None:
    """Raises NotImplementedError for the first argument that is given and not computed."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            shown = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise NotImplementedError(f"[{package} of qkv.standins] {function}: {name} is not computed on the CPU: got {name}={shown}")


def named(*functions: Any) -> dict[str, Any]:
    """Functions and classes by their names, as a module holds them."""
    return {one.__name__: one for one in functions}
