"""Weight times gradient of one token's logit, layer by layer: relevance (Chefer, Gur & Wolf 2021, arXiv:2103.15679, eq. 5, per head).
Not: relevance propagated through the layers, nor what is left of a head after another changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._explore.layer import Layer
from ..capture import Capture, Captured
from ._observers import observed

class Deriver:
    """Numbers the calls of one forward, and holds captures of their backward."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = {layer.index: layer for layer in layers}
        self.calls = 0
        self.captured: dict[int, Captured] = {}

    def number(self) -> int:
        """Of the call that runs forward."""
        self.calls += 1
        return self.calls - 1

    def capture(self, index: int) -> Capture | None:
        """What to capture in that call's backward: blocks as in its map."""
        layer = self.layers.get(index)
        if layer is None or layer.map is None:
            return None
        return Capture(heads=layer.heads, of="gradient", positive=True, map=layer.map.shape[2:])


def derived(
    model: nn.Module, inputs: Mapping[str, Any], layers: Sequence[Layer], target: int | str, position: int,
    name: Callable[[int], str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Fills the layers' relevance from one forward and backward. Returns what the page says of it."""
    deriver = Deriver(layers)
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in trained:
            parameter.requires_grad_(False)
        with torch.enable_grad(), observed("deriver", deriver):
            hook = _differentiable_embeddings(model)
            try:
                logits = getattr(model(**inputs, **({"use_cache": False} if "input_ids" in inputs else {})), "logits", None)
            finally:
                hook()
            if not isinstance(logits, Tensor) or not logits.requires_grad:
                raise ValueError(
                    f"[capture_attention] relevance needs logits that depend on the input: {type(model).__name__} gives none; load the "
                    "model with a head, such as AutoModelForCausalLM"
                )
            rows = logits if logits.ndim == 2 else logits[:, position]  # [B, classes]
            chosen = rows.argmax(-1) if target == "predicted" else torch.full((len(rows),), int(target))
            rows.gather(1, chosen[:, None]).sum().backward()
    finally:
        for parameter, wanted in trained:
            parameter.requires_grad_(wanted)
    for index, captured in deriver.captured.items():
        deriver.layers[index].relevance = captured.map
    words = [name(int(n)) if name else str(int(n)) for n in chosen]
    made: dict[str, Any] = {"target": words[0] if len(set(words)) == 1 else ", ".join(words)}
    if logits.ndim == 3:
        made["position"] = position % logits.shape[1]
    return made


def _differentiable_embeddings(model: nn.Module) -> Callable[[], None]:
    """Gradients are wanted of what the embedding gives, and so flow through every layer. Returns what undoes it."""
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    if embedding is None:
        raise ValueError(f"[capture_attention] relevance needs a model with input embeddings: got {type(model).__name__}")
    hook = embedding.register_forward_hook(lambda _, __, out: out.detach().requires_grad_(True))
    return hook.remove
