"""A look at every layer and head of a Hugging Face model while it runs once. Not: the attention itself, pictures (qkv.plot)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import _html
from ..capture import Capture, Captured
from ..plotting import plot
from ._attention import NAME, register
from ._looking import Collector, LayerCapture, looking

#: Columns of a table: title, field of Captured.
_COLUMNS = (
    ("entropy_nats", "entropy"),
    ("max", "max_weight"),
    ("self", "self_"),
    ("previous", "previous"),
    ("first", "first"),
    ("distance", "distance"),
)


def _wide(title: str) -> int:
    return max(10, len(title) + 2)


@dataclass(frozen=True)
class AttentionCapture:
    """Everything that capture_attention saw."""

    layers: list[LayerCapture]
    outputs: Any = field(repr=False)  #: what the model returned
    tokens: np.ndarray | None = field(repr=False)  #: bool [B, T], False = padding; None: not known

    def __getitem__(self, layer: int) -> Captured:
        """What was seen of the layer with that index."""
        for one in self.layers:
            if one.index == layer:
                return one.captured
        raise IndexError(f"[capture_attention] layer {layer} was not looked at: there are {[one.index for one in self.layers]}")

    def __len__(self) -> int:
        return len(self.layers)

    def statistics(self) -> list[dict[str, Any]]:
        """One row per layer and head: means over the queries that are tokens, of all sequences.

        entropy_nats, max (largest weight), self, previous, first (weight on the query's own key, the one before it, key 0),
        distance (in tokens).
        """
        rows = []
        for layer in self.layers:
            if layer.captured.entropy is None:
                continue
            batch = layer.captured.entropy.shape[0]
            live = np.ones((batch, layer.q_len), bool)
            if self.tokens is not None and self.tokens.shape == live.shape:
                live = self.tokens
            for place, head in enumerate(layer.heads):
                means = {title: float(getattr(layer.captured, name)[:, place][live].mean()) for title, name in _COLUMNS}
                rows.append({"layer": layer.index, "head": head, **means})
        return rows

    def table(self) -> str:
        """The statistics as text, one line per layer and head."""
        rows = self.statistics()
        if not rows:
            return "no statistics: capture_attention(..., capture=qkv.Capture(statistics=True)) asks for them"
        lines = ["layer  head" + "".join(f"{title:>{_wide(title)}}" for title, _ in _COLUMNS)]
        lines += [f"{r['layer']:5d} {r['head']:5d}" + "".join(f"{r[title]:{_wide(title)}.3f}" for title, _ in _COLUMNS) for r in rows]
        return "\n".join(lines)

    def map(self, layer: int, head: int, *, sequence: int = 0) -> np.ndarray:
        """Weights of one head, [rows, columns]: every weight where the map is as large as Tq x Tk, otherwise sums over blocks
        of keys, averaged over blocks of queries (each row adds up to 1).
        """
        found = next((one for one in self.layers if one.index == layer), None)
        if found is None or found.captured.map is None:
            raise ValueError(f"[capture_attention] there is no map of layer {layer}: pass a Capture with map=(rows, columns)")
        if head not in found.heads:
            raise ValueError(f"[capture_attention] head {head} was not looked at: there are {list(found.heads)}")
        sums = found.captured.map[sequence, found.heads.index(head)]
        queries = np.bincount(np.arange(found.q_len) * sums.shape[0] // found.q_len, minlength=sums.shape[0])
        return sums / queries[:, None]

    def plot(
        self, layer: int = 0, head: int | None = None, *, tokens: Sequence[str] | None = None, sequence: int = 0, **options: Any
    ) -> Any:
        """qkv.plot of one head's map, or (head None) of all of a layer; tokens label it where there is one per row and
        column.
        options: as in qkv.plot, such as path="map.png".
        """
        found = next((one for one in self.layers if one.index == layer), None)
        heads = [head] if head is not None else [0] if found is None else list(found.heads)
        weights = np.stack([self.map(layer, one, sequence=sequence) for one in heads])
        if tokens is not None and not len(tokens) == weights.shape[1] == weights.shape[2]:
            tokens = None
        return plot(weights, tokens, **options)

    def _repr_html_(self) -> str:
        rows = self.statistics()
        if not rows:
            return f"<p>{_html.text(self.table())}</p>"
        return _html.table(list(rows[0]), [list(row.values()) for row in rows])

    def __repr__(self) -> str:
        return f"AttentionCapture({len(self.layers)} layers)\n{self.table()}"


@contextlib.contextmanager
def _running_qkv(model: nn.Module) -> Iterator[None]:
    """The model in eval mode with attn_implementation="qkv"; both are restored afterwards."""
    register()
    configs = {id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        for module in training:
            module.training = True


def capture_attention(
    model: nn.Module,
    inputs: Any,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] = (),
    capture: Capture | None = None,
) -> AttentionCapture:
    """Runs `model` once (eval mode, no gradients) and looks at its attention. Memory: never of the order Tq x Tk.

    Args:
        model: a Hugging Face model on the CPU, with any attn_implementation; its state is restored afterwards.
        inputs: its keyword arguments, as a tokenizer returns them ({"input_ids": ..., "attention_mask": ...}), or just
            input_ids.
        layers: which calls of attention within one forward, by number; in most models these are the layers. None: all.
        heads: query heads; none: all.
        capture: what to look at (qkv.Capture, with its own heads); None: statistics, and maps of at most 64 x 64.

    Raises:
        ValueError: if the model's attention does not go through transformers' AttentionInterface, or a layer does not exist.
    """
    if capture is not None and heads:
        raise ValueError("[capture_attention] heads go into the Capture where there is one: qkv.Capture(heads=...)")
    if isinstance(inputs, Tensor):
        inputs = {"input_ids": inputs}
    collector = Collector({id(m): name for name, m in model.named_modules()}, layers, heads, capture)
    with _running_qkv(model), torch.no_grad(), looking(collector):
        outputs = model(**inputs)
    if collector.calls == 0:
        raise ValueError(
            f"[capture_attention] {type(model).__name__} has an attention of its own, which transformers' AttentionInterface "
            "does not reach"
        )
    if layers is not None and any(layer not in range(collector.calls) for layer in layers):
        raise ValueError(f"[capture_attention] layers must lie in 0..{collector.calls - 1}: got {list(layers)}")
    mask = inputs.get("attention_mask")
    tokens = mask.to(torch.bool).cpu().numpy() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    return AttentionCapture(collector.seen, outputs, tokens)
