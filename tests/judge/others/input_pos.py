import torch
from torch import nn
from torch.nn import functional as F


class Cached(nn.Module):
    def __init__(self, dim, n_head, n_local_heads, max_batch=8, max_seq=64):
        super().__init__()
        self.n_head, self.n_local_heads, self.head_dim = n_head, n_local_heads, dim // n_head
        self.wqkv = nn.Linear(dim, (n_head + 2 * n_local_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(max_batch, n_local_heads, max_seq, self.head_dim))
        self.register_buffer("causal_mask", torch.ones(max_seq, max_seq, dtype=torch.bool).tril())

    def forward(self, x, input_pos):
        b, t, _ = x.shape
        kv = self.n_local_heads * self.head_dim
        q, k, v = self.wqkv(x).split([x.shape[-1], kv, kv], dim=-1)
        q = q.view(b, t, self.n_head, self.head_dim).transpose(1, 2)
        k, v = (one.view(b, t, self.n_local_heads, self.head_dim).transpose(1, 2) for one in (k, v))
        self.k_cache[:b, :, input_pos] = k
        self.v_cache[:b, :, input_pos] = v
        k, v = (c[:b].repeat_interleave(self.n_head // self.n_local_heads, dim=1) for c in (self.k_cache, self.v_cache))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.causal_mask[None, None, input_pos])
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))
