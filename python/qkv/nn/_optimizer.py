"""Adam and AdamW over the parameters of modules, in PyTorch's order of operations; clipping by the global norm."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _nn
from ._module import Module

__all__ = ["Adam", "clip_grad_norm"]


def _cores(modules: Module | Iterable[Module]) -> list[object]:
    return [m._core for m in ([modules] if isinstance(modules, Module) else modules)]


class Adam:
    """values -= lr / (1 - beta1^t) * mean / (sqrt(square) / sqrt(1 - beta2^t) + eps), over one or several modules.

    weight_decay > 0: AdamW, decoupled: values *= 1 - lr * weight_decay before the step. Kingma 2014 (arXiv:1412.6980),
    Loshchilov 2017 (1711.05101). Load parameters before you make the optimizer.
    """

    def __init__(
        self,
        modules: Module | Iterable[Module],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.lr = lr
        self._modules = _cores(modules)
        self._core = _nn.Adam(self._modules, *betas, eps, weight_decay)

    def step(self) -> None:
        """One step along the gradients that the modules hold."""
        self._core.step(self._modules, self.lr)

    def zero_grad(self) -> None:
        """Every gradient of every module becomes 0."""
        for module in self._modules:
            module.zero_gradients()  # type: ignore[attr-defined]

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._core.steps


def clip_grad_norm(modules: Module | Iterable[Module], max_norm: float) -> float:
    """Scales all gradients by max_norm / (norm + 1e-6) where their norm exceeds max_norm; returns the norm before."""
    return _nn.clip_global_norm(_cores(modules), max_norm)
