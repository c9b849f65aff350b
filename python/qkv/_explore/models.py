"""Models and inputs of `python -m qkv explore`: which class of transformers loads one, and what it reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .captures import Captures
from .file import Run


class Refused(Exception):
    """Wrong usage or input: one line, exit code 2."""


_ANSWER = 24  # tokens that an encoder-decoder generates where nothing else is asked for


def explore(options: Any, models: Sequence[str]) -> Captures:
    """Every model on every input, one run each."""
    runs: list[Run] = []
    names: Any = None
    for model in models:
        if Path(model).is_file():
            raise Refused(f"{model} is a file, MODEL a folder or name; of a model that qkv train wrote, qkv map draws the page")
        for one in _hugging_face(model, options):
            for run in one.runs:
                run.name = Path(model).name or model
            runs += one.runs
            names = one.names or names
    return Captures(runs, title=" and ".join(_name(model) for model in models), names=names)


def _name(model: str) -> str:
    """A model's title: of a folder its name, with what config.json says of its kind."""
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
    if getattr(config, "vocab_size", None) is None and not hasattr(config, "text_config"):
        raise Refused(f"{name} ({config.model_type}) reads no text: qkv.transformers.capture_attention takes its own inputs")
    tokenizer = _loaded(tf.AutoTokenizer, name)
    if getattr(config, "is_encoder_decoder", False):
        model = _loaded(tf.AutoModelForSeq2SeqLM, name)
        return [_both(model, tokenizer, dict(_tokens(tokenizer, text)), options) for text in _texts(options)]
    masked = any(kind.endswith("ForMaskedLM") for kind in getattr(config, "architectures", None) or ())
    heads = tf.AutoModelForMaskedLM if masked else tf.AutoModelForCausalLM
    model = _loaded(heads if options.generate else tf.AutoModel, name)
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

    return capture_attention(model, inputs, exact=options.exact, first=options.first, progress=not options.quiet, **more)


def _both(model: Any, tokenizer: Any, inputs: dict[str, Any], options: Any) -> Captures:
    """An encoder-decoder: the decoder reads --answer, or what it generates itself."""
    import torch

    if options.answer is None:
        generate = {"max_new_tokens": options.generate or _ANSWER, "do_sample": False, "num_beams": 1}
        return _captured(model, inputs, options, tokenizer=tokenizer, generate=generate)
    start = model.generation_config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    answer = tokenizer(text_target=options.answer)["input_ids"]
    answer = answer[:-1] if answer and answer[-1] == tokenizer.eos_token_id else answer  # the end is written, never read
    decoder = torch.tensor([answer if answer[:1] == [start] else [start, *answer]])
    return _captured(model, {**inputs, "decoder_input_ids": decoder}, options, tokenizer=tokenizer)
