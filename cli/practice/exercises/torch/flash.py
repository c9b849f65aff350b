"""Attention in blocks of keys with an online softmax: what FlashAttention does. Named in article 003, an extension here.

    q             [B, H, Tq, d]    queries
    k, v          [B, H, Tk, d]    keys and values
    block_size    n                keys taken at once; it need not divide Tk, and may be 1 or more than Tk
    causal        False            True: query i sees the keys up to i + Tk - Tq
    returns out [B, H, Tq, d]

The same numbers as plain attention, without an array of Tq x Tk. What is kept for each query from block to block: the largest
score so far, the sum of exponentials, the unfinished output.
Judged: several block sizes, blocks in which the maximum grows, the short last block, causal.
"""

import math

import torch


def flash(q, k, v, block_size, causal=False):
    # solution: for each block: scores, new maximum, rescale what was summed, add
    Tq, Tk = q.size(-2), k.size(-2)
    query = torch.arange(Tq, device=q.device)[:, None] + (Tk - Tq)      # [Tq, 1]
    largest = torch.full_like(q[..., :1], -1e30)                # [B, H, Tq, 1]; finite: -inf - -inf would be NaN
    total = torch.zeros_like(largest)                           # [B, H, Tq, 1]
    out = torch.zeros_like(q)                                   # [B, H, Tq, d]
    for begin in range(0, Tk, block_size):
        keys = torch.arange(begin, min(begin + block_size, Tk), device=q.device)    # the last block may be short
        scores = q @ k[..., keys, :].transpose(-2, -1) / math.sqrt(q.size(-1))      # [B, H, Tq, n]
        if causal:
            scores = scores.masked_fill(keys > query, float("-inf"))
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        rescale = torch.exp(largest - new)                      # sums so far had the old maximum in their exponents
        weights = torch.exp(scores - new)                       # [B, H, Tq, n], not yet divided
        total = total * rescale + weights.sum(dim=-1, keepdim=True)
        out = out * rescale + weights @ v[..., keys, :]
        largest = new
    return out / total                                          # once, at the end
    # end
