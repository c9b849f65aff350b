"""A cross-encoder that scores (question, passage) pairs without padding: `python rerank.py [MODEL]`.

MODEL: a folder or name of a reranker, such as cross-encoder/ms-marco-MiniLM-L6-v2; without one random weights and random tokens.
"""

import sys
import time

import qkv.transformers
import torch
import transformers

torch.manual_seed(0)
question = "what does attention compute?"
passages = ["A weighted mean of values. " * n for n in (1, 4, 2, 12, 1, 7, 3, 1)]
if len(sys.argv) > 1:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
    batch = tokenizer([question] * len(passages), passages, padding=True, truncation=True, return_tensors="pt")
else:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=1)).eval()
    lengths = torch.tensor([len(f"{question} {passage}".split()) for passage in passages])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    batch = {"input_ids": torch.randint(1, 1000, mask.shape) * mask, "attention_mask": mask.long()}


def scores(name: str) -> torch.Tensor:
    with torch.no_grad():
        model(**batch)
        start = time.perf_counter()
        made = model(**batch).logits[:, 0]
    print(f"{name:16} {1000 * (time.perf_counter() - start):6.1f} ms  best first: {made.argsort(descending=True).tolist()}")
    return made


padded = scores("padded")
qkv.transformers.optimize(qkv.transformers.unpad(model))
assert torch.allclose(scores("without padding"), padded, atol=1e-4)
