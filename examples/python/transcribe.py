"""Speech to text with Whisper: `python transcribe.py [MODEL sound.npy]`, sound.npy float32 at 16,000 numbers a second.

Without arguments a small Whisper with random weights listens to a tone.
"""

import sys
import time

import numpy as np
import qkv.transformers
import torch
import transformers

torch.manual_seed(0)
qkv.transformers.register()
transformers.logging.set_verbosity_error()
if len(sys.argv) == 2:
    sys.exit("transcribe.py: a MODEL needs a sound: python transcribe.py MODEL sound.npy")
if len(sys.argv) > 2:
    processor = transformers.WhisperProcessor.from_pretrained(sys.argv[1])
    model = transformers.WhisperForConditionalGeneration.from_pretrained(sys.argv[1]).eval()
    heard = processor(np.load(sys.argv[2]), sampling_rate=16000, return_tensors="pt").input_features
else:
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    sizes = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 100, "num_mel_bins": 40}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**layers, **tokens, **sizes)).eval()
    heard = torch.sin(torch.arange(3000) * 0.05).repeat(1, 40, 1)  # [1, mel bins, 30 s]


def transcribed(way: str) -> torch.Tensor:
    model.set_attn_implementation(way)
    start = time.perf_counter()
    made = model.generate(heard, max_new_tokens=12, do_sample=False)
    print(f"{way:8} {1000 * (time.perf_counter() - start):7.1f} ms")
    return made


texts = [transcribed(way) for way in ("eager", "sdpa", "qkv")]
print("the same tokens:", all(torch.equal(text, texts[0]) for text in texts))
if len(sys.argv) > 2:
    print(processor.batch_decode(texts[-1], skip_special_tokens=True)[0])
