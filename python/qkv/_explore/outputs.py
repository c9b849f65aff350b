"""The output projections of a running model, found by what they read: the module whose input is attention's result, in the same memory. So no
architecture needs to be known by name, and a model that changes the result first (a gate) is refused rather than misread.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Site:
    """Where the heads of one call of attention meet W_o. use: how many times the module ran before in a forward; layer: the name of the
    block that holds it, a member of a list of blocks."""

    module: nn.Module
    use: int
    heads: int
    width: int
    layer: str


def is_plain(module: Any) -> bool:
    """Whether it is nn.Linear, or what qkv.transformers.optimize makes of one, and not a class that keeps something else as its weight."""
    return isinstance(module, nn.Linear) and (type(module) is nn.Linear or type(module).__module__ == "qkv.transformers._optimize")


def weight_of(module: nn.Module, inputs: int) -> Tensor:
    """The weight of a module that computes x W + b, [inputs, outputs]."""
    weight = getattr(module, "weight", None)
    if is_plain(module):
        return weight.detach().T
    if type(module).__name__ == "Conv1D":
        return weight.detach()
    eye = torch.eye(inputs, dtype=next(module.parameters()).dtype)  # adapters, quantized weights: by what the module does
    with torch.no_grad():
        return module(eye) - module(torch.zeros_like(eye))


class Outputs:
    """Hears a model while it runs. found(site, call): a call's projection reads what attention gave; call: what `attended` was told."""

    def __init__(self, model: nn.Module, found: Callable[[Site, Any], None]) -> None:
        self.model, self.found = model, found
        self.names = {id(module): name for name, module in model.named_modules()}
        self.sites: dict[int, Site] = {}  #: by the number of the call in a forward
        self.is_normed = False  #: what attention adds goes through a norm first
        self._call: tuple[int, Tensor, Any] | None = None
        self._added: Tensor | None = None
        self._uses: dict[int, int] = {}

    def attended(self, index: int, out: Tensor, call: Any) -> None:
        """Attention's result of a call, [B, H, T, D]; it is kept until its reader comes, so that its memory is nobody else's."""
        self._call = (index, out, call)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        hooks = [self.model.register_forward_pre_hook(lambda *_: self._uses.clear())]
        for module in self.model.modules():
            if isinstance(module, nn.Embedding) or module is self.model:
                continue
            weight = getattr(module, "weight", None)
            if "Norm" in type(module).__name__:
                hooks.append(module.register_forward_pre_hook(self._norm))
            elif isinstance(weight, Tensor) and weight.ndim == 2:
                hooks += [module.register_forward_pre_hook(self._read), module.register_forward_hook(self._ran)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._call = self._added = None

    def _read(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._call is None or not args or not isinstance(args[0], Tensor):
            return
        index, out, call = self._call
        _, heads, _, width = out.shape
        if args[0].data_ptr() != out.data_ptr() or args[0].shape[-1] != heads * width or args[0].numel() != out.numel():
            return
        name, self._call = self.names.get(id(module), ""), None
        parts = name.split(".")
        number = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts))
        self.sites[index] = Site(module, self._uses.get(id(module), 0), heads, width, ".".join(parts[: number + 1]))
        self.found(self.sites[index], call)

    def _ran(self, module: nn.Module, _: Any, added: Any) -> None:
        self._uses[id(module)] = self._uses.get(id(module), 0) + 1
        self._added = added if any(site.module is module for site in self.sites.values()) else self._added

    def _norm(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        is_added = self._added is not None and bool(args) and args[0].data_ptr() == self._added.data_ptr()
        self.is_normed = self.is_normed or is_added
