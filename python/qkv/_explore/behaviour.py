"""Heads found by what they do on random tokens that repeat, so that nothing of a language helps: previous, duplicate and induction heads (Olsson
et al. 2022, arXiv:2209.11895).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ..capture import Capture

LENGTH, TEXTS, SEED = 64, 4, 0  # tokens that repeat, sequences, of the random numbers


def on_random_tokens(model: nn.Module, tokenizer: Any = None) -> dict[str, dict[int, np.ndarray]]:
    """Mean weights on the token before ("random previous"), and in the second half on the same token of the first ("random duplicate") and on
    the one behind it ("random induction"): by number of docs/explorer-file.md and by call, one of each head."""
    from ..transformers import capture_attention

    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("[behaviour] random tokens that repeat are for models that read one text: an encoder or a decoder")
    config = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    special = set(getattr(tokenizer, "all_special_ids", ())) | {getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    first = getattr(tokenizer, "cls_token_id", None) or getattr(config, "bos_token_id", None) or 0
    n = min(LENGTH, (getattr(config, "max_position_embeddings", None) or 1 << 20) // 2 - 1)
    known = torch.tensor([number for number in range(config.vocab_size) if number not in special])
    words = known[torch.randint(len(known), (TEXTS, n), generator=torch.Generator().manual_seed(SEED))]
    ids = torch.cat([torch.full((TEXTS, 1), int(first)), words, words], 1)
    size = ids.shape[1]
    maps = capture_attention(model, ids, capture=Capture(map=(size, size)), writes=False, progress=False)
    made: dict[str, dict[int, np.ndarray]] = {"random previous": {}, "random duplicate": {}, "random induction": {}}
    for layer in maps.layers:
        weights = layer.captured.map
        if layer.cross or weights is None or weights.shape[-2:] != (size, size):
            continue
        for name, back in zip(made, (1, n, n - 1)):
            along = np.diagonal(weights, -back, -2, -1)  # of the others the queries of the second half
            made[name][layer.index] = (along if back == 1 else along[..., -n:]).mean((0, -1))
    return made
