"""Right layers whose whole way is a person's own: einsum over weights, PyTorch's own layer, broadcast groups, Chinese names."""

import math

import torch
from torch import nn


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


class CachedDict(nn.Module):
    """The caller's dict is filled."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4))

    def heads(self, y):
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v):
        hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(k.size(2) - q.size(2) + 1)
        y = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.wo(y.transpose(1, 2).flatten(2))

    def forward(self, x, cache=None):
        cache, new = {} if cache is None else cache, {"k": self.heads(self.wk(x)), "v": self.heads(self.wv(x))}
        for name, y in new.items():
            cache[name] = torch.cat([cache[name], y], dim=2) if name in cache else y
        return self.attend(self.heads(self.wq(x)), cache["k"], cache["v"]), cache


class CachedInputs(CachedDict):
    """Keeps x itself and projects the past again: slow and right."""

    def forward(self, x, past=None):
        whole = x if past is None else torch.cat([past, x], dim=1)
        return self.attend(self.heads(self.wq(x)), self.heads(self.wk(whole)), self.heads(self.wv(whole))), whole


RIGHT = ["WeightsByEinsum", "TorchInside", "多头注意力", "GroupsByBroadcast", "CachedDict", "CachedInputs"]
TASK = {name: "mha" for name in RIGHT} | {"GroupsByBroadcast": "gqa", "CachedDict": "cache", "CachedInputs": "cache"}
