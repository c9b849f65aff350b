"""Golden files of the toy language model: initial weights, a hundred batches and PyTorch's losses; and a small block model.

  lm_init.safetensors      f32 parameters of the plain model, initialised as in PyTorch
  lm_batches.npy           u8 [100, 32, 17]: ids; x = [..., :16], y = [..., 1:]
  lm_losses.npy            f64 [100]: loss of each step before its update, PyTorch in f32, Adam, lr 3e-3
  lm.safetensors           lm_blocks[_tied]: two layers, two heads: parameters, ids, logits, loss, every gradient;
                           lm_blocks_rotary: the same with four query heads on two key/value heads and rotary positions
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm

from forms import Separate, scaled_dot_product
from store import Case, save

TEXT = "ababababababab abc abc abc xyzxyzxyz" * 100
CONTEXT, WIDTH, BATCH, RATE, GOLDEN_STEPS = 16, 32, 32, 3e-3, 100


class PlainModel(nn.Module):
    """h = tok[id] + pos[i]; h = attention(h); logits = head(h)."""

    def __init__(self, vocabulary, context=CONTEXT, width=WIDTH):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(context, width)
        self.attn = Separate(width, ("W_q", "W_k", "W_v"), "W_o", bias=False, fill=-float("inf"), causal=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        out, weights = self.attn(self.tok(ids) + self.pos.weight[: ids.shape[1]])
        return self.head(out), weights


def text_ids():
    """The ids of characters: their indices in code point order."""
    alphabet = sorted(set(TEXT))
    return alphabet, torch.tensor([alphabet.index(c) for c in TEXT])


def draw_windows(data, generator=None):
    """[B, T + 1]: windows with random starts below len - T - 1."""
    starts = torch.randint(0, len(data) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([data[start : start + CONTEXT + 1] for start in starts])


def train(model, batches):
    """Losses of Adam's steps over batches [N, B, T + 1], each taken before its update."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        logits, _ = model(batch[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def save_run(folder):
    """The toy model's first weights, its batches and its losses."""
    torch.manual_seed(0)
    alphabet, data = text_ids()
    model = PlainModel(len(alphabet))
    case = Case("", kind="lm", alphabet="".join(alphabet), context=CONTEXT, torch=torch.__version__)
    for name, value in model.state_dict().items():
        case.add(name, value.clone().numpy())
    save(folder / "lm_init.safetensors", [case])
    generator = torch.Generator().manual_seed(1)
    batches = torch.stack([draw_windows(data, generator) for _ in range(GOLDEN_STEPS)])
    np.save(folder / "lm_batches.npy", batches.numpy().astype(np.uint8))
    np.save(folder / "lm_losses.npy", np.array(train(model, batches)))


def block_parameters(vocabulary, context, width, layers, tied, kv_width, rotary):
    """nanoGPT's names -> sizes."""
    sizes = {"transformer.wte.weight": (vocabulary, width)}
    if not rotary:
        sizes["transformer.wpe.weight"] = (context, width)
    for i in range(layers):
        for name, rows, columns in (("attn.c_attn", width + 2 * kv_width, width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
            sizes[f"transformer.h.{i}.{name}.weight"] = (rows, columns)
            sizes[f"transformer.h.{i}.{name}.bias"] = (rows,)
        for name in ("ln_1", "ln_2"):
            sizes[f"transformer.h.{i}.{name}.weight"] = sizes[f"transformer.h.{i}.{name}.bias"] = (width,)
    sizes["transformer.ln_f.weight"] = sizes["transformer.ln_f.bias"] = (width,)
    if not tied:
        sizes["lm_head.weight"] = (vocabulary, width)
    return sizes


def rotated(x):
    """RoFormer on Llama's pairs (i, i + D / 2), base 10000: x [B, H, T, D] rotated by its position, as complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2]).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    turned = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def block_model(p, ids, layers, heads, kv_heads, rotary):
    """Residual blocks, pre-norm; GELU exact; weights and every sum as the formula says. logits [B, T, V]."""
    h = p["transformer.wte.weight"][ids]
    if not rotary:
        h = h + p["transformer.wpe.weight"][: ids.shape[1]]
    head_dim = h.shape[-1] // heads
    keep = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()

    def linear(x, name):
        return x @ p[name + ".weight"].T + p[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)

    for i in range(layers):
        block = f"transformer.h.{i}."
        widths = [n * head_dim for n in (heads, kv_heads, kv_heads)]
        parts = linear(norm(h, block + "ln_1"), block + "attn.c_attn").split(widths, -1)
        q, k, v = (t.unflatten(-1, (-1, head_dim)).movedim(2, 1) for t in parts)
        if rotary:
            q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        attended, _ = scaled_dot_product(q, k, v, keep, -float("inf"))
        h = h + linear(attended.movedim(1, 2).flatten(2), block + "attn.c_proj")
        h = h + linear(gelu(linear(norm(h, block + "ln_2"), block + "mlp.c_fc")), block + "mlp.c_proj")
    return norm(h, "transformer.ln_f") @ p.get("lm_head.weight", p["transformer.wte.weight"]).T


def block_case(name, tied, vocabulary=7, context=8, width=16, layers=2, heads=2, kv_heads=2, rotary=False, batch=3):
    case = Case(name, kind="lm-blocks", tied=int(tied), heads=heads, layers=layers, context=context, torch=torch.__version__)
    if rotary or kv_heads != heads:
        case.metadata.update(kv_heads=str(kv_heads), rotary=str(int(rotary)))
    parameters = {}
    shapes = block_parameters(vocabulary, context, width, layers, tied, width // heads * kv_heads, rotary)
    for parameter, sizes in shapes.items():
        # Around 1 for the norms' weights; wide enough elsewhere for the attention to have a shape.
        value = case.input("param." + parameter, sizes, -1)
        if "ln_" in parameter and parameter.endswith("weight"):
            value = (1 + value).astype(np.float32)
            case.add("param." + parameter, value)
        parameters[parameter] = np.asarray(value, dtype=np.float64)
    ids = torch.from_numpy(np.random.RandomState(5).randint(0, vocabulary, (batch, context + 1)))
    case.add("ids", ids.numpy())
    results = []
    for dtype in (torch.float64, torch.float32):
        leaves = {n: torch.from_numpy(v).to(dtype).requires_grad_() for n, v in parameters.items()}
        logits = block_model(leaves, ids[:, :-1], layers, heads, kv_heads, rotary)
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        results.append({"logits": logits, "loss": loss.reshape(1), **{"grad." + n: v.grad for n, v in leaves.items()}})
    for result, exact in results[0].items():
        exact = exact.detach().numpy()
        case.result(result, exact, results[1][result].detach().double().numpy(), np.abs(exact))
    return case


def cases():
    yield block_case("lm_blocks", tied=False)
    yield block_case("lm_blocks_tied", tied=True)
    yield block_case("lm_blocks_rotary", tied=False, heads=4, kv_heads=2, rotary=True)
