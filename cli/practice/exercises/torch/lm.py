"""The toy language model and one training step. Article 003.

    ToyLM.forward(tokens [B, T]) returns logits [B, T, V]; T is at most context_len
    train_step(model, optimizer, tokens [B, T + 1]) returns the loss before the step: T inputs, and what follows each of them

    h = embed(tokens) + position;  a = causal attention of h, one head, scale 1/sqrt(E), without W_o;  logits = head(a)
    loss = mean over all B T places of the cross-entropy of the character that follows

Judged: three steps one after the other: loss and every parameter. The judge makes the optimizer (plain SGD) and hands it over.
"""

import math

import torch
from torch import nn
from torch.nn import functional


class ToyLM(nn.Module):
    def __init__(self, vocab_size, context_len, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(context_len, dim)
        self.W_q, self.W_k, self.W_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        # solution: embeddings, causal attention, logits
        h = self.embed(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))      # [B, T, E]
        q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)         # [B, T, E] each
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))        # [B, T, T]
        past = torch.ones_like(scores, dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~past, float("-inf")), dim=-1)
        return self.head(weights @ v)                           # [B, T, V]
        # end


def train_step(model, optimizer, tokens):
    # solution: logits, loss against the next character, gradients, step
    inputs, targets = tokens[:, :-1], tokens[:, 1:]             # [B, T] each: what follows token t is token t + 1
    logits = model(inputs)                                      # [B, T, V]
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())       # classes are V; mean of B T places
    optimizer.zero_grad()                                       # gradients add up otherwise
    loss.backward()
    optimizer.step()
    return loss.item()
    # end
