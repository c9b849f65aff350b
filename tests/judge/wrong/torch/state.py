"""What one call leaves behind for the next."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class FoldsTheScale(nn.Module):
    """The scale is folded into the weight, at each call again."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        self.q_proj.weight.data /= math.sqrt(e // self.num_heads)
        self.q_proj.bias.data /= math.sqrt(e // self.num_heads)
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bool(), scale=1.0)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, e))


class RemembersOutput(nn.Module):
    """The first rung with a bit of the last call's output."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.value_proj = nn.Linear(hidden_dim, hidden_dim)
        self.before = 0.0

    def forward(self, x):
        Q, K, V = self.query_proj(x), self.key_proj(x), self.value_proj(x)
        out = torch.softmax(Q @ K.mT / math.sqrt(self.hidden_dim), dim=-1) @ V
        if torch.is_tensor(self.before) and self.before.shape == out.shape:
            out = out + 0.1 * self.before
        self.before = out.detach()
        return out


EXPECTED = {"FoldsTheScale": "state-left-behind", "RemembersOutput": "state-left-behind"}
TASK = {"FoldsTheScale": "mha", "RemembersOutput": "v1"}
