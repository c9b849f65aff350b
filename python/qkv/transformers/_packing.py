"""Tokens of a padded batch in one row: where they were, and attention of each text alone. What runs in this context."""

import functools
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from ..torch.varlen import varlen_attn


class Packing:
    """Which places of a batch [B, T] hold tokens: pack [B|1, T, ...] -> [1, tokens, ...], pad back, the others zeros."""

    def __init__(self, mask: Tensor) -> None:
        kept = mask.bool()
        self.shape = tuple(kept.shape)
        self.index = kept.flatten().nonzero().flatten()
        self.lengths = kept.sum(1).tolist()
        self.longest = max(self.lengths, default=0)
        self.cu = nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))

    @functools.cached_property
    def contiguous(self) -> bool:
        """Whether the tokens of every row are neighbours."""
        rows = self.index.split(self.lengths)
        return all(len(row) == 0 or int(row[-1] - row[0]) == len(row) - 1 for row in rows)

    def need_neighbours(self, what: str) -> None:
        """Raises NotImplementedError where tokens of a text are further apart than in the row of all."""
        if not self.contiguous:
            raise NotImplementedError(
                f"[qkv.transformers] unpad() computes {what} of texts whose tokens are neighbours: got an attention_mask with gaps"
            )

    def pack(self, x: Tensor) -> Tensor:
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.index][None]

    def pad(self, x: Tensor) -> Tensor:
        rows = x.new_zeros((self.shape[0] * self.shape[1], *x.shape[2:]))
        return rows.index_copy(0, self.index, x[0]).unflatten(0, self.shape)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, window: int | None, **options: Any) -> Tensor:
        """q, k, v [1, H, tokens, D] -> [1, tokens, H, Dv]; window: how many tokens on each side of its own one may attend."""
        if window is not None:
            self.need_neighbours("windows")
        sides = (-1, -1) if window is None else (window, window)
        parts = (x[0].transpose(0, 1) for x in (q, k, v))
        return varlen_attn(*parts, self.cu, self.cu, self.longest, self.longest, window_size=sides, enable_gqa=True, **options)[None]


#: Of the model that runs in this context; None outside of one that unpad() changed.
running: ContextVar[Packing | None] = ContextVar("running", default=None)
#: What observes the calls of attention in this context (_explore/collector.py).
observer: ContextVar[Any] = ContextVar("observer", default=None)
