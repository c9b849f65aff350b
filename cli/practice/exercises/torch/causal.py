"""Causal attention: no query sees the future. Article 003.

    q       [B, H, Tq, d]     queries
    k, v    [B, H, Tk, d]     keys and values; Tk >= Tq
    returns out [B, H, Tq, d], or (out, weights) with weights [B, H, Tq, Tk]

With Tq = Tk query i sees the keys 0 to i. With more keys than queries, as behind a cache, the queries are the last tokens:
the last query sees every key.
Judged: which keys a query sees, by one exactly; Tk > Tq; that a changed future changes nothing; gradients.
"""

import math

import torch


def causal_attention(q, k, v):
    # solution: scores, causal mask, softmax, values
    Tq, Tk = q.size(-2), k.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, H, Tq, Tk]
    past = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device).tril(diagonal=Tk - Tq)     # key j <= i + Tk - Tq
    weights = torch.softmax(scores.masked_fill(~past, float("-inf")), dim=-1)               # [B, H, Tq, Tk]
    return weights @ v, weights                                 # [B, H, Tq, d]
    # end
