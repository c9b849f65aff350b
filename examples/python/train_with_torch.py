"""qkv in a PyTorch training loop: a small causal language model trained three ways from one state_dict, on the CPU: PyTorch's
own attention; qkv instead by one line; and qkv's MultiheadAttention in the modules. Prints losses and times.

Written like a notebook: each "# %%" is a cell. Needs torch. Runs in seconds:  python examples/python/train_with_torch.py
"""

# %% A model of two nn.TransformerEncoderLayers over characters.
import copy
import time

import qkv
import qkv.torch
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)  # matrices this small do not gain from more threads
qkv.set_num_threads(1)
text = "ababababababab abc abc abc xyzxyzxyz" * 100
letters = sorted(set(text))
ids = torch.tensor([letters.index(c) for c in text])
context, width, batch, steps = 64, 32, 4, 30


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(letters), width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, len(letters))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.head(x)


first = Model()
starts = torch.randint(0, len(ids) - context - 1, (steps, batch, 1))


# %% The training loop knows nothing of qkv.
def train(model: nn.Module) -> tuple[list[float], float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, began = [], time.perf_counter()
    for at in starts:
        window = ids[at + torch.arange(context + 1)]  # [batch, context + 1]
        logits = model(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, time.perf_counter() - began


def show(name: str, losses: list[float], seconds: float) -> None:
    print(f"{name:32} loss {losses[0]:.4f} -> {losses[-1]:.4f}   {1000 * seconds / steps:6.1f} ms a step")


train(copy.deepcopy(first))  # a warm-up, so that no variant pays for initialisation
theirs = train(copy.deepcopy(first))
show("PyTorch", *theirs)

# %% One line: inside the block torch.nn.functional.scaled_dot_product_attention is qkv's.
with qkv.torch.enable():
    ours = train(copy.deepcopy(first))
show("with qkv.torch.enable()", *ours)

# %% Or layer by layer: the same parameters under the same names.
swapped = copy.deepcopy(first)
for layer in swapped.layers:
    layer.self_attn = qkv.torch.MultiheadAttention.from_torch(layer.self_attn)
by_layer = train(swapped)
show("qkv.torch.MultiheadAttention", *by_layer)
first.load_state_dict(swapped.state_dict())  # and back

# %% The three agree but for float32 rounding.
for name, losses in (("enable()", ours[0]), ("MultiheadAttention", by_layer[0])):
    apart = max(abs(a - b) for a, b in zip(losses[:20], theirs[0][:20]))
    print(f"{name:32} first 20 losses within {apart:.1e} of PyTorch's")
    assert apart < 1e-3

# %% Attention alone, forward and backward, over a longer context. The minimum of several runs.
q, k, v = (torch.randn(1, 4, 1024, 64, requires_grad=True) for _ in range(3))


def milliseconds(attention: object) -> float:
    least = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        attention(q, k, v, is_causal=True).sum().backward()
        least = min(least, time.perf_counter() - began)
    return 1000 * least


for name, attention in (
    ("PyTorch", nn.functional.scaled_dot_product_attention),
    ("qkv", qkv.torch.scaled_dot_product_attention),
):
    print(f"{name:32} {milliseconds(attention):6.1f} ms, causal attention of 1024 tokens, forward and backward")
