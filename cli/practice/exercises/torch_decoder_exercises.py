"""Of decoders: causal heads, caches, a block; as numpy_exercises.py."""

import math

import torch
from torch import nn


# [causal-mha]
class CausalMultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, context=64):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.c_attn = nn.Linear(embed_dim, 3 * embed_dim)       # q, k and v in one product
        self.c_proj = nn.Linear(embed_dim, embed_dim)
        self.register_buffer("past", torch.ones(context, context, dtype=torch.bool).tril())    # no parameter: it is not trained

    def forward(self, x):
        # solution: projection cut in three, heads, causal scores, softmax, values, heads joined, output projection
        B, L, E = x.shape
        q, k, v = (y.view(B, L, self.num_heads, self.head_dim).transpose(1, 2) for y in self.c_attn(x).split(E, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]
        scores = scores.masked_fill(~self.past[:L, :L], float("-inf"))  # [L, L] serves every sequence and every head
        weights = torch.softmax(scores, dim=-1)                 # [B, H, L, L], 0 above the diagonal
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)        # heads beside columns, then joined
        return self.c_proj(context)                             # [B, L, E]


# [gqa-cache]
class GroupedCachedAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.to_q, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.to_k, self.to_v = (nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x, cache=None):
        # solution: project the new tokens, append keys and values, share them, attend over all of them
        B, n, E = x.shape
        q, k, v = (f(x).view(B, n, -1, self.head_dim).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if cache is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v)))
        cache = k, v                                            # [B, Hkv, T, d] twice: before heads are repeated
        T, group = k.size(2), self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)     # [B, H, T, d]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, n, T]
        visible = torch.ones(n, T, dtype=torch.bool, device=x.device).tril(diagonal=T - n)
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(B, n, E)), cache


# [llama-attention]
class LlamaAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.to_q, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.to_k, self.to_v = (nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x, start, cache=None):
        # solution: project, turn queries and keys, append keys and values, share them, attend over all of them
        B, n, E = x.shape
        d = self.head_dim

        def turn(y, positions):                                 # y [B, heads, n, d]
            angles = positions[:, None] * 10000.0 ** (-torch.arange(0, d, 2, device=x.device) / d)     # [n, d / 2]
            angles = torch.cat([angles, angles], dim=-1).to(x.dtype)
            return y * angles.cos() + torch.cat([-y[..., d // 2 :], y[..., : d // 2]], dim=-1) * angles.sin()

        q, k, v = (f(x).view(B, n, -1, d).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        positions = start + torch.arange(n, dtype=x.dtype, device=x.device)     # of the new tokens, among all
        q, k = turn(q, positions), turn(k, positions)
        if cache is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v)))
        cache = k, v                                            # keys are turned once, and kept so
        T, group = k.size(2), self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)     # [B, H, T, d]
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)         # [B, H, n, T]
        visible = torch.ones(n, T, dtype=torch.bool, device=x.device).tril(diagonal=T - n)
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(B, n, E)), cache


# [window-cache]
class WindowedAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        # solution: project the new tokens, append keys and values, attend over the window of each token
        (B, n, E), window = x.shape, self.window
        q, k, v = (f(x).view(B, n, self.num_heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if cache is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v)))
        cache = k[:, :, -window:], v[:, :, -window:]            # what lies further back no later token will see
        T = k.size(2)                                           # rows that are here, not all that came
        i, j = torch.arange(T - n, T, device=x.device)[:, None], torch.arange(T, device=x.device)
        visible = (j <= i) & (i - j < window)                   # [n, T]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(B, n, E)), cache


# [block]
class DecoderBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.c_attn, self.c_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.up, self.down = nn.Linear(embed_dim, hidden_dim), nn.Linear(hidden_dim, embed_dim)

    def attention(self, x):
        # solution: projection cut in three, heads, causal scores, softmax, values, heads joined, output projection
        B, L, E = x.shape
        q, k, v = (y.view(B, L, self.num_heads, self.head_dim).transpose(1, 2) for y in self.c_attn(x).split(E, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]
        past = torch.ones(L, L, dtype=torch.bool, device=x.device).tril()
        weights = torch.softmax(scores.masked_fill(~past, float("-inf")), dim=-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(B, L, E))

    def forward(self, x):
        # solution: a norm, attention, a residual; a norm, the feed-forward part, a residual
        x = x + self.attention(self.norm_1(x))                  # the sum goes on as it is: no norm stands in its way
        hidden = nn.functional.gelu(self.up(self.norm_2(x)))    # [B, L, F]: without GELU two matrices would be one
        return x + self.down(hidden)                            # [B, L, E]
