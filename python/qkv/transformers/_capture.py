"""Captures of every layer and head of a Hugging Face model while it runs. Not: the attention itself, pictures (qkv.plot), the page
(_explore).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._explore.captures import Captures
from .._explore.collector import Collector
from .._explore.file import Run
from .._explore.layer import Wanted
from .._progress import Progress
from ..capture import Capture
from ._attention import NAME, register
from ._observers import observed
from ._relevance import derived


class AttentionCapture(Captures):
    """All that capture_attention captured. outputs: what the model returned; tokens: bool [B, T], False = padding; None: not
    known."""

    def __init__(self, runs: list[Run], outputs: Any, tokens: np.ndarray | None, **options: Any) -> None:
        super().__init__(runs, **options)
        self.outputs, self.tokens = outputs, tokens


@contextlib.contextmanager
def _running_qkv(model: nn.Module) -> Iterator[None]:
    """The model in eval mode with attn_implementation="qkv"; both are restored afterwards."""
    register()
    configs = {id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        for module in training:
            module.training = True


def _image_of(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """First patch, height and width of the patches of a vision model's only input."""
    pixels, config = inputs.get("pixel_values"), getattr(model, "config", None)
    patch = getattr(config, "patch_size", None)
    if not isinstance(pixels, Tensor) or pixels.ndim != 4 or patch is None or "input_ids" in inputs:
        return None
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    prefix = 1 + int(getattr(config, "num_register_tokens", 0) or 0)
    return prefix, pixels.shape[-2] // int(rows), pixels.shape[-1] // int(columns)


def _sides(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Token numbers, and which are tokens, [B, T] by side."""
    ids, live = {}, {}
    for side, name, mask in (("", "input_ids", "attention_mask"), ("decoder", "decoder_input_ids", "decoder_attention_mask")):
        for found, key in ((ids, name), (live, mask)):
            x = inputs.get(key)
            if isinstance(x, Tensor) and x.ndim == 2:
                found[side] = x.detach().cpu().numpy().astype(bool if found is live else np.int64)
    return ids, live


def _cached(inputs: Mapping[str, Any], live: dict[str, np.ndarray]) -> None:
    """Of a mask that covers the keys of a cache too, what belongs to this call's queries."""
    ids = inputs.get("input_ids")
    if isinstance(ids, Tensor) and "" in live and live[""].shape[1] > ids.shape[1]:
        live[""] = live[""][:, -ids.shape[1] :]


def _calls(config: Any) -> int:
    """About how many calls of attention one forward has: a decoder beside an encoder has two a layer."""
    encoder, *decoders = (
        int(getattr(config, name, 0) or 0) for name in ("num_hidden_layers", "decoder_layers", "num_decoder_layers")
    )
    return encoder + 2 * max(decoders) or 1


def capture_attention(
    model: nn.Module,
    inputs: Any,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] = (),
    capture: Capture | None = None,
    exact: Sequence[tuple[int, int]] = (),
    generate: Mapping[str, Any] | None = None,
    relevance: int | str | None = None,
    position: int = -1,
    first: int | None = None,
    whole: bool = True,
    tokenizer: Any = None,
    progress: bool | None = None,
) -> AttentionCapture:
    """Runs `model` once (eval mode, no gradients) and captures its attention. Memory: never of the order Tq x Tk.

    Args:
        model: a Hugging Face model on the CPU, with any attn_implementation; its state is restored afterwards.
        inputs: its keyword arguments, as a tokenizer returns them ({"input_ids": ..., "attention_mask": ...}), or just
            input_ids. past_key_values may be among them: queries then stand behind its keys.
        layers: which calls of attention within one forward, by number; in most models these are the layers. None: all.
        heads: query heads; none: all.
        capture: what to capture (qkv.Capture, with its own heads); None: statistics, the kinds of the heads, and maps: every weight
            up to 512 tokens, otherwise 128 x 128 blocks (``Captured.map`` has at most 64 x 64).
        exact: (layer, head) whose q, k and lse are kept, so that the page shows every weight at any length.
        generate: options of model.generate(), such as {"max_new_tokens": 20}: what is generated is captured too, one sequence each
            (no beams). `outputs` is then what generate() returned; of an encoder-decoder, which reads its answer once more, what the
            model returned.
        relevance: also weight times gradient of a token's logit at `position`: the token's number, or "predicted" (the likeliest).
            Needs a model with logits, and the memory of a backward. It is what a small change of a weight would do to that logit.
        first: how many of the first keys are set apart before a head's kind is said; None: 1, of images the class token and
            registers.
        whole: False: no single weights are kept, of short texts neither.
        tokenizer: names the tokens in the page.
        progress: a bar on standard error; None: where that is a terminal.

    Raises:
        ValueError: if the model's attention does not go through transformers' AttentionInterface, a layer or head does not exist, or
            options exclude each other.
    """
    if capture is not None and heads:
        raise ValueError("[capture_attention] heads go into the Capture where there is one: qkv.Capture(heads=...)")
    if generate is not None and relevance is not None:
        raise ValueError("[capture_attention] relevance is of one forward: generate first, then pass the whole text as inputs")
    if generate is not None:
        _require_one_sequence(model, generate)
    inputs = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    image = _image_of(model, inputs)
    apart = first if first is not None else image[0] if image else 1
    grid = image[1:] if image else None
    made = None
    if generate is not None and getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        # Its encoder runs outside of the model's forward: the answer is read once more instead, all at once.
        made = _generated(model, inputs, generate)
        inputs["decoder_input_ids"], generate = made, None
    ids, live = _sides(model, inputs)
    _cached(inputs, live)
    wanted = Wanted(tuple(heads), capture, first=apart, grid=grid, whole=whole)
    shown = sys.stderr.isatty() if progress is None else progress
    config = getattr(model, "config", None)
    total = _calls(config)
    with Progress(total, shown=shown) as bar:
        names = {id(m): name for name, m in model.named_modules()}
        collector = Collector(names, layers, wanted, exact, bar if shown else None)
        collector.ids, collector.live = ids, live
        past = inputs.get("past_key_values")
        if past is not None and not getattr(config, "is_encoder_decoder", False):
            collector.start = int(past.get_seq_length())
        hook = model.register_forward_pre_hook(lambda *_: collector.begin())
        try:
            with _running_qkv(model), torch.no_grad(), observed("collector", collector):
                outputs = model(**inputs) if generate is None else model.generate(**inputs, **generate)
                collector.finish()
        finally:
            hook.remove()
    if collector.most_calls == 0:
        raise ValueError(
            f"[capture_attention] {type(model).__name__} has an attention of its own, which transformers' AttentionInterface "
            "does not reach"
        )
    for what, numbers in (("layers", layers or ()), ("exact: layers", collector.exact)):
        if any(layer not in range(collector.most_calls) for layer in numbers):
            raise ValueError(f"[capture_attention] {what} must lie in 0..{collector.most_calls - 1}: got {list(numbers)}")
    run = collector.runs[0] if collector.runs else Run([])
    run.image = image
    if generate is not None:
        _name_answer(run, outputs)
    run.answer = None if made is None else 1
    if relevance is not None:
        with _running_qkv(model):
            run.relevance = derived(model, inputs, run.layers, relevance, position, _namer(tokenizer))
    mask = inputs.get("attention_mask")
    tokens = mask.to(torch.bool).cpu().numpy() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    title = getattr(config, "_name_or_path", "") or type(model).__name__
    return AttentionCapture(collector.runs or [run], outputs, tokens, title=title, names=_namer(tokenizer))


def _require_one_sequence(model: nn.Module, generate: Mapping[str, Any]) -> None:
    """Raises ValueError where queries would be those of several answers, or of tokens that are dropped again."""
    config = getattr(model, "generation_config", None)
    given = {name: generate.get(name, getattr(config, name, None)) for name in ("num_beams", "num_return_sequences")}
    if any(number not in (None, 1) for number in given.values()):
        raise ValueError(
            "[capture_attention] generate: one sequence each, num_beams=1 and num_return_sequences=1: got "
            + ", ".join(f"{name}={number}" for name, number in given.items())
        )
    for name in ("assistant_model", "prompt_lookup_num_tokens"):
        if generate.get(name, getattr(config, name, None)) is not None:
            raise ValueError(f"[capture_attention] generate: no {name}: it reads tokens that the answer does not keep")


def _generated(model: nn.Module, inputs: Mapping[str, Any], generate: Mapping[str, Any]) -> Tensor:
    """What an encoder-decoder's decoder read while it generated, [B, T]: what generate() returns lacks the start in some models."""
    read: list[Tensor] = []

    def hear(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        if cache is None or cache.get_seq_length() == 0:  # Whisper first asks for the language
            read.clear()
        read.append(kwargs["input_ids"] if "input_ids" in kwargs else args[0])

    hook = model.get_decoder().register_forward_pre_hook(hear, with_kwargs=True)
    try:
        with _running_qkv(model), torch.no_grad():
            model.generate(**inputs, **generate)
    finally:
        hook.remove()
    return torch.cat(read, 1)


def _name_answer(run: Run, outputs: Any) -> None:
    """The numbers of prompt and answer; the last token was never a query."""
    sequences = outputs if isinstance(outputs, Tensor) else getattr(outputs, "sequences", None)
    if sequences is None:
        return
    crossing = any(layer.cross for layer in run.layers)
    last = max((max(layer.offsets) + layer.q_len for layer in run.answers if not layer.cross), default=None)
    if last is None:
        last = max((layer.q_len for layer in run.layers if not layer.cross), default=0)
    run.ids["decoder" if crossing else ""], run.first = sequences[:, :last].cpu().numpy(), 0


def _namer(tokenizer: Any) -> Callable[[int], str] | None:
    if tokenizer is None:
        return None

    def name(number: int) -> str:
        text = tokenizer.decode([number])
        return text if text and "\N{REPLACEMENT CHARACTER}" not in text else str(tokenizer.convert_ids_to_tokens(number))

    return name
