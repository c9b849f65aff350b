"""The articles' classes, V1 to the interview form, with their habits; written afresh."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttentionV1(nn.Module):
    def __init__(self, hidden_dim: int = 728) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        Q = self.query_proj(x)
        K = self.key_proj(x)
        V = self.value_proj(x)
        # [B, L, E] x [B, E, L] = [B, L, L]
        attention_value = torch.matmul(Q, K.transpose(-1, -2))
        attention_weight = torch.softmax(attention_value / math.sqrt(self.hidden_dim), dim=-1)
        return torch.matmul(attention_weight, V)


class SelfAttentionV2(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)

    def forward(self, X):
        Q, K, V = torch.split(self.proj(X), self.hidden_dim, dim=-1)
        attention_weight = torch.softmax(torch.matmul(Q, K.transpose(-1, -2)) / math.sqrt(self.hidden_dim), dim=-1)
        return attention_weight @ V


class SelfAttV2(nn.Module):
    """The fourth article's V2 has an output projection: the task v3 without a mask."""

    def __init__(self, dim) -> None:
        super().__init__()
        self.dim = dim
        self.proj = nn.Linear(dim, dim * 3)
        self.output_proj = nn.Linear(dim, dim)

    def forward(self, X):
        Q, K, V = torch.split(self.proj(X), self.dim, dim=-1)
        return self.output_proj(torch.softmax(Q @ K.transpose(-1, -2) / math.sqrt(self.dim), dim=-1) @ V)


class SelfAttentionV3(nn.Module):
    """Mask [B, L, L], fill -1e20, dropout on the weights."""

    def __init__(self, hidden_dim, dropout_rate=0.1):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)
        self.attention_dropout = nn.Dropout(dropout_rate)
        self.output_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, attention_mask=None):
        Q, K, V = torch.split(self.proj(x), self.hidden_dim, dim=-1)
        attention_weight = Q @ K.transpose(-1, -2) / math.sqrt(self.hidden_dim)
        if attention_mask is not None:
            attention_weight = attention_weight.masked_fill(attention_mask == 0, float("-1e20"))
        attention_weight = self.attention_dropout(torch.softmax(attention_weight, dim=-1))
        return self.output_proj(attention_weight @ V)


class SelfAttentionV4(nn.Module):
    """Prints its weights, as one does."""

    def __init__(self, dim) -> None:
        super().__init__()
        self.dim = dim
        self.query_proj = nn.Linear(dim, dim)
        self.key_proj = nn.Linear(dim, dim)
        self.value_proj = nn.Linear(dim, dim)
        self.att_drop = nn.Dropout(0.1)
        self.output_proj = nn.Linear(dim, dim)

    def forward(self, X, attention_mask=None):
        Q, K, V = self.query_proj(X), self.key_proj(X), self.value_proj(X)
        att_weight = Q @ K.transpose(-1, -2) / math.sqrt(self.dim)
        if attention_mask is not None:
            att_weight = att_weight.masked_fill(attention_mask == 0, float("-1e20"))
        att_weight = torch.softmax(att_weight, dim=-1)
        print(att_weight.shape)
        return self.output_proj(self.att_drop(att_weight) @ V)


class SelfAttention(nn.Module):
    """Width of the heads apart from that of the input."""

    def __init__(self, embed_dim, d_k):
        super().__init__()
        self.embed_dim, self.d_k = embed_dim, d_k
        self.W_Q = nn.Linear(embed_dim, d_k)
        self.W_K = nn.Linear(embed_dim, d_k)
        self.W_V = nn.Linear(embed_dim, d_k)

    def forward(self, x):
        Q, K, V = self.W_Q(x), self.W_K(x), self.W_V(x)
        score = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        return torch.matmul(F.softmax(score, dim=-1), V)


class SingleHeadAttention(nn.Module):
    def __init__(self, dim, causal=True):
        super().__init__()
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.W_o = nn.Linear(dim, dim, bias=False)
        self.causal = causal

    def forward(self, x):
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        scores = (Q @ K.transpose(-2, -1)) / math.sqrt(Q.size(-1))
        if self.causal:
            T = x.size(1)
            scores = scores.masked_fill(torch.triu(torch.ones(T, T, device=x.device), diagonal=1).bool(), float("-inf"))
        return self.W_o(F.softmax(scores, dim=-1) @ V)


class SelfAttentionWithWeights(nn.Module):
    """One head, mask [B, L, L], output and weights returned."""

    def __init__(self, embed_dim, dropout=0.1):
        super().__init__()
        self.embed_dim = embed_dim
        self.dropout = nn.Dropout(dropout)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        scores = torch.matmul(self.q_proj(x), self.k_proj(x).transpose(-2, -1)) / math.sqrt(self.embed_dim)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        attention_weights = self.dropout(F.softmax(scores, dim=-1))
        return self.out_proj(torch.matmul(attention_weights, self.v_proj(x))), attention_weights


class HeadWithBuffer(nn.Module):
    """Causal by a buffer that is longer than any sequence."""

    def __init__(self, n_embd):
        super().__init__()
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(256, 256)))

    def forward(self, x):
        T, C = x.shape[-2:]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.proj(F.softmax(wei, dim=-1) @ self.value(x))


class HeadWithoutOutput(nn.Module):
    """The well-known lecture's head: no output projection."""

    def __init__(self, n_embd):
        super().__init__()
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        T, C = x.shape[-2:]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


RIGHT = [
    "SelfAttentionV1",
    "SelfAttentionV2",
    "SelfAttV2",
    "SelfAttentionV3",
    "SelfAttentionV4",
    "SelfAttention",
    "SingleHeadAttention",
    "SelfAttentionWithWeights",
    "HeadWithBuffer",
    "HeadWithoutOutput",
]
CONVENTION = {"HeadWithoutOutput": "without-output-projection"}
TASK = {
    "SelfAttV2": "v3",
    "SelfAttentionWithWeights": "v4",
    "HeadWithBuffer": "single-head",
    "HeadWithoutOutput": "single-head",
}
