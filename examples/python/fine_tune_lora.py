"""LoRA fine-tuning with peft, sequences flattened into one row: `python fine_tune_lora.py [MODEL]`; needs peft.

MODEL: a folder or name of a causal language model; without one a small Llama with random weights. Random tokens either way.
"""

import sys
import time

import peft
import qkv.torch
import qkv.transformers
import torch
import transformers

torch.manual_seed(0)
qkv.transformers.register()
transformers.logging.set_verbosity_error()
if len(sys.argv) > 1:
    base = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
else:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
model = peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
texts = [torch.randint(0, base.config.vocab_size, (n,)) for n in (120, 30, 64, 200)]
longest = max(map(len, texts))
padded = torch.stack([torch.nn.functional.pad(t, (0, longest - len(t))) for t in texts])
mask = torch.stack([torch.arange(longest) < len(t) for t in texts])
rows = {"input_ids": padded, "attention_mask": mask.long(), "labels": padded.masked_fill(~mask, -100)}
positions = torch.cat([torch.arange(len(t)) for t in texts])[None]  # they begin again: texts do not see each other
flat = {"input_ids": torch.cat(texts)[None], "position_ids": positions, "use_cache": False}
flat["labels"] = flat["input_ids"].masked_fill(positions == 0, -100)


def step(name: str, implementation: str, batch: dict[str, object]) -> None:
    base.set_attn_implementation(implementation)
    for _ in range(2):
        start = time.perf_counter()
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
    print(f"{name:22} {1000 * (time.perf_counter() - start):7.1f} ms  loss {loss.item():.5f}")


step("eager, padded", "eager", rows)
step("SDPA, padded", "sdpa", rows)
step("qkv, padded", "qkv", rows)
step("qkv, flattened", "qkv", flat)
