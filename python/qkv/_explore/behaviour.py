"""Heads found by what they do on random tokens that repeat, so that nothing of a language helps: previous, duplicate and induction heads (Olsson
et al. 2022, arXiv:2209.11895).
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from ..capture import Capture

LENGTH, TEXTS, SEED = 64, 4, 0  # tokens that repeat, sequences, of the random numbers


def _first_token(model: nn.Module, tokenizer: Any) -> int:
    """What a text of this model begins with."""
    config = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    return int(getattr(tokenizer, "cls_token_id", None) or getattr(config, "bos_token_id", None) or 0)


def on_random_tokens(model: nn.Module, tokenizer: Any = None) -> dict[str, dict[int, np.ndarray]]:
    """Mean weights on the token before ("random previous"), and in the second half on the same token of the first ("random duplicate") and on
    the one behind it ("random induction"): by number of docs/explorer-file.md and by call, one of each head."""
    from ..transformers import capture_attention

    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("[behaviour] random tokens that repeat are for models that read one text: an encoder or a decoder")
    config = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    special = set(getattr(tokenizer, "all_special_ids", ())) | {getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    n = min(LENGTH, (getattr(config, "max_position_embeddings", None) or 1 << 20) // 2 - 1)
    known = torch.tensor([number for number in range(config.vocab_size) if number not in special])
    words = known[torch.randint(len(known), (TEXTS, n), generator=torch.Generator().manual_seed(SEED))]
    ids = torch.cat([torch.full((TEXTS, 1), _first_token(model, tokenizer)), words, words], 1)
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


#: Words that have a next one; the last of a line has none, but for days and months.
_ORDERS = (
    ("one two three four five six seven eight nine ten", False), ("1 2 3 4 5 6 7 8 9 10 11 12", False),
    ("first second third fourth fifth sixth seventh eighth ninth tenth", False),
    ("Monday Tuesday Wednesday Thursday Friday Saturday Sunday", True),
    ("January February March April May June July August September October November December", True),
)  # fmt: skip


def on_words_in_order(model: nn.Module, tokenizer: Any) -> dict[str, dict[int, np.ndarray]]:
    """"successor": the share of words for days, months and numbers whose next word is among the tokens that a head writes for them first
    (Gould et al. 2023, arXiv:2312.09230, who read the same circuit from W_V W_O alone). Empty where the tokenizer has fewer than eight such
    words as tokens of their own, and where what heads write is not known as tokens."""
    from ..transformers import capture_attention

    def token(word: str) -> int | None:
        ids = tokenizer.encode(" " + word, add_special_tokens=False)
        return int(ids[0]) if len(ids) == 1 else None

    rows = [([token(word) for word in text.split()], turns) for text, turns in _ORDERS]
    orders = [[(a, b) for a, b in zip(row, row[1:] + row[: 1 if turns else 0]) if a is not None and b is not None] for row, turns in rows]
    if sum(len(pairs) for pairs in orders) < 8:
        return {}
    first = _first_token(model, tokenizer)
    found: dict[int, list[np.ndarray]] = {}
    for pairs in filter(None, orders):
        ids = torch.tensor([[first, *(a for a, _ in pairs)]])
        for layer in capture_attention(model, ids, writes=True, progress=False).layers:
            if layer.writes is not None and layer.writes.ov is not None:
                n = min(len(pairs), layer.writes.ov.shape[2])
                wanted = np.array([b for _, b in pairs[-n:]])
                found.setdefault(layer.index, []).append((layer.writes.ov[0, :, -n:] == wanted[:, None]).any(-1))
    return {"successor": {n: np.concatenate(said, 1).mean(1) for n, said in found.items()}} if found else {}
