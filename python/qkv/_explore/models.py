"""Models and inputs of `python -m qkv explore`: which class of transformers loads one, what it reads, and a toy model of qkv train. Not:
the command line (command.py).
"""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .captures import Captures
from .file import Run
from .layer import Wanted, capture_call


class Refused(Exception):
    """Wrong usage or input: one line, exit code 2."""


_ANSWER = 24  # tokens that an encoder-decoder generates where nothing else is asked for


def explore(options: Any, models: Sequence[str]) -> Captures:
    """Every model on every input, one run each."""
    runs: list[Run] = []
    names: Any = None
    for model in models:
        toy = Path(model).is_file()
        if toy:
            _plain(options)
        captures = [_toy(model, text) for text in _texts(options)] if toy else _hugging_face(model, options)
        for one in captures:
            for run in one.runs:
                run.name = Path(model).name or model
            runs += one.runs
            names = one.names or names
    return Captures(runs, title=" and ".join(_name(model) for model in models), names=names)


def _name(model: str) -> str:
    """What a model is called: of a folder its name, with what config.json says of its kind."""
    name, config = Path(model).name or model, Path(model) / "config.json"
    known = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    kind = (known.get("architectures") or [known.get("model_type")])[0]
    return f"{name} ({kind})" if kind else name


def _texts(options: Any) -> list[str]:
    texts = list(options.text)
    for path in options.file:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise Refused(f"--file {path} is not a text in UTF-8") from None
    return texts


# A model of qkv train.


def _plain(options: Any) -> None:
    given = [name for name in ("exact", "relevance", "generate", "answer", "image", "audio", "first") if getattr(options, name)]
    if given:
        raise Refused(f"--{given[0]} is for models of transformers: a file that qkv train wrote reads --text or --file")


def _toy(path: str, text: str) -> Captures:
    from ..lm import AttentionLM

    model = AttentionLM.from_file(path)
    if not text:
        raise Refused("--text must not be empty")
    if len(text) > model.config["context"]:
        raise Refused(f"the text has {len(text)} characters, {path} reads at most {model.config['context']}: shorten it")
    weights = np.asarray(model.attention_map(text, layer=None).weights, np.float32)
    weights = weights[None] if weights.ndim == 3 else weights  # [layers, heads, T, T]
    ids = np.array([[ord(character) for character in text]])
    causal = model.config["task"] != "masked"
    layers = []
    for index, layer in enumerate(weights):
        # Queries whose scores are the logarithms of their weights: the same statistics as those of any other model.
        q = np.maximum(np.log(np.maximum(layer, 1e-30)), -60)[None]
        k = np.broadcast_to(np.eye(len(text), dtype=np.float32), q.shape).copy()
        made = capture_call(index, f"layer.{index}", q, k, k, None, None, None, {"scale": 1.0, "causal": causal}, Wanted(ids=ids))
        made.pages = [({"scale": 1.0, "refused": "q and k of a toy model are not kept"}, {})]
        layers.append(made)
    return Captures([Run(layers, ids={"": ids})], names=chr)


# Models of transformers.


def _hugging_face(name: str, options: Any) -> list[Captures]:
    from .._needs import need

    need("qkv explore", "transformers", "torch")
    if not Path(name).exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise Refused(f"there is no folder {name}")
    import huggingface_hub
    import transformers as tf

    huggingface_hub.logging.set_verbosity_error()

    tf.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    config = _loaded(tf.AutoConfig, name)
    if options.audio or getattr(config, "num_mel_bins", None):
        return _audio(tf, name, config, options)
    if options.image:
        return _image(tf, name, config, options)
    if getattr(config, "vocab_size", None) is None and not hasattr(config, "text_config"):
        raise Refused(f"{name} ({config.model_type}) reads no text: give --image F")
    tokenizer = _loaded(tf.AutoTokenizer, name)
    if getattr(config, "is_encoder_decoder", False):
        model = _loaded(tf.AutoModelForSeq2SeqLM, name)
        return [_both(model, tokenizer, dict(_tokens(tokenizer, text)), options) for text in _texts(options)]
    masked = any(kind.endswith("ForMaskedLM") for kind in getattr(config, "architectures", None) or ())
    heads = tf.AutoModelForMaskedLM if masked else tf.AutoModelForCausalLM
    model = _loaded(heads if options.generate or options.relevance else tf.AutoModel, name)
    most = getattr(config, "max_position_embeddings", None)
    captures = []
    for text in _texts(options):
        inputs = _tokens(tokenizer, text)
        length = inputs["input_ids"].shape[1]
        learned = getattr(config, "model_type", "") in ("bert", "gpt2", "roberta", "distilbert", "electra", "opt")
        if most is not None and length + (options.generate or 0) > most and learned:
            raise Refused(f"the text has {length} tokens, {name} reads at most {most}: shorten it")
        generate = {"max_new_tokens": options.generate, "do_sample": False} if options.generate else None
        captures.append(_captured(model, inputs, options, tokenizer=tokenizer, generate=generate))
    return captures


def _loaded(kind: Any, name: str) -> Any:
    try:
        made = kind.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Refused(f"{kind.__name__} cannot load {name}: {why}") from None
    return made.eval() if hasattr(made, "eval") else made


def _tokens(tokenizer: Any, text: str) -> dict[str, Any]:
    inputs = dict(tokenizer(text, return_tensors="pt"))
    if not inputs["input_ids"].shape[1]:
        raise Refused("--text must not be empty")
    return inputs


def _captured(model: Any, inputs: Any, options: Any, **more: Any) -> Captures:
    from ..transformers import capture_attention

    relevance = _target(options.relevance, more.get("tokenizer"))
    return capture_attention(
        model, inputs, exact=options.exact, first=options.first, relevance=relevance, progress=not options.quiet, **more
    )


def _target(token: str | None, tokenizer: Any) -> int | str | None:
    """The number of the token that --relevance names."""
    if token is None or token == "predicted":
        return token
    if tokenizer is None:
        if token.isdigit():
            return int(token)
        raise Refused(f"--relevance must be the number of a class, or predicted: got {token!r}")
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise Refused(f"--relevance must be one token: {token!r} is {len(ids)}; a space in front may belong to it")
    return int(ids[0])


def _both(model: Any, tokenizer: Any, inputs: dict[str, Any], options: Any) -> Captures:
    """An encoder-decoder: the decoder reads --answer, or what it generates itself."""
    import torch

    if options.answer is None and options.relevance:
        raise Refused("--relevance of an encoder-decoder needs --answer: what its decoder reads")
    if options.answer is None:
        generate = {"max_new_tokens": options.generate or _ANSWER, "do_sample": False, "num_beams": 1}
        return _captured(model, inputs, options, tokenizer=tokenizer, generate=generate)
    start = model.generation_config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    answer = tokenizer(text_target=options.answer)["input_ids"]
    answer = answer[:-1] if answer and answer[-1] == tokenizer.eos_token_id else answer  # the end is written, never read
    decoder = torch.tensor([answer if answer[:1] == [start] else [start, *answer]])
    return _captured(model, {**inputs, "decoder_input_ids": decoder}, options, tokenizer=tokenizer)


def _image(tf: Any, name: str, config: Any, options: Any) -> list[Captures]:
    import torch

    model = _loaded(tf.AutoModelForImageClassification if options.relevance else tf.AutoModel, name)
    captures = []
    for path in options.image:
        if Path(path).suffix == ".npy":
            pixels = torch.from_numpy(np.ascontiguousarray(np.load(path), dtype=np.float32))[None]
            if pixels.ndim != 4 or pixels.shape[1] != 3:
                raise Refused(f"--image {path} must hold pixels [3, height, width]: got {list(pixels.shape[1:])}")
        else:
            pixels = _picture(tf, name, path)
        captures.append(_captured(model, {"pixel_values": pixels}, options))
    return captures


def _picture(tf: Any, name: str, path: str) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise Refused("pictures need Pillow: pip install pillow; or pass pixels [3, height, width] as .npy") from None
    processor = _loaded(tf.AutoImageProcessor, name)
    try:
        picture = Image.open(path).convert("RGB")
    except UnidentifiedImageError:
        raise Refused(f"--image {path} is no picture that Pillow reads") from None
    return processor(images=picture, return_tensors="pt")["pixel_values"]


def _audio(tf: Any, name: str, config: Any, options: Any) -> list[Captures]:
    if not options.audio:
        raise Refused(f"{name} ({config.model_type}) reads sound: give --audio F")
    model, processor = _loaded(tf.AutoModelForSpeechSeq2Seq, name), _loaded(tf.AutoProcessor, name)
    captures = []
    most = getattr(processor.feature_extractor, "n_samples", None)
    for path in options.audio:
        samples = _sound(path)
        if most is not None and len(samples) > most:
            raise Refused(f"--audio {path} has {len(samples) / 16000:.1f} s, {name} hears {most / 16000:g} s at once: cut it")
        features = processor(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
        captures.append(_both(model, processor.tokenizer, {"input_features": features}, options))
    return captures


def _sound(path: str) -> np.ndarray:
    if Path(path).suffix == ".npy":
        return np.load(path).astype(np.float32).ravel()
    try:
        with wave.open(path) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") if width == 2 else None
    except (wave.Error, EOFError) as error:
        raise Refused(f"--audio {path} is no .wav: {error}") from None
    if rate != 16000 or samples is None:
        raise Refused(
            f"--audio {path} must have 16 bits at 16,000 Hz: got {8 * width} bits at {rate:,} Hz; sox in.wav -r 16000 -b 16 out.wav"
        )
    return samples.reshape(-1, channels).mean(1).astype(np.float32) / 32768
