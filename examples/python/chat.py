"""A long prompt, then an answer token by token: `python chat.py [MODEL]`.

MODEL: a folder or name of a causal language model with a tokenizer; without one a small Llama with random weights.
"""

import sys
import time

import qkv.transformers
import torch
import transformers

torch.manual_seed(0)
qkv.transformers.register()
if len(sys.argv) > 1:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
    inputs = tokenizer("Attention is a weighted mean. " * 64 + "In short:", return_tensors="pt")
else:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=None)).eval()
    inputs = {"input_ids": torch.randint(0, 1000, (1, 512))}
inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])


def answer(name: str, implementation: str, **options: object) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    start = time.perf_counter()
    made = model.generate(**inputs, max_new_tokens=24, do_sample=False, pad_token_id=0, **options)
    print(f"{name:26} {1000 * (time.perf_counter() - start):7.1f} ms")
    return made


answers = [answer(way, way) for way in ("eager", "sdpa", "qkv")]
answers.append(answer("qkv, growing_cache", "qkv", past_key_values=qkv.transformers.growing_cache(model.config)))
print("the same tokens:", all(torch.equal(one, answers[0]) for one in answers))
if len(sys.argv) > 1:
    print(tokenizer.decode(answers[-1][0, inputs["input_ids"].shape[1] :]))
