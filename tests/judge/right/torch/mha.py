"""Multi-head attention, right, in as many hands as possible."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    """view, then permute or transpose; mask [B, 1, L, L] or repeated over the heads; fill -1e20."""

    def __init__(self, hidden_dim, nums_head) -> None:
        super().__init__()
        self.nums_head, self.hidden_dim, self.head_dim = nums_head, hidden_dim, hidden_dim // nums_head
        self.q_proj = nn.Linear(hidden_dim, hidden_dim)
        self.k_proj = nn.Linear(hidden_dim, hidden_dim)
        self.v_proj = nn.Linear(hidden_dim, hidden_dim)
        self.att_dropout = nn.Dropout(0.1)
        self.o_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, X, attention_mask=None):
        batch_size, seq_len, _ = X.size()
        q_state = self.q_proj(X).view(batch_size, seq_len, self.nums_head, self.head_dim).permute(0, 2, 1, 3)
        k_state = self.k_proj(X).view(batch_size, seq_len, self.nums_head, self.head_dim).transpose(1, 2)
        v_state = self.v_proj(X).view(batch_size, seq_len, self.nums_head, self.head_dim).transpose(1, 2)
        attention_weight = q_state @ k_state.transpose(-1, -2) / math.sqrt(self.head_dim)
        if attention_mask is not None:
            attention_mask = attention_mask.expand(batch_size, self.nums_head, seq_len, seq_len)
            attention_weight = attention_weight.masked_fill(attention_mask == 0, float("-1e20"))
        attention_weight = self.att_dropout(torch.softmax(attention_weight, dim=3))
        output = (attention_weight @ v_state).transpose(1, 2).contiguous().view(batch_size, seq_len, -1)
        return self.o_proj(output)


class EinsumMHA(nn.Module):
    """Weights as parameters [E, H, d], everything by einsum."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(d_model, d_model)
        self.to_k = nn.Linear(d_model, d_model)
        self.to_v = nn.Linear(d_model, d_model)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        def heads(w, b):
            return torch.einsum("ble,hde->bhld", x, w.view(self.n_heads, -1, x.shape[-1])) + b.view(self.n_heads, 1, -1)

        q, k, v = (heads(f.weight, f.bias) for f in (self.to_q, self.to_k, self.to_v))
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            logits = logits.masked_fill(mask.logical_not(), torch.finfo(logits.dtype).min)
        y = torch.einsum("bhij,bhjd->bihd", logits.softmax(dim=-1), v).flatten(2)
        return self.to_out(y)


class LoopMHA(nn.Module):
    """One head after the other, by slices."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.wq = nn.Linear(embed_dim, embed_dim)
        self.wk = nn.Linear(embed_dim, embed_dim)
        self.wv = nn.Linear(embed_dim, embed_dim)
        self.wo = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        q, k, v, outs = self.wq(x), self.wk(x), self.wv(x), []
        for h in range(self.num_heads):
            part = slice(h * self.head_dim, (h + 1) * self.head_dim)
            scores = torch.bmm(q[..., part], k[..., part].transpose(1, 2)) / math.sqrt(self.head_dim)
            if mask is not None:
                scores = scores.masked_fill(mask[:, 0] == 0, -1e9)
            outs.append(torch.bmm(F.softmax(scores, dim=-1), v[..., part]))
        return self.wo(torch.cat(outs, dim=-1))


class ModuleListMHA(nn.Module):
    """A list of small layers, one for each head."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        head_dim = embed_dim // num_heads
        self.queries = nn.ModuleList(nn.Linear(embed_dim, head_dim) for _ in range(num_heads))
        self.keys = nn.ModuleList(nn.Linear(embed_dim, head_dim) for _ in range(num_heads))
        self.values = nn.ModuleList(nn.Linear(embed_dim, head_dim) for _ in range(num_heads))
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        outs = []
        for query, key, value in zip(self.queries, self.keys, self.values):
            q, k, v = query(x), key(x), value(x)
            scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
            if mask is not None:
                scores = scores.masked_fill(mask.squeeze(1) == 0, float("-inf"))
            outs.append(scores.softmax(-1) @ v)
        return self.out(torch.cat(outs, -1))


class MergedChunk(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MergedUnbind(nn.Module):
    """As in vision transformers: reshape, permute, unbind; q is scaled."""

    def __init__(self, dim, num_heads=8):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, attn_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        if attn_mask is not None:
            attn = attn.masked_fill(~attn_mask.bool(), -1e9)
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class MergedParameter(nn.Module):
    """One bare parameter of [E, 3E]: x @ weight, not its transpose."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.w_qkv = nn.Parameter(torch.randn(d_model, 3 * d_model) / d_model**0.5)
        self.b_qkv = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        qkv = x @ self.w_qkv + self.b_qkv
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.split(c, dim=-1))
        s = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(mask == 0, -1e9)
        return self.out_proj((torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2))


class SdpaInside(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states, attention_mask=None):
        b, n, _ = hidden_states.shape
        projected = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        q, k, v = (y.view(b, n, self.num_heads, -1).transpose(1, 2) for y in projected)
        mask = None if attention_mask is None else attention_mask.bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, -1))


class TorchInside(nn.Module):
    """nn.MultiheadAttention; its mask is True where hidden, and wants a row for each head of each sequence."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        if mask is not None:
            hidden = mask.logical_not() if mask.dtype == torch.bool else mask == 0
            mask = hidden.expand(-1, self.attn.num_heads, -1, -1).flatten(0, 1)
        out, _ = self.attn(x, x, x, attn_mask=mask, need_weights=False)
        return out


class AdditiveMask(nn.Module):
    """(1 - mask) * -1e9 is added; weights are returned too."""

    def __init__(self, hidden_size, num_attention_heads, *, dropout=0.0):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, y):
        return y.view(*y.shape[:-1], self.num_attention_heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask.to(scores.dtype)) * -1e9
        probs = self.dropout(nn.Softmax(dim=-1)(scores))
        context = (probs @ v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(*context.shape[:2], -1)), probs


class DictMHA(nn.Module):
    """Keyword-only arguments, a dict as result."""

    def __init__(self, *, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, *, mask=None):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, self.n_heads, -1).transpose(1, 2) for f in (self.w_q, self.w_k, self.w_v))
        scores = torch.matmul(q / math.sqrt(c // self.n_heads), k.transpose(-2, -1))
        if mask is not None:
            scores = torch.where(mask.bool(), scores, torch.tensor(-1e20, dtype=scores.dtype))
        weights = scores.softmax(dim=-1)
        return {"out": self.w_o(torch.matmul(weights, v).transpose(1, 2).reshape(b, n, c)), "weights": weights}


class HalfPrecisionCareful(nn.Module):
    """The softmax is taken in f32 whatever comes in, and cast back."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q.float() @ k.float().transpose(-1, -2)) * (c // self.num_heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(v)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class BatchOfHeads(nn.Module):
    """Heads folded into the batch, as before there were four axes; baddbmm."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, y):
        b, n, c = y.shape
        return y.view(b, n, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, n, -1)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        bias = torch.zeros(q.size(0), n, n, dtype=q.dtype)
        if mask is not None:
            bias = bias.view(b, self.num_heads, n, n).masked_fill(mask == 0, float("-inf")).view(-1, n, n)
        weights = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.size(-1) ** -0.5).softmax(dim=-1)
        return self.out_proj(torch.bmm(weights, v).view(b, self.num_heads, n, -1).transpose(1, 2).reshape(b, n, c))


class 多头注意力(nn.Module):
    """中文的标识符和注释：先投影，再拆头，算分数，加掩码，归一化，合并。"""

    def __init__(self, 隐藏维度, 头数):
        super().__init__()
        self.头数 = 头数
        self.每头维度 = 隐藏维度 // 头数
        self.查询投影 = nn.Linear(隐藏维度, 隐藏维度)
        self.键投影 = nn.Linear(隐藏维度, 隐藏维度)
        self.值投影 = nn.Linear(隐藏维度, 隐藏维度)
        self.输出投影 = nn.Linear(隐藏维度, 隐藏维度)

    def 拆头(self, 张量):
        批, 长, _ = 张量.shape
        return 张量.view(批, 长, self.头数, self.每头维度).transpose(1, 2)  # [批, 头, 长, 维]

    def forward(self, 输入, 掩码=None):
        查询, 键, 值 = self.拆头(self.查询投影(输入)), self.拆头(self.键投影(输入)), self.拆头(self.值投影(输入))
        分数 = 查询 @ 键.transpose(-1, -2) / math.sqrt(self.每头维度)
        if 掩码 is not None:
            分数 = 分数.masked_fill(掩码 == 0, float("-inf"))  # 看不见的位置
        权重 = torch.softmax(分数, dim=-1)
        return self.输出投影((权重 @ 值).transpose(1, 2).reshape(输入.shape))


class FusedWithTwoDropouts(nn.Module):
    """q, k and v of all heads in one layer, read as [B, L, 3, H, d]; dropout of the weights and of the output."""

    def __init__(self, dim, num_heads=8, attn_drop=0.25, proj_drop=0.25):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop, self.proj_drop = nn.Dropout(attn_drop), nn.Dropout(proj_drop)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        weights = self.attn_drop((q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).reshape(b, n, c)))


class NoOutputLayer(nn.Module):
    """Heads side by side and nothing after them."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.heads = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, hidden_states):
        q, k, v = (f(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


RIGHT = [
    "FusedWithTwoDropouts",
    "NoOutputLayer",
    "MultiHeadAttention",
    "EinsumMHA",
    "LoopMHA",
    "ModuleListMHA",
    "MergedChunk",
    "MergedUnbind",
    "MergedParameter",
    "SdpaInside",
    "TorchInside",
    "AdditiveMask",
    "DictMHA",
    "HalfPrecisionCareful",
    "BatchOfHeads",
    "多头注意力",
]
TASK = {"多头注意力": "mha"}
CONVENTION = {"FusedWithTwoDropouts": "dropout-on-output-too", "NoOutputLayer": "without-output-projection"}
