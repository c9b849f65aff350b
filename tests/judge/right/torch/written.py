"""Right layers whose whole way is a person's own, or whose form is found by trying."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def attend(q, k, v, hidden=None):
    scores = q @ k.mT / q.size(-1) ** 0.5
    return (scores if hidden is None else scores.masked_fill(hidden, float("-inf"))).softmax(-1) @ v


class LazyMultiHead(nn.Module):
    def __init__(self, num_hiddens, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for f, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values)))  # fmt: skip
        hidden = None if valid_lens is None else torch.arange(k.size(2)) >= valid_lens[:, None, None, None]
        self.attention = attend(q, k, v, hidden)
        return self.W_o(self.attention.transpose(1, 2).flatten(2))


class MultiQueryAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.query, self.output = heads, nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * (width // heads))

    def forward(self, x):
        q, (k, v) = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), self.key_value(x)[:, None].chunk(2, dim=-1)
        return self.output(attend(q, k, v).transpose(1, 2).flatten(2))


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_positions=64, base=10000.0):
        super().__init__()
        angles = torch.arange(max_positions)[:, None] * base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.register_buffer("angles", angles.repeat(1, 2), persistent=False)

    def forward(self, x, offset=0):
        angles, (a, b) = self.angles[offset : offset + x.size(-2)], x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


class SingleSelfAttention(nn.Module):
    """Names of a book's: the widths of queries and keys, and of values."""

    def __init__(self, d_in, d_out_kq, d_out_v):
        super().__init__()
        self.to_query, self.to_key = (nn.Parameter(torch.randn(d_in, d_out_kq)) for _ in range(2))
        self.to_value = nn.Parameter(torch.randn(d_in, d_out_v))

    def forward(self, x):
        return attend(x @ self.to_query, x @ self.to_key, x @ self.to_value)


class WeightsByEinsum(nn.Module):
    """The weight of a layer is read as [H, d, E]."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        def heads(layer):
            weight = layer.weight.unflatten(0, (self.n_heads, -1))
            return torch.einsum("ble,hde->bhld", x, weight) + layer.bias.view(self.n_heads, 1, -1)

        logits = torch.einsum("bhid,bhjd->bhij", heads(self.to_q), heads(self.to_k)) / (x.size(-1) / self.n_heads) ** 0.5
        if mask is not None:
            logits = logits.masked_fill(mask.logical_not(), torch.finfo(logits.dtype).min)
        return self.to_out(torch.einsum("bhij,bhjd->bihd", logits.softmax(dim=-1), heads(self.to_v)).flatten(2))


class TorchInside(nn.Module):
    """nn.MultiheadAttention; its mask is True where hidden, and wants a row for each head of each sequence."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        if mask is not None:
            mask = (mask == 0).expand(-1, self.attn.num_heads, -1, -1).flatten(0, 1)
        return self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]


class 多头注意力(nn.Module):
    """中文的标识符和注释：先投影，再拆头，算分数，加掩码，归一化，合并。"""

    def __init__(self, 隐藏维度, 头数):
        super().__init__()
        self.头数 = 头数
        self.查询投影, self.键投影, self.值投影, self.输出投影 = (nn.Linear(隐藏维度, 隐藏维度) for _ in range(4))

    def 拆头(self, 张量):
        return 张量.unflatten(-1, (self.头数, -1)).transpose(1, 2)  # [批, 头, 长, 维]

    def forward(self, 输入, 掩码=None):
        查询, 键, 值 = self.拆头(self.查询投影(输入)), self.拆头(self.键投影(输入)), self.拆头(self.值投影(输入))
        分数 = 查询 @ 键.mT / math.sqrt(键.size(-1))
        if 掩码 is not None:
            分数 = 分数.masked_fill(掩码 == 0, float("-inf"))  # 被遮蔽的位置
        return self.输出投影((分数.softmax(-1) @ 值).transpose(1, 2).flatten(2))


class GroupsByBroadcast(nn.Module):
    """Queries as [B, Hkv, G, L, d]; keys are broadcast."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_kv_heads, self.head_dim = n_kv_heads, dim // n_heads
        self.wq, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.n_kv_heads, -1, self.head_dim)).permute(0, 2, 3, 1, 4) for f in (self.wq, self.wk, self.wv))
        y = (q @ k.mT * self.head_dim**-0.5).softmax(dim=-1) @ v
        return self.wo(y.permute(0, 3, 1, 2, 4).reshape(x.shape))


class LoRALinear(nn.Linear):
    """In evaluation the change is part of the weight."""

    def __init__(self, in_features, out_features, r=4, lora_alpha=8):
        super().__init__(in_features, out_features, bias=False)
        self.lora_A = nn.Parameter(torch.randn(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.scaling, self.merged = lora_alpha / r, False

    def train(self, mode=True):
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * self.scaling * self.lora_B @ self.lora_A
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        y = F.linear(x, self.weight)
        return y if self.merged else y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


class NeoXAttention(nn.Module):
    """Causal in the call alone: no name says so, no argument asks for it."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.heads, self.query_key_value, self.dense = num_heads, *(nn.Linear(hidden_size, n * hidden_size) for n in (3, 1))

    def forward(self, hidden_states):
        q, k, v = self.query_key_value(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(3, dim=-1)
        return self.dense(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class BidirectionalLinearAttention(nn.Module):
    """Katharopoulos et al. 2020; nothing is causal here."""

    def forward(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


class OnlineSoftmax(nn.Module):
    """FlashAttention without a causal mask."""

    def __init__(self, block_size=16):
        super().__init__()
        self.block_size = block_size

    def forward(self, q, k, v):
        o, total, m = torch.zeros_like(q), q.new_zeros(q.shape[:-1]), q.new_full(q.shape[:-1], float("-inf"))
        for keys, values in zip(k.split(self.block_size, -2), v.split(self.block_size, -2)):
            s = q @ keys.mT * q.size(-1) ** -0.5
            new = torch.maximum(m, s.amax(-1))
            kept, p = torch.exp(m - new), torch.exp(s - new[..., None])
            o, total, m = o * kept[..., None] + p @ values, total * kept + p.sum(-1), new
        return o / total[..., None]


class FrozenHead(nn.Module):
    """Trained elsewhere: nothing here learns."""

    def __init__(self, dim):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(dim, dim), requires_grad=False) for _ in range(3))

    def forward(self, x):
        return attend(x @ self.wq, x @ self.wk, x @ self.wv)


class HeadForInference(FrozenHead):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


def qkv_attention(q, k, v, mask=None):
    """Both are scaled. mask is added."""
    s = (q * q.shape[-1] ** -0.25) @ (k * q.shape[-1] ** -0.25).transpose(-2, -1)
    return (s if mask is None else s + mask).softmax(-1) @ v


class PlainObject:
    """No nn.Module: what it holds is in training mode until somebody says otherwise."""

    def __init__(self, embed_dim, num_heads):
        self.heads, self.dropout = num_heads, nn.Dropout(0.25)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def __call__(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.W_q, self.W_k, self.W_v))
        weights = self.dropout((q @ k.mT / q.size(-1) ** 0.5).softmax(-1))
        return self.W_o((weights @ v).transpose(1, 2).flatten(2))


RIGHT = ["LazyMultiHead", "MultiQueryAttention", "RotaryEmbedding", "LoRALinear", "BidirectionalLinearAttention", "OnlineSoftmax"]
TASK = {"WeightsByEinsum": "mha", "TorchInside": "mha", "多头注意力": "mha", "GroupsByBroadcast": "gqa", "PlainObject": "mha"}
RIGHT += [*TASK, "SingleSelfAttention", "FrozenHead", "HeadForInference"]
EXPECTED = {"qkv_attention": "mask-added", "NeoXAttention": "merged-by-head"}
