"""Rotary positions: each pair of columns turns by an angle that grows with the token's position. No article has it.

    x            [B, H, T, d]    queries or keys; d is even
    positions    [T]             position of each token; they need not begin at 0
    base         10000.0         pair i turns by positions * base^(-2i / d), i = 0 .. d/2 - 1
    rope returns [B, H, T, d]; rope_attention returns out [B, H, T, d], or (out, weights)

Pair i is columns i and i + d/2, as in Llama's files of Hugging Face. It turns counter-clockwise: (1, 0) becomes (cos, sin).
Attention then sees how far apart two tokens are, not where they are.
Judged: pairs, angles and base; what is turned in attention; that positions moved by 5 give the same attention. No mask.
"""

import math

import torch


def rope(x, positions, base=10000.0):
    # solution: an angle for each token and pair, then the rotation
    half = x.size(-1) // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)       # [d/2]: 1 first, slow last
    angle = positions.to(x.dtype)[:, None] * frequency          # [T, d/2]
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]                # [B, H, T, d/2] each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    # end


def rope_attention(q, k, v, positions, base=10000.0):
    # solution: turn what is compared, then attention
    q, k = rope(q, positions, base), rope(k, positions, base)   # q and k; values carry no position
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)       # [B, H, T, T]
    return weights @ v, weights                                 # [B, H, T, d]
    # end
