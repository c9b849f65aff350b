"""The mask gone wrong: its meaning, its axis, its fill, its place."""

import math

import torch
import torch.nn as nn


class InvertedMaskMHA(nn.Module):
    """True means "hide" to this class, "may look" to everybody else."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        B, L, _ = x.shape
        Q = self.q_proj(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        K = self.k_proj(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        V = self.v_proj(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(mask.bool(), float("-1e9"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        context = torch.matmul(weights, V).transpose(1, 2).contiguous().view(B, L, self.embed_dim)
        return self.out_proj(context), weights


class SelfAttentionV3(nn.Module):
    """The third rung; the mask, [B, L, L], lies across: rows of padding instead of columns."""

    def __init__(self, hidden_dim, dropout_rate=0.0):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)
        self.attention_dropout = nn.Dropout(dropout_rate)
        self.output_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, attention_mask=None):
        Q, K, V = torch.split(self.proj(x), self.hidden_dim, dim=-1)
        attention_weight = Q @ K.transpose(-1, -2) / math.sqrt(self.hidden_dim)
        if attention_mask is not None:
            attention_weight = attention_weight.masked_fill(attention_mask.transpose(1, 2) == 0, float("-1e20"))
        attention_weight = self.attention_dropout(torch.softmax(attention_weight, dim=-1))
        return self.output_proj(attention_weight @ V)


class Masked(nn.Module):
    """Right; what follows changes what the mask does to scores or weights."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3)
        self.to_out = nn.Linear(dim, dim)

    def weights(self, scores, mask):
        return scores.masked_fill(mask == 0, float("-inf")).softmax(dim=-1)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5
        weights = scores.softmax(dim=-1) if mask is None else self.weights(scores, mask)
        return self.to_out((weights @ v).transpose(1, 2).reshape(b, n, c))


class MaskAcross(Masked):
    def weights(self, scores, mask):
        return scores.masked_fill(mask.transpose(-1, -2) == 0, -1e9).softmax(dim=-1)


class MaskOfFirstSequence(Masked):
    def weights(self, scores, mask):
        return scores.masked_fill(mask[0] == 0, -1e20).softmax(dim=-1)


class MaskOfLastSequence(Masked):
    def weights(self, scores, mask):
        for one in mask:
            hidden = one == 0
        return scores.masked_fill(hidden, -1e20).softmax(dim=-1)


class ForgottenResult(Masked):
    """masked_fill without underscore returns what nobody takes."""

    def weights(self, scores, mask):
        scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(dim=-1)


class FilledWithZero(Masked):
    def weights(self, scores, mask):
        return scores.masked_fill(mask == 0, 0).softmax(dim=-1)


class FilledWithTiny(Masked):
    """1e-9, where -1e9 was meant."""

    def weights(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9).softmax(dim=-1)


class FilledWithMinusFive(Masked):
    def weights(self, scores, mask):
        return scores.masked_fill(mask == 0, -5.0).softmax(dim=-1)


class Multiplied(Masked):
    def weights(self, scores, mask):
        return torch.softmax(scores * mask, dim=-1)


class FirstHeadOnly(Masked):
    def weights(self, scores, mask):
        hidden = mask == 0
        scores[:, :1] = scores[:, :1].masked_fill(hidden, float("-inf"))
        return scores.softmax(dim=-1)


class AfterSoftmax(Masked):
    def weights(self, scores, mask):
        return scores.softmax(dim=-1).masked_fill(mask == 0, 0.0)


class AfterSoftmaxRenormalised(Masked):
    def weights(self, scores, mask):
        weights = scores.softmax(dim=-1) * mask
        return weights / weights.sum(dim=-1, keepdim=True)


class MultipliedTooLate(Masked):
    """The weights of a row no longer sum to one."""

    def weights(self, scores, mask):
        return scores.softmax(dim=-1) * mask.to(scores.dtype)


def sdpa_mask_summed(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.softmax(scores, dim=-1) @ v


EXPECTED = {
    "sdpa_mask_summed": "mask-added-as-is",
    "InvertedMaskMHA": "mask-polarity",
    "SelfAttentionV3": "mask-on-queries",
    "MaskAcross": "mask-on-queries",
    "MaskOfFirstSequence": "mask-first-of-batch",
    "MaskOfLastSequence": "mask-last-of-batch",
    "ForgottenResult": "no-mask",
    "FilledWithZero": ("fill-zero", "mask-multiplies-scores", "fill-small"),
    "FilledWithTiny": ("fill-small", "fill-zero", "mask-multiplies-scores"),
    "FilledWithMinusFive": "fill-other",
    "Multiplied": ("mask-multiplies-scores", "fill-zero", "fill-small"),
    "FirstHeadOnly": "mask-first-head-only",
    "AfterSoftmax": "mask-after-softmax",
    "MultipliedTooLate": "mask-after-softmax",
    "AfterSoftmaxRenormalised": "mask-after-softmax-renormalised",
}
TASK = {}
