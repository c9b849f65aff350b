"""What code like the articles' does with masks, dropout, features, memory and models of Hugging Face: sections of articles.py.

Like there, the forms are this project's own. `configs` needs transformers, which python/tests/requirements.txt installs.
"""

import math
import statistics

import numpy as np
import torch
from torch import nn

import forms
import lm


def padding():
    """A (batch, seq) mask handed to the forward that 004 writes, without the repeat that its example adds."""
    torch.manual_seed(0)
    for batch, length in ((3, 4), (4, 4)):
        mask = torch.ones(batch, length).tril()
        try:
            scores = torch.rand(batch, length, length)
            filled = scores.masked_fill(mask == 0, -1e20)
            same = (filled == scores.masked_fill((mask == 0).expand(batch, length, length), -1e20)).all().item()
            meant = scores.masked_fill((mask == 0)[:, None, :], -1e20)
            print(
                f"  mask ({batch}, {length}) on scores ({batch}, {length}, {length}): no error; read as [Tq, Tk] of every "
                f"sequence: "
                f"{same}; weights off by up to {(filled.softmax(-1) - meant.softmax(-1)).abs().max().item():.2f}"
            )
        except RuntimeError as error:
            print(f"  mask ({batch}, {length}) on scores ({batch}, {length}, {length}): {str(error).splitlines()[0]}")
    print("The comment asks for (batch, seq), the code needs (batch, seq, seq): with batch = seq it goes wrong without a word.")


class Unused(forms.Separate):
    """Has a dropout and never calls it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.att_dropout = nn.Dropout(0.1)


def unused():
    torch.manual_seed(0)
    names, output = forms.MULTI_HEAD_NAMES["o_proj"]
    layer, x = Unused(128, names, output, heads=8), torch.rand(3, 2, 128)
    drops = nn.Dropout(0.1)
    for word, dropout in (("created, never applied (004)", None), ("applied to the weights (002)", drops)):
        outs = []
        for training in (False, True):
            layer.train(training)
            drops.train(training)
            factors = None if dropout is None else dropout(torch.ones(3, 8, 2, 2))
            outs.append(layer(x, weight_factors=factors)[0])
        print(
            f"  dropout {word:30}: outputs in training and in evaluation differ by {(outs[0] - outs[1]).abs().max().item():.1e}"
        )


def features():
    """The gradient of one head's output with respect to every feature of the input."""
    torch.manual_seed(0)
    width, heads = 768, 12
    layer = forms.make("mha", width, heads=heads)
    x = torch.randn(2, 10, width, requires_grad=True)
    q, k, v = (t.unflatten(-1, (heads, -1)).movedim(2, 1) for t in layer.project(x))
    out, _ = forms.scaled_dot_product(q, k, v)
    out[:, 0].sum().backward()
    reached = (x.grad.abs().amax((0, 1)) > 0).sum().item()
    print(
        f"  head 0 of {heads} has {width // heads} columns of q, k and v; its output depends on {reached} of the {width} "
        f"input features"
    )
    print("A head sees a slice of the projected features, each of which is made from all of x: not a slice of the input.")


def division():
    """w / sum(w) for w = randn(5)."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1_000_000, 5))
    total = w.sum(1)
    largest = np.abs(w / total[:, None]).max(1)
    print(
        f"  |sum| < 0.1 in {100 * (np.abs(total) < 0.1).mean():.1f} % of the draws; largest |weight|: median "
        f"{np.median(largest):.2f}, "
        f"above 10 in {100 * (largest > 10).mean():.1f} %, largest {largest.max():.0f}; a negative weight in "
        f"{100 * ((w / total[:, None]) < 0).any(1).mean():.0f} %"
    )
    print("Divided by their sum, weights that start as randn(5) are no average: a softmax of them would be.")


def memory():
    t = torch.arange(2 * 3 * 4).reshape(2, 3, 4).transpose(1, 2)  # not contiguous
    try:
        t.view(2, 12)
    except RuntimeError as error:
        print(f"  transpose, then view that joins axes: {str(error).splitlines()[0][:76]}..")
    joined, copied = t.reshape(2, 12), t.contiguous().view(2, 12)
    print(
        f"  reshape: the same numbers as contiguous().view() {bool((joined == copied).all())}, a copy "
        f"{joined.data_ptr() != t.data_ptr()}"
    )
    split = t.view(2, 2, 2, 3)
    print(f"  transpose, then view that splits an axis: allowed, no copy {split.data_ptr() == t.data_ptr()}")
    mask = torch.ones(3, 1, 4)
    repeated, expanded = mask.repeat(1, 4, 1), mask.expand(3, 4, 4)
    print(
        f"  repeat (1,4,1): {repeated.untyped_storage().nbytes()} bytes; expand to the same shape: "
        f"{expanded.untyped_storage().nbytes()} bytes, strides {expanded.stride()}; equal {bool((repeated == expanded).all())}"
    )
    try:
        torch.ones(2, 3).expand(2, 9)
    except RuntimeError as error:
        print(
            f"  expand of an axis of 3 to 9: {str(error).splitlines()[0][:76]}..; repeat(1, 3) gives "
            f"{tuple(torch.ones(2, 3).repeat(1, 3).shape)}"
        )
    x = torch.randn(3, 2, 4)
    einsum, product = torch.einsum("bqd,bkd->bqk", x, x), x @ x.transpose(-1, -2)
    print(
        f"  einsum bqd,bkd->bqk: {tuple(einsum.shape)}, from x @ x^T by {(einsum - product).abs().max().item():.1e}; with "
        f"one head there "
        "is no axis of heads in the weights"
    )


def entropy(counts):
    """Mean nats of the next character given the key of `counts`."""
    total = sum(sum(c.values()) for c in counts.values())
    return -sum(n * math.log(n / sum(c.values())) for c in counts.values() for n in c.values()) / total


class Residual(lm.PlainModel):
    """The toy model with x + attention(x) in place of attention(x)."""

    def forward(self, ids):
        h = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        out, weights = self.attn(h)
        return self.head(h + out), weights


def following():
    alphabet, data = lm.text_ids()
    text = "".join(alphabet[i] for i in data.tolist())
    for first in "ab":
        after = [text[i + 1] for i in range(len(text) - 1) if text[i] == first]
        shares = {c: 100 * after.count(c) / len(after) for c in sorted(set(after), key=after.count, reverse=True)}
        print(f"  after {first}: " + ", ".join(f"{c!r} {share:.1f} %" for c, share in shares.items()))
    for word, key in (
        ("t[i]", lambda i: text[i]),
        ("t[i-1]", lambda i: text[i - 1]),
        ("t[i] and t[i-1]", lambda i: text[i - 1 : i + 1]),
    ):
        counts = {}
        for i in range(1, len(text) - 1):
            nexts = counts.setdefault(key(i), {})
            nexts[text[i + 1]] = nexts.get(text[i + 1], 0) + 1
        print(f"  entropy of t[i+1] given {word:16} {entropy(counts):.3f} nats")
    ids = torch.tensor([[alphabet.index(c) for c in "abababab"]])
    for name, form in (("as in 003", lm.PlainModel), ("x + attention(x)", Residual)):
        found = []
        for seed in range(6):
            torch.manual_seed(seed)
            model = form(len(alphabet))
            losses = lm.train(model, (lm.draw_windows(data) for _ in range(800)))
            with torch.no_grad():
                weights = model(ids)[1][0, 0]
            rows = range(1, ids.shape[1])
            own = statistics.mean(weights[i, i].item() for i in rows)
            same = statistics.mean(weights[i, : i + 1][ids[0, : i + 1] == ids[0, i]].sum().item() for i in rows)
            found.append((statistics.mean(losses[-50:]), own, statistics.mean(weights[i, i - 1].item() for i in rows), same))
        columns = [f"{min(c):.2f} to {max(c):.2f}" for c in zip(*found)]
        print(
            f"  {name:18} 6 seeds: loss {columns[0]}, self {columns[1]}, previous {columns[2]}, same {columns[3]}", flush=True
        )
    print(
        "A map that is 1 on i-1 sees t[i-1] alone, and the model has no path around the attention: its loss cannot go below "
        "the second figure."
    )


def distance():
    """How much the last output feels a token n places before it, freshly made layers of width 32."""
    torch.manual_seed(0)
    length, width = 256, 32
    attention, rnn, conv = (
        forms.make("single-head", width, fill=-math.inf, causal=True),
        nn.RNN(width, width, batch_first=True),
        nn.Conv1d(width, width, 3, padding=1),
    )
    calls = {"attention": lambda x: attention(x)[0], "RNN": lambda x: rnn(x)[0], "convolution of 3": lambda x: conv(x.mT).mT}
    print(
        "  gradient of the last output with respect to the token n places before, norm     n = 1        16        64       255"
    )
    for name, call in calls.items():
        x = torch.randn(1, length, width, requires_grad=True)
        call(x)[0, -1].sum().backward()
        norms = x.grad[0].norm(dim=-1)
        print(f"  {name:60} " + " ".join(f"{norms[-1 - n].item():9.1e}" for n in (1, 16, 64, 255)))
    print(
        "The convolution's reach is its kernel; the RNN's influence fades step by step; attention's does not depend on the "
        "distance."
    )


def sharding():
    torch.manual_seed(0)
    width, count, ranks = 16, 4, 2
    layer = forms.make("mha", width, heads=count)
    x = torch.randn(2, 5, width)
    with torch.no_grad():
        whole, _ = layer(x)
        rows = width // ranks

        def head_outputs(q, k, v):
            q, k, v = (t.unflatten(-1, (-1, width // count)).movedim(2, 1) for t in (q, k, v))
            return forms.scaled_dot_product(q, k, v)[0].movedim(1, 2).flatten(2)

        parts = 0
        for rank in range(ranks):
            own = slice(rank * rows, (rank + 1) * rows)
            q, k, v = (x @ getattr(layer, n).weight[own].T + getattr(layer, n).bias[own] for n in layer.names)
            parts = parts + head_outputs(q, k, v) @ layer.o_proj.weight[:, own].T
        print(
            f"separate projections cut in {ranks} row blocks, each rank its heads, outputs summed: difference "
            f"{(parts + layer.o_proj.bias - whole).abs().max().item():.1e}"
        )
        merged = torch.cat([getattr(layer, n).weight for n in layer.names])
        owners = [["q", "k", "v"][row // width] for row in range(3 * width)]
        for rank in range(ranks):
            own = owners[rank * 3 * rows : (rank + 1) * 3 * rows]
            print(
                f"  merged [{merged.shape[0]}, {width}] cut in {ranks} contiguous blocks: rank {rank} has rows "
                + ", ".join(f"{own.count(name)} of {name}" for name in "qkv")
            )
        order = [part * width + rank * rows + row for rank in range(ranks) for part in range(3) for row in range(rows)]
        parts = 0
        for rank, block in enumerate(merged[order].chunk(ranks)):
            biases = torch.cat([getattr(layer, n).bias for n in layer.names])[order].chunk(ranks)[rank]
            q, k, v = (x @ block.T + biases).chunk(3, -1)
            parts = parts + head_outputs(q, k, v) @ layer.o_proj.weight[:, rank * rows : (rank + 1) * rows].T
        print(
            f"merged with its rows reordered by rank first: difference "
            f"{(parts + layer.o_proj.bias - whole).abs().max().item():.1e}"
        )
    print("So 004's reason holds for the plain q-k-v order; a reordered merged matrix shards too.")


def configs():
    import transformers

    print(f"  transformers {transformers.__version__}: defaults of the configurations")
    for name, fields in (
        ("BertConfig", ("attention_probs_dropout_prob", "hidden_dropout_prob")),
        ("GPT2Config", ("attn_pdrop", "resid_pdrop")),
        ("LlamaConfig", ("attention_dropout",)),
        ("Qwen2Config", ("attention_dropout",)),
        ("Qwen3Config", ("attention_dropout",)),
    ):
        config = getattr(transformers, name)()
        print(f"  {name:12} " + ", ".join(f"{field} {getattr(config, field)}" for field in fields))
    small = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    models = {
        "BERT": transformers.BertModel(transformers.BertConfig(**small)),
        "GPT-2": transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        ),
        "Llama": transformers.LlamaModel(transformers.LlamaConfig(**small, num_key_value_heads=2)),
        "Qwen 2": transformers.Qwen2Model(transformers.Qwen2Config(**small, num_key_value_heads=2)),
    }
    for name, model in models.items():
        maps = [
            f"{path.rsplit('.', 1)[-1]} {tuple(parameter.shape)}"
            for path, parameter in (
                (p.removesuffix(".weight"), q) for p, q in model.named_parameters() if p.endswith(".weight")
            )
            if path.rsplit(".", 1)[-1] in ("query", "key", "value", "q_proj", "k_proj", "v_proj", "c_attn")
        ]
        print(f"  {name:7} projects q, k, v by {', '.join(maps)}")


SECTIONS = {
    "padding": padding,
    "unused": unused,
    "features": features,
    "division": division,
    "memory": memory,
    "following": following,
    "distance": distance,
    "sharding": sharding,
    "configs": configs,
}
