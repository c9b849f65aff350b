"""Wrong code whose matrices, width or constants are its own."""

import torch
from torch import nn

d_k = 12
d_model, n_heads = 48, 4


class Linear(nn.Module):
    """Its weight is [in, out]."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))

    def forward(self, x):
        return x @ self.weight


class OfLinear(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.wq, self.wk, self.wv, self.wo = (Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v).reshape(x.shape))


class WeightOfLinear(nn.Module):
    """nn.Linear keeps [out, in]."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = ((x @ f.weight).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def attention(q, k, v, d_k):
    return torch.softmax(q @ k.transpose(-2, -1) * d_k**0.5, -1) @ v


class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, d_k * n_heads, bias=False) for _ in range(3))
        self.fc = nn.Linear(n_heads * d_k, d_model, bias=False)

    def forward(self, input_Q, input_K, input_V):
        q, k, v = (f(x).view(x.size(0), -1, n_heads, d_k).transpose(1, 2)
                   for f, x in ((self.W_Q, input_Q), (self.W_K, input_K), (self.W_V, input_V)))  # fmt: skip
        context = (q @ k.transpose(-1, -2) / d_model**0.5).softmax(dim=-1) @ v
        return self.fc(context.transpose(1, 2).reshape(input_Q.size(0), -1, n_heads * d_k))


class FlaggedFlipped(nn.Module):
    """Off by its default; where it is on, a token sees its future alone."""

    def __init__(self, dim, heads, is_decoder=False):
        super().__init__()
        self.h, self.is_decoder, self.qkv, self.o = heads, is_decoder, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.size(-1) ** 0.5
        if self.is_decoder:
            s = s.masked_fill(torch.ones_like(s).tril(-1).bool(), -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


EXPECTED = {"OfLinear": "merge-without-transpose", "WeightOfLinear": "weight-not-transposed", "attention": "scale-multiplied"}
EXPECTED |= {"MultiHeadAttention": "scale-sqrt-embed", "FlaggedFlipped": "causal-flipped"}
