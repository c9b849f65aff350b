"""output_attentions=True: weights beside the output, of every layer that is asked, as eager returns them.

transformers asks in two ways: an argument that models pass down to their layers, and a collector that takes what the layers return.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.utils import output_capturing

from .. import _attention as functional
from ..torch._calls import Rules
from ..torch._graph import attend_with_weights


def weights_wanted(options: dict[str, Any]) -> bool:
    """Whether the model that is running was asked for attentions."""
    if options.get("output_attentions"):
        return True
    collected = output_capturing._active_collector.get()
    return bool(collected) and any(name.endswith("attentions") for name in collected)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """out and the weights that multiplied v (after dropout), both [B, H, Tq, ...] of q's type, with gradients through both."""
    tensors = (q, k, v, bias, sinks)
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)):
        out, weights = functional.attention(q, k, v, bias=bias, sinks=sinks, weights="applied", **options)
        return out, weights.to(q.dtype)
    if sinks is not None:
        raise NotImplementedError(
            "[qkv.transformers] output_attentions with sinks (s_aux) is computed without gradients: got tensors that require them; "
            "torch.no_grad(), or train without output_attentions"
        )
    rest = dict(options)
    keep = rest.pop("keep", None)
    rules = Rules(**{name: value for name, value in rest.items() if value is not None})
    out, weights, *_ = attend_with_weights.eager(q, k, v, bias, keep, rules)
    return out, weights.to(q.dtype)
