"""Wrong classes and functions beside attention."""

import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + self.eps) + self.bias


class SwiGLUFeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, hidden_dim), nn.Linear(dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, dim)

    def forward(self, hidden_states):
        return self.down_proj(F.silu(self.up_proj(hidden_states)) * self.gate_proj(hidden_states))


class LoRALayer(nn.Module):
    def __init__(self, base_layer, rank=8, lora_alpha=16):
        super().__init__()
        self.base_layer, self.alpha = base_layer, lora_alpha
        self.down = nn.Parameter(torch.zeros(base_layer.in_features, rank))
        self.up = nn.Parameter(torch.zeros(rank, base_layer.out_features))

    def forward(self, x):
        return self.base_layer(x) + self.alpha * (x @ self.down @ self.up)


EXPECTED = {"LayerNorm": "norm-unbiased-variance", "SwiGLUFeedForward": "swiglu-exchanged", "LoRALayer": "lora-scale-alpha"}
