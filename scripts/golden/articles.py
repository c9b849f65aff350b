#!/usr/bin/env python3
"""Measures, in PyTorch and NumPy, what code like the five articles' really does: the numbers behind docs/articles.md.

    python3 scripts/golden/articles.py [NAME...]      names: see SECTIONS; none: all, a few minutes

The forms are this project's own (forms.py, lm.py). Every section prints what it computed, and one line of what to read from it.
"""

import copy
import math
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import article_claims  # noqa: E402
import forms  # noqa: E402
import lm  # noqa: E402
import philox  # noqa: E402
import sdpa  # noqa: E402


def milliseconds(call, seconds=0.15):
    """Median time of calls that fill about `seconds`."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def merged_from(separate, embed_dim, output):
    """A V2/V3 with the parameters of a V1/V4."""
    merged = forms.Merged(embed_dim, output=output)
    with torch.no_grad():
        for part in ("weight", "bias"):
            getattr(merged.proj, part).copy_(torch.cat([getattr(getattr(separate, n), part) for n in forms.LADDER]))
        if output:
            merged.output_proj.load_state_dict(separate.output_proj.state_dict())
    return merged


def merging():
    torch.manual_seed(0)
    print("V1 and V2 with the same numbers, largest |difference| of outputs; forward time of the projection alone, both ways")
    print("  B, T, E             difference    separate ms   merged ms   separate/merged")
    for batch, length, width in (
        (3, 2, 4),
        (2, 10, 768),
        (3, 2, 128),
        (1, 16, 128),
        (1, 64, 512),
        (8, 128, 512),
        (16, 100, 512),
        (4, 512, 768),
    ):
        separate = forms.make("v1", width)
        merged = merged_from(separate, width, False)
        x = torch.rand(batch, length, width)
        with torch.no_grad():
            difference = (separate(x)[0] - merged(x)[0]).abs().max().item()
            apart = milliseconds(lambda: separate.project(x))
            together = milliseconds(lambda: merged.project(x))
        print(f"  {(batch, length, width)!s:18} {difference:11.1e} {apart:13.4f} {together:11.4f} {apart / together:13.2f}")
    print(
        "V1 = V2 up to rounding. Merging saves calls: it shows where the products are small and nothing where they are large."
    )


def folding():
    torch.manual_seed(0)
    width = 64
    full = forms.make("v4", width).double()
    folded = copy.deepcopy(full)
    with torch.no_grad():
        w_o, b_o = full.output_proj.weight, full.output_proj.bias
        folded.value_proj.weight.copy_(w_o @ full.value_proj.weight)
        folded.value_proj.bias.copy_(w_o @ full.value_proj.bias + b_o)
        folded.output_name = None
        x = torch.randn(4, 20, width, dtype=torch.float64)
        print(
            f"one head: W_v <- W_o W_v, b_v <- W_o b_v + b_o, no output projection: difference "
            f"{(full(x)[0] - folded(x)[0]).abs().max().item():.1e} (f64)"
        )
        factors = torch.from_numpy(philox.weight_factors(4, 1, 20, 20, 0.1, 1))
        drift = (full(x, weight_factors=factors)[0] - folded(x, weight_factors=factors)[0]).abs().max().item()
        print(f"the same in training with dropout 0.1 on the weights: difference {drift:.1e}: b_o has to stay outside then")
    heads, head_dim = 8, width // 8
    print(
        f"{heads} heads: head h folds to W_o[:, h] W_v[h], a full {width} x {width} matrix of rank {head_dim} for each head: "
        f"{heads * width * width} numbers instead of {2 * width * width}"
    )
    print("So W_o adds nothing to one head without dropout, and in many heads it is what keeps the values small.")


def marker_batch(batch, length, values):
    """Ids with two marked tokens; every position must name the value at marker A and the value at marker B."""
    ids, places = torch.randint(values, (batch, length)), torch.rand(batch, length).argsort(1)[:, :2]
    target = ids.gather(1, places)[:, None].expand(-1, length, -1)
    return ids.scatter_add(1, places, torch.tensor([values, 2 * values]).expand(batch, 2)), target


def previous_batch(batch, length, values):
    """Random ids; position i must name the ids at i-1 and at i-2 (0 before the start)."""
    ids = torch.randint(values, (batch, length))
    padded = nn.functional.pad(ids, (2, 0))
    return ids, torch.stack([padded[:, 1:-1], padded[:, :-2]], -1)


def trained_share(draw, count, seed, steps=700, length=8, values=4, width=16):
    """Share of positions where both answers are right, after training."""
    torch.manual_seed(seed)
    token, place, head = nn.Embedding(3 * values, width), nn.Embedding(length, width), nn.Linear(width, 2 * values)
    layer = forms.make("mha", width, heads=count)
    optimiser = torch.optim.Adam([p for m in (token, place, layer, head) for p in m.parameters()], lr=5e-3)
    for _ in range(steps):
        ids, target = draw(32, length, values)
        logits = head(layer(token(ids) + place.weight)[0]).unflatten(-1, (2, values))
        loss = cross_entropy(logits.flatten(0, 2), target.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ids, target = draw(1000, length, values)
    with torch.no_grad():
        logits = head(layer(token(ids) + place.weight)[0]).unflatten(-1, (2, values))
    return (logits.argmax(-1) == target).all(-1).double().mean().item()


def heads():
    print("two answers a position; 8 tokens, width 16 in all, same parameter count, 700 steps; share with both right, 2 seeds")
    for name, draw in (("the values at markers A and B", marker_batch), ("the tokens at i-1 and i-2", previous_batch)):
        for count in (1, 4):
            runs = [trained_share(draw, count, seed) for seed in range(2)]
            print(f"  {name:30} {count} head(s): {' '.join(f'{run:.3f}' for run in runs)}", flush=True)
    print(
        "Where the two values are marked, one row that mixes both is enough. Where only the place tells them apart, one "
        "softmax "
        "mixes what several heads keep apart."
    )


def variance():
    print(
        "variance of q.k, and of q.k/sqrt(D), by D; mean largest weight of 64 keys and sum w(1-w), without and with the scale"
    )
    print("  D        randn: var      /D    Linear(randn): var     /D     max w    w(1-w)   | scaled: max w    w(1-w)")
    torch.manual_seed(0)
    for width in (4, 16, 64, 256, 1024, 4096):
        q, k = torch.randn(64, width), torch.randn(64, width)
        x = torch.randn(64, width)
        with torch.no_grad():
            linear = nn.Linear(width, width)(x) @ nn.Linear(width, width)(x).T
        scores = q @ k.T
        columns = []
        for weights in (scores.softmax(-1), (scores / math.sqrt(width)).softmax(-1)):
            columns += [weights.amax(-1).mean().item(), (weights * (1 - weights)).sum(-1).mean().item()]
        print(
            f"  {width:5} {scores.var().item():12.1f} {scores.var().item() / width:8.3f} {linear.var().item():14.2f} "
            f"{linear.var().item() / width:12.4f} {columns[0]:9.3f} {columns[1]:9.4f}   |{columns[2]:12.3f} {columns[3]:9.4f}"
        )
    print(
        "For unit-variance q and k the variance is D and the scale corrects it. nn.Linear starts with weights of variance "
        "1/(3E), "
        "so q and k have variance 1/3 + 1/(3E), q.k about D/9, and after the scale 1/9, not 1: the softmax starts flat."
    )


def itself():
    torch.manual_seed(0)
    print(
        "mean weight of a token on itself, 64 tokens of randn, 1/64 = 0.0156 is indifference; share of rows whose largest "
        "weight is their own"
    )
    for width in (8, 64, 512):
        x = torch.randn(200, 1, 64, width)
        rows = {}
        q, k, v = (torch.randn(200, 1, 64, width) for _ in range(3))
        rows["independent q, k (as the NumPy example)"] = forms.scaled_dot_product(q, k, v)[1]
        with torch.no_grad():
            rows["Linear projections of one x"] = forms.make("v1", width)(x[:, 0])[1]
        rows["q = k = x"] = forms.scaled_dot_product(x, x, x)[1]
        for name, weights in rows.items():
            diagonal = weights.diagonal(dim1=-2, dim2=-1)
            first = (weights.argmax(-1) == torch.arange(64)).double().mean().item()
            print(f"  D {width:4}  {name:42} {diagonal.mean().item():.4f}   largest on itself {first:.3f}")
    print("Random or freshly made projections give no preference for oneself; only q = k does.")


def printed():
    case = sdpa.five_tokens()
    with np.printoptions(precision=2, suppress=True, floatmode="fixed"):
        print("seed 0, 5 tokens, 8 numbers each; plain:")
        print(case.tensors["plain.weights"][0, 0])
        print("causal:")
        print(case.tensors["causal.weights"][0, 0])
    plain = case.tensors["plain.weights"][0, 0]
    print(f"where each row looks most: {plain.argmax(-1).tolist()}; own weights {np.diag(plain).round(2)}")
    print("The figures printed in the article (0.25 0.21 0.18 0.20 0.16, and 0.28 0.72) are not these.")
    for row, shown, causal in ((2, (0.13, 0.34), (0.28, 0.72)), (3, (0.19, 0.16, 0.41), (0.31, 0.26, 0.43))):
        cut = " ".join(f"{weight / sum(shown):.2f}" for weight in shown)
        print(
            f"row {row} of the article's plain table, cut to its prefix and divided by what is left: {cut}; its causal "
            f"table has " + " ".join(f"{weight:.2f}" for weight in causal)
        )


def masks():
    torch.manual_seed(0)
    scores = torch.tensor([[[[0.5, -1.0, 2.0, 0.1]] * 4]])
    fills = (("-inf", -math.inf), ("-1e20", -1e20), ("-1e9", -1e9), ("-1e4", -1e4), ("0 (a mistake)", 0.0))
    for name, row in (("1 1 1 0", [1, 1, 1, 0]), ("1 0 0 0", [1, 0, 0, 0]), ("0 0 0 0", [0, 0, 0, 0])):
        keep = torch.tensor(row, dtype=torch.bool)
        for word, fill in fills:
            weights = scores.masked_fill(~keep, fill).softmax(-1)[0, 0, 0]
            print(f"  mask {name}  fill {word:14} weights {' '.join(f'{w:.3f}' for w in weights.tolist())}")
    for dtype in (torch.float16, torch.bfloat16):
        try:
            filled = scores.to(dtype).masked_fill(torch.tensor([False, False, False, True]), -1e20)
            print(f"  -1e20 in {dtype}: {filled[0, 0, 0, 3].item()}")
        except RuntimeError as error:
            print(f"  -1e20 in {dtype}: {error}")
    try:
        torch.rand(3, 4, 4).masked_fill(torch.ones(3, 1, 4, 4) == 0, -1e20)
        print(
            f"  a (3,1,4,4) mask on (3,4,4) scores: "
            f"{tuple(torch.rand(3, 4, 4).masked_fill(torch.ones(3, 1, 4, 4) == 0, -1e20).shape)}, "
            "no error: every sequence meets every mask"
        )
    except RuntimeError as error:
        print(f"  a (3,1,4,4) mask on (3,4,4) scores, in place of nothing: {error}")
    out_mean, _ = forms.make("v3", 2, fill=-1e20)(torch.rand(1, 3, 2), torch.zeros(1, 1, 1, 3))
    out_nan, _ = forms.make("v3", 2, fill=-math.inf)(torch.rand(1, 3, 2), torch.zeros(1, 1, 1, 3))
    print(
        f"  a layer with an empty mask: -1e20 finite {bool(out_mean.isfinite().all())}, -inf finite "
        f"{bool(out_nan.isfinite().all())}"
    )
    print(
        "Where a row has a key left, every fill far below the scores gives the same weights. In an empty row a finite fill "
        "averages over all keys, the hidden ones too, and -inf gives NaN."
    )


def experiments():
    torch.manual_seed(0)
    length, width = 6, 8
    q, k, v = (torch.randn(1, 1, length, width, dtype=torch.float64) for _ in range(3))
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    for word, keep in (("no mask", None), ("causal", causal)):
        same_q = forms.scaled_dot_product(q[:, :, :1].expand_as(q), k, v, keep, -math.inf)[1][0, 0]
        same_k = forms.scaled_dot_product(q, k[:, :, :1].expand_as(k), v, keep, -math.inf)[1][0, 0]
        zero_v = forms.scaled_dot_product(q, k, torch.zeros_like(v), keep, -math.inf)[0]
        rows = (same_q - same_q[-1]).abs().max().item()
        prefix = max(
            (same_q[i, : i + 1] - same_q[-1, : i + 1] / same_q[-1, : i + 1].sum()).abs().max().item() for i in range(length)
        )
        uniform = (same_k - 1 / length).abs().max().item()
        steps = (same_k.diagonal() - 1 / torch.arange(1, length + 1).double()).abs().max().item()
        print(
            f"  {word:8}: same q: rows differ by {rows:.1e}, from the last row renormalised over the prefix by {prefix:.1e}; "
            f"same k: from 1/T by {uniform:.1e}, diagonal from 1/(i+1) by {steps:.1e}; v = 0: |out| "
            f"{zero_v.abs().max().item():.1e}"
        )
    constant = torch.einsum("bhid,bhjd->bhij", q, k[:, :, :1].expand_as(k))[0, 0]
    print(
        f"  same k: scores vary by {constant.std(-1).max().item():.1e} within a row and {constant.std(0).max().item():.2f} "
        f"within "
        "a column: it is the columns that are equal to one another, each row is constant"
    )
    print(
        "  indexing: Q[0:1] of a [B, T, D] tensor takes the first sequence, not the first token; Q[:, 0:1] is meant. For the "
        "NumPy-like [T, D] of the article it is right."
    )


def toy():
    alphabet, data = lm.text_ids()
    ids = torch.tensor([[alphabet.index(c) for c in "abababab"]])
    print("  seed   final   last 50   self  previous  first  same   rows with previous > 1/2")
    means, shares = [], []
    for seed in range(12):
        torch.manual_seed(seed)
        model = lm.PlainModel(len(alphabet))
        losses = lm.train(model, (lm.draw_windows(data) for _ in range(800)))
        with torch.no_grad():
            weights = model(ids)[1][0, 0]
        rows = range(1, ids.shape[1])
        own = statistics.mean(weights[i, i].item() for i in rows)
        previous = [weights[i, i - 1].item() for i in rows]
        first = statistics.mean(weights[i, 0].item() for i in rows)
        same = statistics.mean(weights[i, : i + 1][ids[0, : i + 1] == ids[0, i]].sum().item() for i in rows)
        means.append(statistics.mean(losses[-50:]))
        shares.append(statistics.mean(previous))
        print(
            f"  {seed:4} {losses[-1]:7.3f} {means[-1]:9.3f} {own:6.2f} {shares[-1]:9.2f} {first:6.2f} {same:5.2f} "
            f"{sum(p > 0.5 for p in previous):8} of 7"
        )
    print(
        f"last 50: {min(means):.3f} .. {max(means):.3f}; previous: {min(shares):.2f} .. {max(shares):.2f}. The general rule "
        "'look at the previous character' does not appear."
    )
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    ambiguous(data)


def ambiguous(data):
    """The best a model that knows the last n characters of the endless text can do."""
    text = data.tolist()
    for order in (1, 2, 4, 8, 16):
        counts = {}
        for at in range(order, len(text)):
            counts.setdefault(tuple(text[at - order : at]), {}).setdefault(text[at], 0)
            counts[tuple(text[at - order : at])][text[at]] += 1
        total = sum(sum(c.values()) for c in counts.values())
        entropy = -sum(n * math.log(n / sum(c.values())) for c in counts.values() for n in c.values()) / total
        print(f"  entropy of the next character given the last {order:2}: {entropy:.3f}")


def growth():
    torch.manual_seed(0)
    print("  T      naive ms   per T^2 (ns)   bytes of scores [1, 8, T, T] f32")
    for length in (128, 256, 512, 1024, 2048):
        q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
        with torch.no_grad():
            took = milliseconds(lambda: forms.scaled_dot_product(q, k, v), 0.1)
        print(f"  {length:5} {took:10.2f} {1e6 * took / length**2:13.2f} {4 * 8 * length**2:14}")
    print("Time and memory of the written-out form grow as T^2 once T is beyond a few hundred.")


def dropout_places():
    weights = torch.full((1, 1, 1, 1000), 1e-3, dtype=torch.float64)
    torch.manual_seed(0)
    sums = [nn.functional.dropout(weights, 0.1).sum().item() for _ in range(2000)]
    print(
        f"dropout 0.1 on the weights: a row of 1000 equal weights then sums to {statistics.mean(sums):.4f} +- "
        f"{statistics.stdev(sums):.4f} "
        "(1 only on average)"
    )
    few = torch.full((1, 1, 1, 5), 0.2, dtype=torch.float64)
    sums = [nn.functional.dropout(few, 0.1).sum().item() for _ in range(5000)]
    print(f"a row of 5: {min(sums):.2f} .. {max(sums):.2f}")
    print(
        "V3, V4 and 002's layers apply it to the weights, 003's text names a second one on the output; a module that "
        "returns the "
        "weights after dropout (002) does not return a distribution."
    )


def splitting():
    x = torch.arange(2 * 3 * 4).reshape(1, 6, 4)  # [B, T, E], 2 heads of 2
    right, wrong = x.view(1, 6, 2, 2).transpose(1, 2), x.view(1, 2, 6, 2)
    print(f"view then transpose: head 0 holds {right[0, 0].tolist()}")
    print(f"view alone:          head 0 holds {wrong[0, 0].tolist()}")
    print(
        f"elements in another place: {(right != wrong).sum().item()} of {x.numel()}; the wrong head 0 mixes the features of "
        "the first three tokens"
    )


SECTIONS = {
    "merging": merging,
    "folding": folding,
    "heads": heads,
    "variance": variance,
    "itself": itself,
    "printed": printed,
    "masks": masks,
    "experiments": experiments,
    "dropout": dropout_places,
    "splitting": splitting,
    "growth": growth,
    "toy": toy,
    **article_claims.SECTIONS,
}


def main():
    wanted = sys.argv[1:] or list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        sys.exit(f"no section is called {' '.join(unknown)}: there are {' '.join(SECTIONS)}")
    torch.set_num_threads(1)  # these sizes gain nothing from more, and lose much on a shared machine
    print(f"torch {torch.__version__}, numpy {np.__version__}, one thread")
    for name in wanted:
        print(f"\n== {name}", flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
