"""Right layers that change in eval(), or keep the keys of earlier calls by themselves."""

import torch
import torch.nn.functional as F
from torch import nn


class LoRALinear(nn.Linear):
    """In evaluation the change is part of the weight."""

    def __init__(self, in_features, out_features, r=4, lora_alpha=8):
        super().__init__(in_features, out_features, bias=False)
        self.lora_A = nn.Parameter(torch.randn(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.scaling, self.merged = lora_alpha / r, False

    def train(self, mode=True):
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * self.scaling * self.lora_B @ self.lora_A
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        y = F.linear(x, self.weight)
        return y if self.merged else y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


class Attention(nn.Module):
    """Keys and values of all calls in buffers of a fixed length."""

    def __init__(self, dim, n_heads, max_seq_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.cache_k, self.cache_v = (torch.zeros(8, max_seq_len, dim) for _ in range(2))

    def forward(self, x, start_pos):
        (batch, count, _), end = x.shape, start_pos + x.shape[1]
        for cache, layer in ((self.cache_k, self.wk), (self.cache_v, self.wv)):
            cache[:batch, start_pos:end] = layer(x)
        q, k, v = (
            y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).to(x) for y in (self.wq(x), self.cache_k[:batch, :end], self.cache_v[:batch, :end])
        )
        keep = torch.ones(count, end).tril(start_pos).bool()
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2))


RIGHT = ["LoRALinear", "Attention"]
