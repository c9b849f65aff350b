"""The toy language model in PyTorch: characters, one causal attention layer, a linear head, Adam.

As a program: toy.py STEPS THREADS.

B 32, T 16, E 32, one head without biases, vocabulary 7, as in `qkv train`.
"""

import sys

import torch
from torch.nn import functional

TEXT = "ababababababab abc abc abc xyzxyzxyz" * 100
BATCH, CONTEXT, WIDTH = 32, 16, 32


class Model(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tok = torch.nn.Embedding(vocabulary, WIDTH)
        self.pos = torch.nn.Embedding(CONTEXT, WIDTH)
        self.query, self.key, self.value, self.output = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.head = torch.nn.Linear(WIDTH, vocabulary)
        self.register_buffer("positions", torch.arange(CONTEXT))

    def forward(self, ids):
        x = self.tok(ids) + self.pos(self.positions)
        q, k, v = (project(x)[:, None] for project in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        return self.head(self.output(attended))


def trainer(fused=True):
    """A function that takes one training step and returns its loss."""
    torch.manual_seed(0)
    symbols = sorted(set(TEXT))
    ids = torch.tensor([symbols.index(c) for c in TEXT])
    model = Model(len(symbols))
    adam = torch.optim.Adam(model.parameters(), lr=3e-3, fused=fused, foreach=not fused)
    steps = torch.arange(CONTEXT + 1)

    def step():
        windows = ids[torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1)) + steps]
        loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        return float(loss)

    return step


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    train_step = trainer()
    losses = [train_step() for _ in range(int(sys.argv[1]))]
    print(f"{sum(losses[-50:]) / 50:.4f}")
