"""The toy language model and its step, right."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ToyLM(nn.Module):
    def __init__(self, vocab_size, context_len, dim):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Embedding(context_len, dim)
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        T = tokens.size(1)
        h = self.tok(tokens) + self.pos(torch.arange(T, device=tokens.device))
        scores = self.W_q(h) @ self.W_k(h).transpose(-2, -1) / math.sqrt(h.size(-1))
        scores = scores.masked_fill(torch.triu(torch.ones(T, T), diagonal=1).bool(), float("-inf"))
        return self.head(F.softmax(scores, dim=-1) @ self.W_v(h))


def train_step(model, optimizer, tokens):
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


RIGHT = ["ToyLM"]
TASK = {"ToyLM": "lm"}
CONVENTION = {}
