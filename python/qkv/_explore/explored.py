"""A model on one text: what its heads attend to, what they write, and what the model says without them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._arrays import pairs_of
from ..transformers._capture import AttentionCapture, _running_qkv, alone_with, as_named, capture_attention
from .behaviour import on_random_tokens, on_words_in_order
from .cuts import Cuts, answers_of, cutting, require_instead
from .layer import Layer, decoded

EXAMPLE = "When Mary and John went to the store, John gave a drink to"
_OTHERS = 20  # heads that a cut moved most


def explore(model: Any, text: Any = None, *, tokenizer: Any = None, **options: Any) -> Explored:
    """Runs a Hugging Face model on a text, and shows every head.

        one = qkv.explore("gpt2", "When Mary and John went to the store, John gave a drink to")
        one.cut([(9, 9)])           # loss and next tokens without a head; (layer, head) of as many as wanted
        one.every()                 # each head cut alone: its number in the page, by which it sorts
        one.save("page.html")       # or one.serve(): a page that computes more on demand

    Args:
        model: what transformers loads, by name or folder, or a model.
        text: a text, or a model's inputs as :func:`qkv.transformers.capture_attention` takes them, of one text without padding; of several
            the page alone is made.
        tokenizer: of a model that is given itself.
        options: behaviour=False leaves out the run on random tokens; the others are capture_attention's.
    """
    if isinstance(model, str | os.PathLike):
        from .loading import loaded

        model, tokenizer = loaded(os.fspath(model))
    text = EXAMPLE if text is None else text
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError("[explore] a text needs tokenizer=..., unless the model is given by name")
        text = dict(tokenizer(text, return_tensors="pt"))
    return Explored(model, text, tokenizer=tokenizer, **options)


class Explored:
    """Of one model and one text; in a notebook it is the page. captures: qkv.transformers.capture_attention's, and a run for every cut."""

    def __init__(
        self, model: nn.Module, inputs: Any, *, tokenizer: Any = None, behaviour: bool | None = None, progress: bool | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.shown = model, tokenizer, bool(progress)
        self.options = {name: options[name] for name in ("layers", "heads", "capture", "exact", "first", "whole") if name in options}
        if isinstance(inputs, Mapping) and "position_ids" in inputs and hasattr(model, "can_generate") and model.can_generate():
            inputs = {"use_cache": False, **inputs}  # beside a cache transformers lets packed texts mix
        self.captures: AttentionCapture = capture_attention(model, inputs, tokenizer=tokenizer, writes=True, progress=progress, **options)
        self.inputs, self.sites = self.captures.inputs, self.captures.sites
        self.whole = self.captures.runs[0]
        ids = self.whole.ids.get("decoder", self.whole.ids.get(""))
        self.is_decoder = hasattr(model, "can_generate") and model.can_generate() and ids is not None
        self.ids = torch.from_numpy(ids) if self.is_decoder else None  # type: ignore[arg-type]
        self._cuts: Cuts | None = None
        self.is_one = all(len(x) == 1 for x in self.inputs.values() if isinstance(x, Tensor) and x.ndim)
        mask = self.inputs.get("decoder_attention_mask" if "decoder_input_ids" in self.inputs else "attention_mask")
        if self.is_one and isinstance(mask, Tensor) and mask.ndim == 2 and not mask.all():
            raise ValueError("[explore] one text without padding, which its loss would count: qkv.transformers.capture_attention takes it")
        if self.is_one:
            self.said = answers_of(self.captures.outputs, self.ids)[0]
            self.whole.said = self._words(self.said)
        has_one_stack = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        if self.is_decoder and has_one_stack if behaviour is None else behaviour:
            self.whole.numbers |= on_random_tokens(model, tokenizer)
            if behaviour and tokenizer is not None:
                self.whole.numbers |= on_words_in_order(model, tokenizer)

    @property
    def cuts(self) -> Cuts:
        """Runs of the model without some heads; made at the first cut."""
        if self._cuts is None:
            self._cuts = Cuts(self.model, self.inputs, self.sites, self.ids, _running_qkv)
        return self._cuts

    def cut(self, heads: Sequence[tuple[int, int]], instead: str = "zero", *, other: Any = None, keep: bool = True) -> dict[str, Any]:
        """What the model says without these heads, (layer, head) each, layers as capture_attention counts them.

        Args:
            instead: what the heads write then: "zero"; "mean": of their own over the positions; "patch": what they write on `other`.
            other: another text of as many tokens, or inputs.
            keep: the page shows this run beside the whole one.

        Returns: {"whole": {...}, "cut": {...}} with loss, losses and next tokens, "cut" also with what docs/explorer-file.md says of a cut.
        """
        heads = pairs_of(heads, "[cut] heads")
        self._require_one("cut")
        with alone_with(self.model), self._without(heads, instead, other):
            made = capture_attention(self.model, self.inputs, tokenizer=self.tokenizer, writes=False, progress=False, **self.options)
        answer, run = answers_of(made.outputs, self.ids)[0], made.runs[0]
        numbers = {name.removeprefix("cut "): value for name, value in self.said.changed(answer).items() if name != "cut loss"}
        others = _moved(self.whole.layers, run.layers, heads)
        run.cut = {"heads": heads, "with": instead, **numbers, "others": others}
        if other is not None:
            run.cut["from"] = other if isinstance(other, str) else "other inputs"
        run.said, run.name, run.of, run.answer = self._words(answer), self.whole.name, self.whole, self.whole.answer
        if keep:
            self.captures.runs.append(run)
        return {"whole": self.whole.said, "cut": run.said | {key: value for key, value in run.cut.items() if key != "heads"}}

    def every(self, instead: str = "zero") -> dict[str, dict[int, np.ndarray]]:
        """Cuts each head alone: "cut loss" and "cut tokens", of models without a loss "cut output", by layer. The page sorts by them."""
        self._require_one("every")
        with alone_with(self.model):
            made = self.cuts.every(self._values(instead, None), shown=self.shown)
        self.whole.numbers |= made
        return made

    def generate(self, tokens: int, heads: Sequence[tuple[int, int]] = (), instead: str = "zero", *, other: Any = None) -> Any:
        """What the model generates (greedy), without these heads: a text, or without a tokenizer the tokens' numbers."""
        if not self.is_decoder:
            raise ValueError(f"[generate] {type(self.model).__name__} generates nothing")
        self._require_one("generate")
        heads = pairs_of(heads, "[generate] heads")
        inputs = {name: x for name, x in self.inputs.items() if name not in ("use_cache", "position_ids", "decoder_input_ids")}
        with alone_with(self.model), self._without(heads, instead, other), _running_qkv(self.model), torch.no_grad():
            made = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, num_beams=1)[0]  # type: ignore[operator]
        made = made if "decoder_input_ids" in self.inputs else made[inputs["input_ids"].shape[1] :]
        return made.tolist() if self.tokenizer is None else self.tokenizer.decode(made, skip_special_tokens=True)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """As :meth:`qkv.transformers.AttentionCapture.save`."""
        self.captures.save(path, **options)

    def serve(self, port: int = 0, *, forever: bool = True) -> Any:
        """Serves the page from this machine to this machine, with controls for other texts and cuts, until Ctrl-C.
        Raises ValueError for an encoder beside a decoder, and for chosen layers that do not begin with 0, 1, ..."""
        from .serve import serve

        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            raise ValueError("[serve] a served page numbers the heads of one stack of layers: save the page of an encoder beside a decoder")
        if (numbers := [layer.index for layer in self.whole.layers]) != list(range(len(numbers))):
            raise ValueError(f"[serve] a served page counts its layers from 0: save the page of layers {numbers}")
        return serve(self, port, forever=forever)

    def _repr_html_(self) -> str:
        return self.captures._repr_html_()

    def __repr__(self) -> str:
        return repr(self.captures)

    def read(self, text: str | None) -> Explored:
        """The same model on another text; None: on the same one, with no head cut."""
        inputs = self.inputs if text is None else self._tokens(text, "read")
        if text is not None and not inputs["input_ids"].shape[1]:
            raise ValueError("the text is empty")
        made = Explored(self.model, inputs, tokenizer=self.tokenizer, behaviour=False, progress=self.shown, **self.options)
        made.whole.name, made.whole.answer = self.whole.name, self.whole.answer if text is None else None
        return made

    def _require_one(self, function: str) -> None:
        if not self.is_one:
            raise ValueError(f"[{function}] one text at a time: the inputs hold several")

    def _tokens(self, text: str, function: str) -> dict[str, Any]:
        if self.tokenizer is None:
            raise ValueError(f"[{function}] a text needs a tokenizer, and the model came without one: qkv.explore(model, ..., tokenizer=...)")
        decoder = {name: x for name, x in self.inputs.items() if name.startswith("decoder_")}  # reads on what it read
        return decoder | dict(self.tokenizer(text, return_tensors="pt"))

    def _without(self, heads: Sequence[tuple[int, int]], instead: str, other: Any) -> Any:
        require_instead(instead, other)  # of no heads too
        return cutting(self.model, self.sites, [heads], self._values(instead, other)) if heads else contextlib.nullcontext()

    def _values(self, instead: str, other: Any) -> dict[int, Tensor] | None:
        require_instead(instead, other)
        if instead == "zero":
            return None
        if instead == "mean":
            return self.cuts.means()
        inputs = self._tokens(other, "cut") if isinstance(other, str) else as_named(other, "cut", "other")
        counts = [x["input_ids"].shape[1] if "input_ids" in x else 0 for x in (self.inputs, inputs)]
        if counts[0] != counts[1]:
            raise ValueError(f"[cut] a patch needs texts of equal length: {counts[0]} and {counts[1]} tokens")
        ids = None if self.ids is None else inputs.get("decoder_input_ids", inputs.get("input_ids"))
        gave = Cuts(self.model, inputs, self.sites, ids, _running_qkv).heads_gave
        for layer, x in self.cuts.heads_gave.items():
            if gave[layer].shape != x.shape:
                raise ValueError(f"[cut] a patch needs one text of equal length: layer {layer} has {len(x)} positions and {len(gave[layer])}")
        return gave

    def _words(self, answer: Any) -> dict[str, Any]:
        if answer.losses is None:
            return {}
        name = self.captures.names or str
        following = [{"token": name(number), "p": round(share, 5)} for number, share in answer.next]
        return {"loss": answer.loss, "losses": [round(float(x), 4) for x in answer.losses[:4096]], "next": following}


def _weights(layer: Layer) -> np.ndarray | None:
    return decoded(layer.weights) if layer.weights is not None else layer.map


def _moved(before: Sequence[Layer], after: Sequence[Layer], cut: Sequence[tuple[int, int]]) -> list[tuple[int, int, float]]:
    """(layer, head, half the sum of |difference| of a row's weights, the mean over rows) of the heads that moved most."""
    found = []
    others = {layer.index: layer for layer in after}
    for one in before:
        a, b = _weights(one), _weights(others[one.index]) if one.index in others else None
        if a is None or b is None or a.shape != b.shape:
            continue
        moves = np.nan_to_num(abs(a - b)).sum(-1).mean((0, -1)) / 2
        found += [(one.index, head, round(float(x), 4)) for head, x in zip(one.heads, moves) if (one.index, head) not in cut and x > 5e-4]
    return sorted(found, key=lambda row: -row[2])[:_OTHERS]
