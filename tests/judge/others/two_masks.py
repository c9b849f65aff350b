import torch
from torch import nn


class Attention(nn.Module):
    """attn_mask: True where a pair may not attend. key_padding_mask: True where a key is padding."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None, key_padding_mask=None, need_weights=False):
        T, B, E = x.shape
        q, k, v = (one.reshape(T, B * self.num_heads, -1).transpose(0, 1) for one in self.qkv(x).chunk(3, -1))
        hidden = torch.zeros(B, self.num_heads, T, T, dtype=torch.bool)
        if attn_mask is not None:
            hidden = hidden | attn_mask
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None]
        scores = q @ k.mT / q.size(-1) ** 0.5
        weights = scores.masked_fill(hidden.reshape(-1, T, T), float("-inf")).softmax(-1)
        out = self.out((weights @ v).transpose(0, 1).reshape(T, B, E))
        shown = weights.view(B, self.num_heads, T, T)
        return (out, shown) if need_weights else out
