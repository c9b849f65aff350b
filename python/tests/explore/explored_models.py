"""Small models of real architectures that captures are taken of (support_transformers.py), and what their eager attention gives."""

import contextlib
import functools
from typing import Any

import numpy as np
import support_transformers
import torch
from support_torch import everything_in
from support_transformers import EXPLORED, tf

MODELS = ["bert", "gpt2", "llama", "qwen3", "gemma2", "gpt-oss", "vit", *EXPLORED]
IMAGES = {"vit": 1, "dinov2": 5}  # tokens before the patches
T, PATCHES = 23, 9
model_of = functools.partial(support_transformers.model_of, scale=0.3)


def inputs_of(name: str, *, padded: bool = False) -> dict[str, Any]:
    """Of two sequences; padded: the first on the left, where the model reads text."""
    return support_transformers.inputs_of(name, "left" if padded else "none", T)


def tokenizer_of(words: list[str], **special: str) -> Any:
    """A tokenizer of whole words, numbered as they stand here."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def eager_weights(name: str, inputs: dict[str, Any], dtype: Any = torch.float64) -> dict[str, list[np.ndarray]]:
    """[B, H, Tq, Tk] of every layer, by stack: "self" (the only one, or the encoder's), "decoder", "cross"."""
    model = model_of(name, dtype)
    model.set_attn_implementation("eager")
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    with torch.no_grad(), everything_in(dtype) if dtype == torch.float64 else contextlib.nullcontext():
        out = model(**inputs, output_attentions=True)
    parts = {"self": "attentions"}
    if name in ("t5", "whisper"):
        parts = {"self": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {part: [w.double().numpy() for w in getattr(out, attribute)] for part, attribute in parts.items()}
