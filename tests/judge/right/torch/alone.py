"""A right layer that changes in eval(); a head whose input is called h."""

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


class AttentionHead(nn.Module):
    def __init__(self, embed_dim, head_dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(embed_dim, head_dim, bias=False) for _ in range(3))

    def forward(self, h):
        q, k, v = self.q(h), self.k(h), self.v(h)
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5, dim=-1), v)


RIGHT = ["AttentionHead", "LoRALinear"]
