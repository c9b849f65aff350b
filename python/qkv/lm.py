"""A small language model over characters, to train in a second and to inspect: embeddings, causal attention, a linear head.

    model = qkv.AttentionLM()                       # the text "ababab... abc ... xyz", 5,063 parameters
    losses = model.fit()                            # 800 steps of Adam, like `qkv train`
    model.generate("ab", 20)
    model.attention_map("abababab")                 # [heads, T, T]: draws itself in a notebook

With ``blocks=True`` it is GPT-2's small sister (residual blocks with LayerNorm and MLP, nanoGPT's names). It is not a way to
train large models. Radford 2019 (GPT-2).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import _core, _nn
from ._arrays import pairs_of
from ._progress import Progress
from ._tensors import file_name
from .io import load_safetensors
from .nn import Module
from .plotting import AttentionMap

__all__ = ["AttentionLM", "default_text"]

Heads = Iterable[tuple[int, int]]
_SLICE = 0.05  # seconds of training between two checks of the keyboard and the progress bar


def default_text() -> str:
    """The patterned text of the default run: 36 characters, 100 times."""
    return _nn.default_text("text")


class AttentionLM(Module):
    """A language model over the characters of ``text`` (or of ``vocab``, any text that has each of them).

    Args:
        text: what it learns from, unless fit is given another; default: :func:`default_text`, or the letters a to z.
        vocab: a text with its characters, where they are not those of ``text``. Ids follow the order of the code points.
        context: T, how many characters it sees (16).  width: E.  heads, kv_heads (0: as many as heads), layers (1).
        blocks: residual blocks with LayerNorm and an MLP of 4 E.  positions: "learned" (default) or "rotary".  dropout: while
            training.
        rope: how rotary positions turn, the options of :class:`qkv.Rotary`: ``{"base": 500000.0, "interleaved": True}``.
        task: "text" (the next character), "previous" (of random characters, the one before), "same" (where the character was
            before), "induction" (the next of a random string that repeats; by default context 24, 2 layers with blocks, rotary
            positions, and 300 steps of 16 windows at 0.006), "masked" (hidden ones; not causal).
        seed: for the initial weights.

    It has Module's state_dict (tok.weight, pos.weight, attn.W_q.weight, ..., head.bias; nanoGPT's names with blocks),
    load_state_dict, save and load; :meth:`save` also keeps the vocabulary and the optimizer.
    Raises OptionError (a ValueError) for impossible sizes.
    """

    def __init__(
        self,
        text: str | None = None,
        *,
        vocab: str | None = None,
        context: int | None = None,
        width: int = 32,
        heads: int = 1,
        kv_heads: int = 0,
        layers: int | None = None,
        blocks: bool | None = None,
        positions: str | None = None,
        rope: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        task: str = "text",
        seed: int = 0,
    ) -> None:
        if text is None and vocab is None:
            text = _nn.default_text(task)
        self._model = _nn.Model(
            text if vocab is None else vocab, task, context=context, width=width, heads=heads, kv_heads=kv_heads,
            layers=layers, blocks=blocks, positions=positions, rope=None if rope is None else _core.RotaryOptions(**rope),
            dropout=dropout, seed=seed,
        )  # fmt: skip
        self.text = text
        self.losses: list[float] = []  #: of all steps of all fits so far
        self._training = threading.Lock()  # held by fit

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> AttentionLM:
        """Loads the file of :meth:`save` or ``qkv train --out``: model, vocabulary, optimizer."""
        model = cls.__new__(cls)
        model._model = _nn.load_model(file_name(path))
        model.text, model.losses, model._training = None, [], threading.Lock()
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """A safetensors file that :meth:`from_file`, ``qkv generate`` and ``qkv map`` read."""
        self._model.save(file_name(path))

    def __reduce__(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.safetensors")
            self.save(path)
            others = {name: x for name, x in vars(self).items() if name not in ("_model", "_training")}
            return _made_again, (type(self), path.read_bytes()), others | {"losses": list(self.losses)}

    def load(self, path: str | os.PathLike[str], prefix: str = "") -> None:
        """Loads the parameters of a file, as of :meth:`save`, into this model; not the vocabulary and the optimizer: from_file."""
        self.load_state_dict({name: x for name, x in load_safetensors(path).items() if not name.startswith("adam.")}, prefix)

    @property
    def _core(self) -> Any:  # type: ignore[override]
        return self._model.module

    def load_state_dict(self, state: Any, prefix: str = "") -> None:
        """As :meth:`Module.load_state_dict`; not while fit runs."""
        if self._training.locked():
            raise RuntimeError("[AttentionLM.load_state_dict] the model is being trained: wait for fit to return")
        super().load_state_dict(state, prefix)

    @property
    def config(self) -> dict[str, Any]:
        """Sizes and options."""
        return self._model.config

    @property
    def vocabulary(self) -> str:
        """Its characters; a character's id is its index in this text."""
        return self._model.vocabulary

    @property
    def steps(self) -> int:
        """How many steps of Adam it was trained, in the last fit or before the file was written."""
        return self._model.step

    def fit(
        self,
        text: str | None = None,
        *,
        steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        schedule: str = "constant",
        warmup: int = 0,
        min_lr: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        resume: bool = False,
        progress: bool = True,
    ) -> list[float]:
        """Trains, and returns the loss of every step, each before its update. The numbers are those of ``qkv train`` with the
        same options and seed.

        Args:
            text: default: the constructor's.
            steps: of Adam (AdamW with weight_decay), 800, each on ``batch`` windows (32) drawn from ``seed``.  lr: 0.003.
            schedule: "constant" or "cosine" (down to min_lr), after ``warmup`` steps.  clip: largest norm of the gradient; 0:
                off.
            resume: go on with the optimizer of the last fit up to step ``steps``; bit-identical to a run without the break.
            progress: a bar on standard error where that is a terminal, otherwise some plain lines.

        Other Python threads run meanwhile. Ctrl-C (KeyboardInterrupt) stops between two steps; the model keeps what it has
        learned, and resume=True goes on. Raises OptionError for impossible options, and for a character that is
        not in the vocabulary.
        """
        source = self.text if text is None else text
        if source is None and self.config["task"] in ("text", "masked"):
            raise ValueError("[AttentionLM.fit] a text is needed: this model was made without one")
        if min_lr and schedule == "constant":
            raise ValueError(f"[AttentionLM.fit] min_lr is where schedule='cosine' ends: got min_lr={min_lr} for 'constant'")
        if not self._training.acquire(blocking=False):
            raise RuntimeError("[AttentionLM.fit] the model is being trained already")
        training = None
        try:
            training = _nn.Training(
                self._model, source or "", batch, bool(resume), steps=steps, lr=lr, seed=seed, schedule=schedule, warmup=warmup, min_lr=min_lr,
                weight_decay=weight_decay, clip=clip,
            )  # fmt: skip
            with Progress(training.steps, shown=progress) as shown:
                while training.steps_done < training.steps:
                    training.run(_SLICE)
                    shown.update(training.steps_done, f"loss {training.last_loss:.4f}")
        finally:
            if training is not None:
                training.keep()
                self.losses += training.losses
            self._training.release()
        return training.losses

    def generate(
        self,
        prompt: str,
        n: int = 64,
        *,
        temperature: float = 1.0,
        greedy: bool = False,
        top_k: int = 0,
        seed: int = 0,
        cut: Heads = (),
    ) -> str:
        """The n characters that follow, computed with a KV cache. temperature 0 or greedy: the likeliest each time.
        cut: heads to leave out, as in :meth:`logits`."""
        if not isinstance(prompt, str):
            raise TypeError(f"[AttentionLM.generate] prompt must be a str: got {type(prompt).__name__}")
        greedy = bool(greedy or temperature == 0)
        return self._model.generate(
            prompt, pairs_of(cut, "[AttentionLM.generate] cut"), tokens=n, greedy=greedy, temperature=temperature or 1.0, top_k=top_k, seed=seed
        )

    def _ids(self, function: str, text: str) -> list[int]:
        """The characters' numbers."""
        if not isinstance(text, str):
            raise TypeError(f"[AttentionLM.{function}] text must be a str: got {type(text).__name__}")
        return self._model.encode(text)

    def logits(self, text: str, *, cut: Heads = ()) -> np.ndarray:
        """Logits of the character after each prefix: [T, V]. cut: heads to leave out, each (layer, head), counted from 0: what
        they write is zeros. OptionError for a head that is not there."""
        return self._model.logits(self._ids("logits", text), pairs_of(cut, "[AttentionLM.logits] cut"))

    forward = logits

    def attention_map(self, text: str, *, layer: int | None = None, cut: Heads = ()) -> AttentionMap:
        """The attention weights [heads, T, T] of a model with one layer or of ``layer``, otherwise [layers, heads, T, T]; the
        tokens are the characters. At most ``context`` characters. cut: heads to leave out, as in :meth:`logits`.
        OptionError for a layer that is not there."""
        weights, _ = self._model.report(self._ids("attention_map", text), pairs_of(cut, "[AttentionLM.attention_map] cut"))
        if layer is not None and not -len(weights) <= layer < len(weights):
            raise _core.OptionError(f"[AttentionLM.attention_map] layer must lie in 0..{len(weights) - 1}: got {layer}")
        if layer is None and len(weights) == 1:
            layer = 0
        return AttentionMap(weights if layer is None else weights[layer], _nn.characters(text), f'attention of "{text}"')

    def shares(self, text: str) -> list[dict[str, Any]]:
        """Per layer and head, the mean weight over rows i >= 1 on the character itself ("self"), on the "previous" one, on the
        "first", and on all equal ones ("same"); each is {"mean", "rows_above_half"}. They overlap."""
        return self._model.report(self._ids("shares", text), [])[1]

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.config.items() if value not in (False, 0.0))
        return f"AttentionLM({options}, parameters={self.parameter_count})"


def _made_again(cls: type[AttentionLM], file: bytes) -> AttentionLM:
    """For pickle."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(file)
        return cls.from_file(path)
