"""Models and inputs of `python -m qkv explore`: which class of transformers loads one, and what it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .captures import Captures
from .loading import Refused, loaded

if TYPE_CHECKING:
    from .explored import Explored


_ANSWER = 24  # tokens that an encoder-decoder generates where nothing else is asked for


def explored(options: Any, models: Sequence[str]) -> list[Explored]:
    """Every model on every input."""
    made: list[Explored] = []
    instead = options.instead or "zero"
    for name in models:
        if Path(name).is_file():
            raise Refused(f"{name} is a file, MODEL a folder or name; of a model that qkv train wrote, qkv map draws the page")
    found = [(name, *loaded(name)) for name in models]
    if options.answer is not None and not any(getattr(model.config, "is_encoder_decoder", False) for _, model, _ in found):
        raise Refused(f"--answer is what an encoder-decoder's decoder reads: {' and '.join(models)} has no encoder beside a decoder")
    for name, model, tokenizer in found:
        for one in _hugging_face(name, model, tokenizer, options):
            one.whole.name = _title(name)[0].rsplit("/", 1)[-1]
            for heads in options.ablate:
                if heads == "all":
                    one.every(instead)
                else:
                    one.cut(heads, instead)
            if options.patch:
                one.cut(options.patch, "patch", other=options.source)
            made.append(one)
    return made


def captures_of(made: Sequence[Explored], models: Sequence[str]) -> Captures:
    """All runs in one page."""
    title = " and ".join(f"{name} ({kind})" if kind else name for name, kind in map(_title, models))
    names = next((one.captures.names for one in reversed(made) if one.captures.names), None)
    return Captures([run for one in made for run in one.captures.runs], title=title, names=names)


def _title(model: str) -> tuple[str, str]:
    """A model's name, of a folder as its config.json says or its own, and the kind."""
    config = Path(model) / "config.json"
    known = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    kind = (known.get("architectures") or [known.get("model_type")])[0]
    return str(known.get("_name_or_path") or (Path(model).name if config.is_file() else model)), kind or ""


def _texts(options: Any) -> list[str]:
    texts = list(options.text)
    for path in options.file:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise Refused(f"--file {path} is not a text in UTF-8") from None
    return texts


def _hugging_face(name: str, model: Any, tokenizer: Any, options: Any) -> Iterator[Explored]:
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        for text in _texts(options):
            yield _both(model, tokenizer, dict(_tokens(tokenizer, text)), options)
        return
    if options.generate and not model.can_generate():
        raise Refused(f"--generate: {name} ({type(model).__name__}) generates nothing")
    most = getattr(config, "max_position_embeddings", None)
    for text in _texts(options):
        inputs = _tokens(tokenizer, text)
        length = inputs["input_ids"].shape[1]
        learned = getattr(config, "model_type", "") in ("bert", "gpt2", "roberta", "distilbert", "electra", "opt")
        if most is not None and length + (options.generate or 0) > most and learned:
            raise Refused(f"the text has {length} tokens, {name} reads at most {most}: shorten it")
        generate = {"max_new_tokens": options.generate, "do_sample": False, "num_beams": 1} if options.generate else None
        yield _captured(model, inputs, options, tokenizer=tokenizer, generate=generate)


def _tokens(tokenizer: Any, text: str) -> dict[str, Any]:
    inputs = dict(tokenizer(text, return_tensors="pt"))
    if not inputs["input_ids"].shape[1]:
        raise Refused("--text must not be empty")
    return inputs


def _captured(model: Any, inputs: Any, options: Any, **more: Any) -> Explored:
    from .explored import Explored

    more |= {"exact": options.exact, "first": options.first, "behaviour": options.behaviour}
    return Explored(model, inputs, progress=not options.quiet, **more)


def _both(model: Any, tokenizer: Any, inputs: dict[str, Any], options: Any) -> Explored:
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
