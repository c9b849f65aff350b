"""Five minutes with qkv: attention, masks, weights, gradients, a layer, a model that learns, and what it attends to.

Written like a notebook: each "# %%" is a cell (VS Code and Jupyter run them one by one). Needs NumPy; draws pictures with
matplotlib if it is installed. Runs in seconds:  python examples/python/five_minute_tour.py [folder for pictures]
"""

# %% Attention: softmax(q k^T / sqrt(d)) v. B sequences, H heads, T tokens, d numbers each.
import sys
from pathlib import Path

import numpy as np
import qkv

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((2, 4, 10, 16), dtype=np.float32) for _ in range(3))  # [B, H, T, d]
out = qkv.attention(q, k, v, causal=True)
print("out", out.shape, out.dtype, "on", qkv.num_threads(), "threads,", qkv.isa())

# %% The same by hand, for one query of one head.
scores = k[0, 0, :4] @ q[0, 0, 3] / np.sqrt(16)  # query 3 may attend to keys 0 to 3
weights = np.exp(scores) / np.exp(scores).sum()
print("by hand", (weights @ v[0, 0, :4])[:3], " qkv", out[0, 0, 3, :3])
assert np.allclose(weights @ v[0, 0, :4], out[0, 0, 3], atol=1e-6)

# %% Masks are values: combine them with & and |; they draw themselves.
mask = qkv.Mask.causal() & (qkv.Mask.sliding(3) | qkv.Mask.first(1))  # the last three keys, and always the first
print(mask)
out = qkv.attention(q, k, v, mask=mask)

# %% Weights on request; capturing them never changes the output.
again, weights = qkv.attention(q, k, v, mask=mask, weights="all")
assert np.array_equal(again, out)
assert np.allclose(weights.sum(-1), 1, atol=1e-6)
print(qkv.plot(weights[0, 0], title="one head, in percent"))

# %% Gradients: attention has a backward, which stores nothing of size T x T.
out, lse = qkv.attention(q, k, v, mask=mask, return_lse=True)
dout = np.ones_like(out)
gradients = qkv.attention_backward(dout, q, k, v, out, lse, mask=mask)
step = 1e-2 * random.standard_normal(q.shape, dtype=np.float32)
difference = float((qkv.attention(q + step, k, v, mask=mask) - qkv.attention(q - step, k, v, mask=mask)).sum()) / 2
print("along a step of q: by difference", round(difference, 4), " by gradient", round(float((gradients.dq * step).sum()), 4))

# %% A layer has parameters: PyTorch's names and layouts, from and to safetensors.
layer = qkv.nn.MultiHeadAttention(embed_dim=32, num_heads=4)
x = random.standard_normal((2, 10, 32), dtype=np.float32)
saved = qkv.nn.Saved()
y, weights = layer(x, key_lengths=[10, 7], weights="all", saved=saved)  # the second sequence has 7 tokens
dx = layer.backward(np.ones_like(y), saved)
print(layer.parameter_count, "parameters:", ", ".join(f"{name} {list(p.shape)}" for name, p in layer.state_dict().items()))
assert not weights[1, :, :, 7:].any()

# %% A small language model, trained here and now: one layer of attention over characters.
model = qkv.AttentionLM()
print(repr(model.text[:36]), "100 times;", model)
losses = model.fit(steps=800)
print(f"loss {losses[0]:.2f} -> {np.mean(losses[-50:]):.2f};  continued: {model.generate('ab', 34)!r}")

# %% Its attention: row i shows the characters that character i attends to.
weights = model.attention_map("abababab")
print(weights)
share = model.shares("abababab")[0]
print(", ".join(f"{kind} {100 * share[kind]['mean']:.0f} %" for kind in ("self", "previous", "first", "same")))

# %% Pictures: SVG, one offline page, with matplotlib PNG and PDF; a notebook displays `weights` directly.
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
if folder is not None:
    picture = weights.plot()
    for ending in ("svg", "html") if picture.figure is None else ("svg", "html", "png", "pdf"):
        picture.save(folder / f"map.{ending}")
    print("wrote", ", ".join(sorted(p.name for p in folder.iterdir())))
