import math, torch
import torch.nn as nn

class CausalSelfAttention(nn.Module):
    """GPT-style causal self-attention. attention_mask: (B, T), 1 for real tokens, 0 for padding."""
    def __init__(self, n_embd, n_head, block_size=64, dropout=0.0):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head, self.drop = n_head, nn.Dropout(dropout)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x, attention_mask=None):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
        if attention_mask is not None:
            att = att.masked_fill(attention_mask[:, None, :, None] == 0, float('-inf'))
        att = self.drop(torch.softmax(att, -1))
        return self.c_proj((att @ v).transpose(1, 2).reshape(B, T, C))
