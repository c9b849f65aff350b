"""Attention maps of a Hugging Face model without output_attentions=True: statistics of every head, and a picture.

    pip install '.[transformers]' && python maps_from_hugging_face.py [map.svg]

A small GPT-2 with random weights, so nothing is downloaded; it is trained for a few seconds with qkv's backward. For weights
of your own: AutoModelForCausalLM.from_pretrained(name, attn_implementation="qkv") and a tokenizer's output as inputs.
"""

import sys

import qkv
import qkv.transformers
import torch
import transformers

qkv.transformers.register()
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
torch.set_num_threads(1)  # the model is tiny: threads would cost more than they save

text = "abababababab abc abc abc xyzxyzxyz" * 20
alphabet = sorted(set(text))
ids = torch.tensor([alphabet.index(c) for c in text])
config = transformers.GPT2Config(
    n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=len(alphabet), bos_token_id=None, eos_token_id=None,
    attn_implementation="qkv",
)  # fmt: skip
model = transformers.GPT2LMHeadModel(config)

# Forward and backward of training run on qkv, dropout too.
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(150):
    starts = torch.randint(len(ids) - 24, (16,)).tolist()
    batch = torch.stack([ids[start : start + 24] for start in starts])
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == 149:
        print(f"step {step:3d}  loss {loss.item():.3f}")

# One forward: what each head attends to. No layer makes anything of size T x T, at any length.
sample = "abababab abc xyzxyz"
inputs = torch.tensor([[alphabet.index(c) for c in sample]])
maps = qkv.transformers.capture_attention(model, inputs)
print(maps.table())

sharpest = max(maps.statistics(), key=lambda row: row["max"])
print(f"sharpest: layer {sharpest['layer']}, head {sharpest['head']}; on the key before it: {sharpest['previous']:.2f}")

# A Capture gives whole rows, the largest weights, sums over columns or coarse maps.
capture = qkv.Capture(heads=[sharpest["head"]], rows=[len(sample) - 1], top_k=3)
last = qkv.transformers.capture_attention(model, inputs, layers=[sharpest["layer"]], capture=capture)[sharpest["layer"]]
best = [
    f"{sample[int(k)]!r} at {int(k)}: {w:.2f}" for k, w in zip(last.top_keys[0, 0, -1], last.top_weights[0, 0, -1], strict=True)
]
print(f"the last character {sample[-1]!r} attends", ", ".join(best))

path = sys.argv[1] if len(sys.argv) > 1 else "map.svg"
maps.plot(layer=sharpest["layer"], tokens=list(sample), path=path, title=f"layer {sharpest['layer']}")
print("wrote", path)
