"""Right classes and functions beside attention, as libraries and lectures spell them."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


class LayerNormalization(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return self.gamma * (x - mean) * torch.rsqrt(variance + 1e-6) + self.beta


class SwiGLU(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.w1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.w3 = nn.Linear(hidden_size, intermediate_size, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaSwiGLU(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(ndim)), nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class TopKRouter(nn.Module):
    def __init__(self, dim, num_experts, top_k=2):
        super().__init__()
        self.gate, self.k = nn.Linear(dim, num_experts, bias=False), top_k

    def forward(self, x):
        best, index = torch.topk(self.gate(x), self.k, dim=-1)
        return F.softmax(best, dim=-1), index


class LoRALinear(nn.Module):
    def __init__(self, in_features, out_features, r=4, alpha=8, dropout=0.0):
        super().__init__()
        self.linear, self.scaling = nn.Linear(in_features, out_features), alpha / r
        self.lora_A = nn.Parameter(torch.randn(r, in_features) * 0.01)
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))

    def forward(self, x):
        return self.linear(x) + x @ self.lora_A.T @ self.lora_B.T * self.scaling


class LoRAWrapped(nn.Module):
    def __init__(self, layer, rank, alpha):
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        self.A = nn.Linear(layer.in_features, rank, bias=False)
        self.B = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.scale * self.B(self.A(x))


def lora_forward(x, W, A, B, alpha):
    return F.linear(x, W) + F.linear(F.linear(x, A), B) * (alpha / A.shape[0])


def swiglu(x, w1, w2, w3):
    return (F.silu(x @ w1) * (x @ w2)) @ w3


def cross_entropy_loss(logits, labels, ignore_index=-100):
    return F.nll_loss(F.log_softmax(logits, dim=-1), labels, ignore_index=ignore_index)


RIGHT = [
    "RMSNorm", "LayerNormalization", "LayerNorm", "SwiGLU", "LlamaSwiGLU", "TopKRouter", "LoRALinear", "LoRAWrapped", "lora_forward", "swiglu",
    "cross_entropy_loss",
]  # fmt: skip
CONVENTION = {"LayerNormalization": "norm-own-eps"}
