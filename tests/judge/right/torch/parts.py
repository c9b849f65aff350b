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


class MLA(nn.Module):
    def __init__(self, hidden_size, num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim):
        super().__init__()
        self.h, self.r, self.dn, self.dr, self.dv = num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * (self.dn + self.dr), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, self.r + self.dr, bias=False)
        self.kv_a_layernorm = RMSNorm(self.r, 1e-6)
        self.kv_b_proj = nn.Linear(self.r, num_heads * (self.dn + self.dv), bias=False)
        self.o_proj = nn.Linear(num_heads * self.dv, hidden_size, bias=False)

    def rope(self, x):
        T = x.shape[-2]
        freqs = 1.0 / (10000 ** (torch.arange(0, self.dr, 2).float() / self.dr))
        cis = torch.polar(torch.ones(T, self.dr // 2, dtype=torch.float32), torch.outer(torch.arange(T).float(), freqs))
        return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * cis).flatten(-2).type_as(x)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.h, -1).transpose(1, 2)
        q_nope, q_pe = q.split([self.dn, self.dr], -1)
        c, k_pe = self.kv_a_proj_with_mqa(x).split([self.r, self.dr], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).view(B, T, self.h, -1).transpose(1, 2)
        k_nope, v = kv.split([self.dn, self.dv], -1)
        q_pe, k_pe = self.rope(q_pe), self.rope(k_pe.unsqueeze(1))
        q = torch.cat([q_nope, q_pe], -1)
        k = torch.cat([k_nope, k_pe.expand(-1, self.h, -1, -1)], -1)
        s = q @ k.transpose(-2, -1) / (self.dn + self.dr) ** 0.5
        s = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf"))
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))


def beam_search_step(beam_scores, log_probs, sequences):
    K, V = log_probs.shape
    best, flat = (beam_scores.unsqueeze(1) + log_probs).reshape(-1).topk(K)
    parent = torch.div(flat, V, rounding_mode="floor")
    return best, torch.cat([sequences[parent], (flat % V).unsqueeze(1)], dim=1), parent


RIGHT = ["beam_search_step", "RMSNorm", "LayerNorm", "SwiGLU", "LlamaSwiGLU", "TopKRouter", "LoRALinear", "LoRAWrapped", "lora_forward"]
RIGHT += ["swiglu", "cross_entropy_loss"]
EXPECTED = {"MLA": "mla-latent-normed"}
