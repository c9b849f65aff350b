import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Pre-norm decoder block as in GPT-2."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj, self.drop = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Dropout(0.1)
        self.ln_1, self.ln_2, self.up, self.down = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).flatten(2)))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))
