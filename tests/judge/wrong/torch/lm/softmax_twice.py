"""cross_entropy of probabilities: it takes a softmax of its own."""

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
        h = self.tok(tokens) + self.pos(torch.arange(T))
        Q, K, V = self.W_q(h), self.W_k(h), self.W_v(h)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(h.size(-1))
        mask = torch.triu(torch.ones(T, T), diagonal=1).bool()
        scores = scores.masked_fill(mask, float("-inf"))
        return self.head(F.softmax(scores, dim=-1) @ V)


def train_step(model, optimizer, tokens):
    logits = model(tokens[:, :-1])
    probabilities = logits.softmax(dim=-1)
    loss = F.cross_entropy(probabilities.reshape(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


EXPECTED = {"ToyLM": "lm-softmax-before-loss"}
TASK = {"ToyLM": "lm"}
