"""Captures of every layer and head of a Hugging Face model while it runs.
"""

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._explore.captures import Captures
from .._explore.collector import Collector
from .._explore.file import Run
from .._explore.layer import Wanted, image_in
from .._explore.writes import Writer
from .._progress import Progress, on_terminal
from ..capture import Capture
from ._attention import NAME, register
from ._packing import observer


class AttentionCapture(Captures):
    """All that capture_attention captured. outputs: what the model returned; tokens: bool [B, T], False = padding; None: not
    known."""

    def __init__(self, runs: list[Run], outputs: Any, tokens: np.ndarray | None, **options: Any) -> None:
        super().__init__(runs, **options)
        self.outputs, self.tokens = outputs, tokens
        self.inputs: dict[str, Any] = {}  #: what the model read; sites: the projections that read its heads, by layer
        self.sites: dict[int, Any] = {}


_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


def alone_with(model: nn.Module) -> Any:
    """A context that one thread at a time is in: hooks of another one, such as a served page's, would change what it computes."""
    return _LOCKS.setdefault(model, threading.RLock())


@contextlib.contextmanager
def _running_qkv(model: nn.Module) -> Iterator[None]:
    """The model in eval mode with attn_implementation="qkv"; both are restored afterwards."""
    with alone_with(model):
        yield from _switched(model)


def _switched(model: nn.Module) -> Iterator[None]:
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


def as_named(inputs: Any, function: str, name: str = "inputs") -> dict[str, Any]:
    """A model's keyword arguments. Raises TypeError and ValueError for what no model reads."""
    if not isinstance(inputs, (Tensor, Mapping)):
        raise TypeError(
            f"[{function}] {name} must be a tensor of input_ids, or a dict of tensors as a tokenizer returns it: got "
            f"{type(inputs).__name__}; torch.as_tensor makes one of numbers"
        )
    made = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    ids = made.get("input_ids")
    if ids is not None and not isinstance(ids, Tensor):
        raise TypeError(f'[{function}] input_ids must be a tensor: got {type(ids).__name__}; a tokenizer makes one with return_tensors="pt"')
    if ids is not None and ids.ndim != 2:
        raise ValueError(f"[{function}] input_ids must be [B, T]: got {list(ids.shape)}")
    return made


def _image_of(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Of a vision model's only input: the most tokens that may stand before its patches, their height and width."""
    pixels, config = inputs.get("pixel_values"), getattr(model, "config", None)
    patch = getattr(config, "patch_size", None)
    if not isinstance(pixels, Tensor) or pixels.ndim != 4 or patch is None or "input_ids" in inputs:
        return None
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    most = 2 + int(getattr(config, "num_register_tokens", 0) or 0)  # of a class, of distillation (DeiT); SigLIP has none
    return most, pixels.shape[-2] // int(rows), pixels.shape[-1] // int(columns)


def _sides(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Token numbers, and which are tokens, [B, T] by side."""
    ids, live = {}, {}
    for side, name, mask in (("", "input_ids", "attention_mask"), ("decoder", "decoder_input_ids", "decoder_attention_mask")):
        for found, key in ((ids, name), (live, mask)):
            x = inputs.get(key)
            if isinstance(x, Tensor) and x.ndim == 2:
                found[side] = x.detach().cpu().numpy().astype(bool if found is live else np.int64)
    return ids, live


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
    first: int | None = None,
    whole: bool = True,
    tokenizer: Any = None,
    writes: bool = False,
    progress: bool | None = None,
) -> AttentionCapture:
    """Runs `model` once (eval mode, no gradients) and captures its attention. Memory: never of the order Tq x Tk.

    Args:
        model: a Hugging Face model on the CPU, with any attn_implementation; its state is restored afterwards.
        inputs: its keyword arguments, as a tokenizer returns them ({"input_ids": ..., "attention_mask": ...}), or just
            input_ids.
        layers: which calls of attention within one forward, by number; in most models these are the layers. None: all.
        heads: query heads; none: all.
        capture: what to capture (qkv.Capture, with its own heads); None: statistics, the kinds of the heads, and maps: every weight
            up to 512 tokens, otherwise 128 x 128 blocks (``Captured.map`` has at most 64 x 64).
        exact: (layer, head) whose q, k and lse are kept, so that the page shows every weight at any length; none: of up to 128 tokens
            the clearest head of each kind in each layer.
        generate: options of model.generate(), such as {"max_new_tokens": 20}: the model reads what it generated once more, one
            sequence each (no beams), and that is captured, behind its prompt.
        first: how many of the first keys are set apart before a head's kind is said; None: 1, of images the class token and
            registers.
        whole: False: no single weights are kept beside the maps, whose cells are single weights up to 64 tokens.
        tokenizer: names the tokens in the page.
        writes: also what the heads write, which costs some times the rest: the norm of v W_o of every key, and of decoders the tokens
            that they raise and lower.
        progress: a bar on standard error; None: where that is a terminal.

    Raises:
        TypeError: for inputs or a capture of another kind.
        ValueError: if the model's attention does not go through transformers' AttentionInterface, a layer or head does not exist, or
            options exclude each other.
    """
    inputs = as_named(inputs, "capture_attention")
    if capture is not None and heads:
        raise ValueError("[capture_attention] heads go into the Capture where there is one: qkv.Capture(heads=...)")
    if inputs.get("past_key_values") is not None:
        raise ValueError("[capture_attention] past_key_values hold keys whose queries are gone: pass the whole text")
    if generate is not None:
        _require_one_sequence(model, generate)
    image = _image_of(model, inputs)
    answer = None
    if generate is not None:
        with _running_qkv(model), torch.no_grad():
            inputs, answer = _answered(model, inputs, generate)
    ids, live = _sides(model, inputs)
    wanted = Wanted(tuple(heads), capture, first=first, image=image, whole=whole)
    shown = on_terminal() if progress is None else progress
    config = getattr(model, "config", None)
    total = _calls(config)
    with Progress(total, shown=shown) as bar, alone_with(model):
        names = {id(m): name for name, m in model.named_modules()}
        collector = Collector(names, layers, wanted, exact, bar if shown else None)
        collector.ids, collector.live = ids, live
        if writes:
            collector.writer = Writer(model, ids.get("decoder", ids.get("")), total)
        token = observer.set(collector)
        try:
            listening = collector.writer.listening() if collector.writer else contextlib.nullcontext()
            with model.register_forward_pre_hook(lambda *_: collector.begin()), _running_qkv(model), torch.no_grad(), listening:
                outputs = model(**inputs)
        finally:
            observer.reset(token)
    if collector.most_calls == 0:
        raise ValueError(
            f"[capture_attention] {type(model).__name__} has an attention of its own, which transformers' AttentionInterface "
            "does not reach, or is unpadded: pad() undoes that"
        )
    collector.require_layers("capture_attention")
    run = collector.runs[0] if collector.runs else Run([])
    run.image, run.answer = image_in(run.layers[0].q_len, image) if run.layers else None, answer
    if collector.writer is not None:
        run.notes += collector.writer.notes()
    mask = inputs.get("attention_mask")
    tokens = mask.to(torch.bool).cpu().numpy() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    name = getattr(config, "_name_or_path", "")
    title = f"{Path(name).name} ({type(model).__name__})" if name and Path(name).is_dir() else name or type(model).__name__
    made = AttentionCapture(collector.runs or [run], outputs, tokens, title=title, names=_namer(tokenizer))
    made.inputs, made.sites = inputs, collector.writer.outputs.sites if collector.writer else {}
    return made


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


def _answered(model: nn.Module, inputs: dict[str, Any], generate: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, int]]:
    """The inputs with what the model read while it generated, and where that begins."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return {**inputs, "decoder_input_ids": _read_by_decoder(model, inputs, generate)}, ("decoder", 1)
    made = model.generate(**inputs, **generate)
    ids, prompt = (made if isinstance(made, Tensor) else made.sequences)[:, :-1], inputs["input_ids"].shape[1]  # the last is not read
    whole = {"input_ids": ids, "use_cache": False}
    if isinstance(mask := inputs.get("attention_mask"), Tensor):
        whole["attention_mask"] = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - mask.shape[1])], 1)
        if "position_ids" in inspect.signature(model.forward).parameters:  # as generate() counts them
            whole["position_ids"] = (whole["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return whole, ("", prompt)


def _read_by_decoder(model: nn.Module, inputs: Mapping[str, Any], generate: Mapping[str, Any]) -> Tensor:
    """The tokens that an encoder-decoder's decoder read while it generated, [B, T]: what generate() returns lacks the start in some models."""
    read: list[Tensor] = []

    def hear(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        if cache is None or cache.get_seq_length() == 0:  # Whisper first asks for the language
            read.clear()
        read.append(kwargs["input_ids"] if "input_ids" in kwargs else args[0])

    with model.get_decoder().register_forward_pre_hook(hear, with_kwargs=True):
        model.generate(**inputs, **generate)
    return torch.cat(read, 1)


def _namer(tokenizer: Any) -> Callable[[int], str] | None:
    if tokenizer is None:
        return None

    def name(number: int) -> str:
        text = tokenizer.decode([number])
        found = text if text and "\N{REPLACEMENT CHARACTER}" not in text else tokenizer.convert_ids_to_tokens(number)
        return str(number) if found is None else str(found)  # a model may have more words than its tokenizer

    name.text = lambda numbers: tokenizer.decode(numbers, skip_special_tokens=True)  # type: ignore[attr-defined]
    return name
