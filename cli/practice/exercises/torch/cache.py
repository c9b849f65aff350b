"""Attention with a cache of keys and values, as text is generated. Named in article 003, an extension here.

    x          [B, n, E]    the n new tokens of this call; n differs from call to call; E is embed_dim
    cache      None at first, later what the previous call returned; its form is yours
    returns (out, cache): out [B, n, E] of the new tokens

Causal over all tokens so far: a new token sees every earlier one, of this call and of those before, and itself. A head has
head_dim = E / H columns. No biases.
Judged: calls of 3, 1, 1 ... tokens, joined, equal one call on the whole; a second sequence starts with a fresh cache.
"""

import math

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        # solution: project the new tokens, append keys and values, attend over all of them
        B, n, E = x.shape

        def heads(y):                                           # [B, n, E] -> [B, H, n, d]
            return y.view(B, n, self.num_heads, self.head_dim).transpose(1, 2)

        q, k, v = heads(self.to_q(x)), heads(self.to_k(x)), heads(self.to_v(x))            # of the new tokens only
        if cache is not None:
            past_k, past_v = cache
            k = torch.cat([past_k, k], dim=2)                   # [B, H, T, d]: the past first
            v = torch.cat([past_v, v], dim=2)
        T = k.size(2)                                           # tokens so far
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, n, T]
        seen = torch.ones(n, T, dtype=torch.bool, device=x.device).tril(diagonal=T - n)    # the new tokens are the last n
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, n, E)        # [B, n, E]
        return self.to_out(context), (k, v)
        # end
