"""Embeddings of texts of different lengths, with padding and without it: `python embed_texts.py [MODEL]`.

MODEL: a folder or name of sentence-transformers (which then must be installed); without one a small BERT with random weights.
"""

import functools
import sys
import time

import qkv.transformers
import torch
import transformers

torch.manual_seed(0)
lengths = torch.randint(8, 128, (32,)).tolist()
if len(sys.argv) > 1:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(sys.argv[1], device="cpu")
    texts = [" ".join(["attention"] * length) for length in lengths]
    embed = functools.partial(model.encode, texts, convert_to_tensor=True, batch_size=32)
else:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    batch = {"input_ids": torch.randint(1, 1000, mask.shape) * mask, "attention_mask": mask.long()}
    embed = torch.no_grad()(lambda: model(**batch).last_hidden_state.mul(mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def measured(name: str) -> torch.Tensor:
    embed()
    start = time.perf_counter()
    made = embed()
    print(f"{name:32} {1000 * (time.perf_counter() - start):7.1f} ms")
    return made


padded = measured("padded, PyTorch")
qkv.transformers.unpad(model)
measured("without padding")
qkv.transformers.optimize(model)
print("largest difference:", float((measured("without padding, qkv's linear") - padded).abs().max()))
