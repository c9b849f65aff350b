"""The exercises as PyTorch modules; as numpy_exercises.py."""

import math

import torch
from torch import nn


# [sdpa]
def sdpa(q, k, v, mask=None):
    # solution: scores, scale, mask, softmax, values
    scores = q @ k.transpose(-2, -1)                            # [B, H, Tq, Tk]: query i times key j
    scores = scores / math.sqrt(k.size(-1))                     # otherwise they grow with d, and softmax picks one key
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e20)               # before the softmax, so that the rest still sums to 1
    weights = torch.softmax(scores, dim=-1)                     # [B, H, Tq, Tk]: over the keys, each row sums to 1
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)               # a row that sees nothing: 0, not a mean
    return weights @ v, weights                                 # [B, H, Tq, d]: a mean of values for each query


# [v1]
class SelfAttentionV1(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q = self.query(x)                                       # [B, L, E] what each token asks for
        k = self.key(x)                                         # [B, L, E] how it can be found
        v = self.value(x)                                       # [B, L, E] what it hands over
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, E]


# [v2]
class SelfAttentionV2(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        # solution: one projection, split in three, attention
        q, k, v = self.qkv(x).chunk(3, dim=-1)                  # [B, L, 3E] into three times [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, E]


# [v3]
class SelfAttentionV3(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(width, width)

    def forward(self, x, attention_mask=None):
        # solution: projection, scores, mask, softmax, dropout, values, output projection
        q, k, v = self.qkv(x).chunk(3, dim=-1)                  # [B, L, 3E] into three times [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if attention_mask is not None:                          # before the softmax: exp makes 0 of it
            scores = scores.masked_fill(attention_mask == 0, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        if attention_mask is not None:                          # changes only a row that sees nothing: 0, not a mean
            weights = weights.masked_fill(attention_mask == 0, 0.0)
        weights = self.dropout(weights)                         # on the weights; does nothing after eval()
        context = weights @ v                                   # [B, L, E]
        return self.to_out(context)                             # [B, L, E]


# [v4]
class SelfAttentionV4(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attention_mask=None):
        # solution: projections, scores, mask, softmax, dropout, values, output projection
        q = self.to_q(x)                                        # [B, L, E]
        k = self.to_k(x)                                        # [B, L, E]
        v = self.to_v(x)                                        # [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if attention_mask is not None:                          # fill before the softmax
            scores = scores.masked_fill(attention_mask == 0, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        if attention_mask is not None:                          # changes only a row that sees nothing: 0, not a mean
            weights = weights.masked_fill(attention_mask == 0, 0.0)
        weights = self.dropout(weights)                         # on the weights; does nothing after eval()
        return self.to_out(weights @ v)                         # [B, L, E]


# [self-attention]
class SelfAttention(nn.Module):
    def __init__(self, width, d_k):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(width, d_k) for _ in range(3))

    def forward(self, x):
        # solution: projections, scores, softmax, values
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)         # each [B, L, d_k]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]: a score sums d_k products, not E
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], rows sum to 1
        return weights @ v                                      # [B, L, d_k]


# [single-head]
class SingleHeadAttention(nn.Module):
    def __init__(self, width, causal=True):
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.causal = causal

    def forward(self, x):
        # solution: projections, causal scores, softmax, values, output projection
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)         # each [B, L, E]
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, L, L]
        if self.causal:
            past = torch.ones_like(scores, dtype=torch.bool).tril()     # key j <= query i
            scores = scores.masked_fill(~past, float("-inf"))   # no row is empty: each token sees itself
        weights = torch.softmax(scores, dim=-1)                 # [B, L, L], 0 above the diagonal
        return self.W_o(weights @ v)                            # [B, L, E]


# [causal]
def causal_attention(q, k, v):
    # solution: scores, causal mask, softmax, values
    Tq, Tk = q.size(-2), k.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))    # [B, H, Tq, Tk]
    past = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device).tril(diagonal=Tk - Tq)     # key j <= i + Tk - Tq
    weights = torch.softmax(scores.masked_fill(~past, float("-inf")), dim=-1)               # [B, H, Tq, Tk]
    return weights @ v, weights                                 # [B, H, Tq, d]


# [mha]
class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, mask=None):
        # solution: projections, heads, attention, heads joined, output projection
        B, L, E = x.shape

        def heads(y):                                           # [B, L, E] -> [B, H, L, d]
            return y.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)     # cut columns, then move heads forward

        q, k, v = heads(self.to_q(x)), heads(self.to_k(x)), heads(self.to_v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]: the width of a head, not E
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e20)           # [B, 1, L, L] serves all heads
        weights = torch.softmax(scores, dim=-1)                 # [B, H, L, L], rows sum to 1
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)           # a row that sees nothing: 0, not a mean
        context = weights @ v                                   # [B, H, L, d]
        context = context.transpose(1, 2).reshape(B, L, E)      # back: heads beside columns, then joined
        return self.to_out(context), weights                    # [B, L, E]


# [gqa]
class GroupedQueryAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.to_q, self.to_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.to_k, self.to_v = (nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x):
        # solution: projections, heads, keys and values for each group, attention, output projection
        B, L, E = x.shape
        q = self.to_q(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)          # [B, H, L, d]
        k = self.to_k(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)       # [B, Hkv, L, d]
        v = self.to_v(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)       # [B, Hkv, L, d]
        group = self.num_heads // self.num_kv_heads
        k = k.repeat_interleave(group, dim=1)                   # [B, H, L, d] as 0 0 0 1 1 1; repeat would give 0 1 0 1 0 1
        v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, L]
        weights = torch.softmax(scores, dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)        # [B, L, E]
        return self.to_out(context), weights


# [cross]
class CrossAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, memory, mask=None):
        # solution: queries of x, keys and values of memory, attention in heads, output projection
        B, L, E = x.shape

        def heads(y):                                           # [B, T, E] -> [B, H, T, d]; T is L or M
            return y.view(B, -1, self.num_heads, self.head_dim).transpose(1, 2)

        q = heads(self.to_q(x))                                 # [B, H, L, d]
        k = heads(self.to_k(memory))                            # [B, H, M, d]
        v = heads(self.to_v(memory))                            # [B, H, M, d]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)     # [B, H, L, M]
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e20)
        weights = torch.softmax(scores, dim=-1)                 # over the tokens of memory
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)           # a row that sees nothing: 0, not a mean
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)        # [B, L, E]
        return self.to_out(context), weights


# [cache]
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
        visible = torch.ones(n, T, dtype=torch.bool, device=x.device).tril(diagonal=T - n)    # the new tokens are the last n
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, n, E)        # [B, n, E]
        return self.to_out(context), (k, v)


# [rope]
def rope(x, positions, base=10000.0):
    # solution: an angle for each token and pair, then the rotation
    half = x.size(-1) // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)       # [d/2]: 1 first, slow last
    angle = positions.to(x.dtype)[:, None] * frequency          # [T, d/2]
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]                # [B, H, T, d/2] each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rope_attention(q, k, v, positions, base=10000.0):
    # solution: turn what is compared, then attention
    q, k = rope(q, positions, base), rope(k, positions, base)   # q and k; values carry no position
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)       # [B, H, T, T]
    return weights @ v, weights                                 # [B, H, T, d]


# [flash]
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


# [linear]
def linear_attention(q, k, v, causal=False):
    # solution: features, sums over keys, division
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1   # always above 0
    if not causal:
        state = k.transpose(-2, -1) @ v                         # [B, H, d, d]: sum over j of k_j v_j
        total = k.sum(dim=-2).unsqueeze(-1)                     # [B, H, d, 1]
        return (q @ state) / (q @ total)                        # [B, H, Tq, d]
    rows, state, total = [], 0, 0
    for i in range(k.size(-2)):                                 # token by token: the state is all that is remembered
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]       # [B, H, d, d]
        total = total + k[:, :, i, :, None]                     # [B, H, d, 1]
        query = q[:, :, i, None, :]                             # [B, H, 1, d]
        rows.append((query @ state) / (query @ total))          # [B, H, 1, d]
    return torch.cat(rows, dim=-2)


# [dropout]
class DropoutAttention(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, q, k, v):
        # solution: weights, dropout, values
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)   # [B, H, Tq, Tk]
        weights = self.dropout(weights)                         # the module knows train() and eval(), and divides by 1 - p
        return weights @ v                                      # [B, H, Tq, d]


# [lm]
class ToyLM(nn.Module):
    def __init__(self, vocab_size, context_len, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(context_len, dim)
        self.W_q, self.W_k, self.W_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        # solution: embeddings, causal attention, logits
        h = self.embed(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))      # [B, T, E]
        q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)         # [B, T, E] each
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))        # [B, T, T]
        past = torch.ones_like(scores, dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~past, float("-inf")), dim=-1)
        return self.head(weights @ v)                           # [B, T, V]


def train_step(model, optimizer, tokens):
    # solution: logits, loss against the next character, gradients, step
    inputs, targets = tokens[:, :-1], tokens[:, 1:]             # [B, T] each: what follows token t is token t + 1
    logits = model(inputs)                                      # [B, T, V]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())    # classes are V; mean of B T positions
    optimizer.zero_grad()                                       # gradients add up otherwise
    loss.backward()
    optimizer.step()
    return loss.item()
