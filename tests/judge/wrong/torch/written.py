"""Wrong code whose sizes stand outside of it, or whose fault shows in what it says, or in a second call."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

n_embd = 32


class Head(nn.Module):
    """Of a width of its own; its scale is that of the whole embedding."""

    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5
        hidden = torch.ones_like(scores).triu(1).bool()
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x)


@dataclass
class Config:
    n_embd: int = 8
    n_head: int = 1


class CausalAttention(nn.Module):
    """Of the configuration only forward reads the number of heads."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, self.qkv, self.out = config, *(nn.Linear(config.n_embd, n * config.n_embd) for n in (3, 1))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.config.n_head, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


class PaddedAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads, self.qkv, self.out = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def attended(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape))

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: (B, L) bool, True at padding positions, which must be ignored"""
        return self.attended(x, None if key_padding_mask is None else key_padding_mask[:, None, None, :])


class MaskOfTheFirstLength(PaddedAttention):
    """Causal. What is longer than the first input sees its future."""

    mask = None

    def forward(self, x):
        length = x.size(1)
        self.mask = torch.ones(length, length, dtype=torch.bool).tril() if self.mask is None else self.mask
        seen = F.pad(self.mask, (0, max(0, length - len(self.mask))) * 2, value=True)[:length, :length]
        return self.attended(x, seen)


def attention(query, key, value, mask=None):
    """mask: float, 1 = visible, 0 = hidden"""
    s = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        mask[mask == 0] = float("-inf")
        mask[mask == 1] = 0
        s = s + mask
    return torch.softmax(s, dim=-1) @ value


EXPECTED = {"Head": "scale-sqrt-embed", "CausalAttention": "merge-without-transpose", "PaddedAttention": "mask-polarity"}
EXPECTED |= {"MaskOfTheFirstLength": "state-left-behind", "attention": "inputs-changed"}
