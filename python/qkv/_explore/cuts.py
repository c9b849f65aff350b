"""Heads cut, or patched with what they gave on another text, and what the model then says. A cut replaces a head's part of what the output
projection reads: the head adds nothing, or its mean; the projection's bias stays, for it belongs to no head.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._progress import Progress
from ..torch._products import linear
from ..transformers._optimize import optimized
from .outputs import Site

Heads = Sequence[tuple[int, int]]  # (number of the call, head)
_ROWS = 2048  # tokens in one forward of several cuts
_LOGITS = 1 << 27  # logits in one forward


def require_instead(instead: str, other: Any) -> None:
    """What stands in place of a head: other is the text of a patch, and of nothing else."""
    if instead not in ("zero", "mean", "patch"):
        raise ValueError(f'[cut] a head is replaced by "zero", "mean" or "patch": got {instead!r}')
    if (instead == "patch") != (other is not None):
        raise ValueError("[cut] a patch needs another text, and nothing else does")


@dataclass
class Answer:
    """What a model says of one text."""

    losses: np.ndarray | None = field(default=None, repr=False)  #: [T - 1]: of every token from the second on; None: no decoder
    best: np.ndarray | None = field(default=None, repr=False)  #: [T]: the likeliest next tokens
    next: list[tuple[int, float]] = field(default_factory=list)  #: the ten likeliest after the last token
    output: Tensor | None = field(default=None, repr=False)  #: [T, d], of a model without a loss

    @property
    def loss(self) -> float | None:
        return None if self.losses is None or not self.losses.size else float(self.losses.mean())

    def changed(self, by: Answer) -> dict[str, float]:
        """Of another answer to the same text: the numbers of docs/explorer-file.md."""
        if self.losses is not None and by.losses is not None:
            rise = float((by.losses.astype(np.float64) - self.losses).mean()) if self.losses.size else 0.0
            return {"cut loss": rise, "cut tokens": float((by.best != self.best).mean())}  # type: ignore[union-attr]
        if self.output is None or by.output is None:
            return {}
        return {"cut output": float(1 - torch.cosine_similarity(self.output.double(), by.output.double(), -1).mean())}


def answers_of(outputs: Any, ids: Tensor | None, *, last: bool = True) -> list[Answer]:
    """Of every row of a forward's outputs. ids [1, T]: the tokens of a decoder; None: a model without a loss. last: also the next tokens."""
    if ids is None:
        return [Answer(output=row) for row in (outputs[0] if isinstance(outputs[0], Tensor) else outputs[0][0])]
    made = []
    for logits in outputs.logits:  # one at a time: half a gigabyte of a long text's
        rows = logits.float()
        losses = rows[:-1].logsumexp(-1) - rows[:-1].gather(-1, ids[0, 1:, None])[:, 0]
        answer = Answer(losses.numpy(), rows.argmax(-1).numpy())
        if last:
            high = rows[-1].softmax(-1).topk(min(10, rows.shape[-1]))
            answer.next = list(zip(high.indices.tolist(), high.values.tolist()))
        made.append(answer)
    return made


@contextlib.contextmanager
def _at_sites(model: nn.Module, sites: Mapping[int, Site], act: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """act(index, x [.., heads * width]) sees what each projection reads, and may return something else."""
    by_use = {(id(site.module), site.use): index for index, site in sites.items()}
    uses: dict[int, int] = {}

    def read(module: nn.Module, args: tuple[Any, ...]) -> Any:
        use = uses[id(module)] = uses.get(id(module), -1) + 1
        index = by_use.get((id(module), use))
        other = None if index is None else act(index, args[0])
        return None if other is None else (other, *args[1:])

    with contextlib.ExitStack() as hooks:
        hooks.enter_context(model.register_forward_pre_hook(lambda *_: uses.clear()))
        for module in {id(site.module): site.module for site in sites.values()}.values():
            hooks.enter_context(module.register_forward_pre_hook(read))
        yield


def cutting(model: nn.Module, sites: Mapping[int, Site], rows: Sequence[Heads], instead: Mapping[int, Tensor] | None = None) -> Any:
    """A context in which row b of the batch runs without rows[b]. instead [T | 1, heads, width], by call: what stands there; None: zero.
    Steps of generation behind T positions are left as they are."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for row, heads in enumerate(rows):
        for index, head in heads:
            if index not in sites:
                raise ValueError(f"[cut] layer {index}: no projection that reads its heads was found: there are {sorted(sites)}")
            if not 0 <= head < sites[index].heads:
                raise ValueError(f"[cut] layer {index} has heads 0..{sites[index].heads - 1}: got {head}")
            wanted.setdefault(index, []).append((row, head))

    def cut(index: int, x: Tensor) -> Tensor | None:
        if index not in wanted:
            return None
        parts = x.reshape(len(rows), -1, sites[index].heads, sites[index].width).clone()
        for row, head in wanted[index]:
            other = None if instead is None else instead[index][:, head].to(x.dtype)
            if other is None or len(other) in (1, parts.shape[1]):
                parts[row, :, head] = 0 if other is None else other
        return parts.reshape(x.shape)

    return _at_sites(model, sites, cut)


@contextlib.contextmanager
def fast(model: nn.Module) -> Iterator[None]:
    """The model's products by qkv, and GPT-2's activation in one pass."""

    def product(module: Any) -> Any:
        weight, bias = module.weight.detach().T.contiguous(), module.bias.detach().float()
        return lambda x: linear(x, weight, bias, invariant=False)

    changed = []
    with optimized(model, bits="fast"):
        for module in model.modules():
            if "forward" in vars(module):
                continue  # somebody's own
            is_wide = next(module.parameters(), torch.empty(0)).dtype in (torch.float32, torch.bfloat16)
            if type(module).__name__ == "Conv1D" and is_wide:
                module.forward = product(module)
            elif type(module).__name__ == "NewGELUActivation":
                module.forward = functools.partial(torch.nn.functional.gelu, approximate="tanh")
            else:
                continue
            changed.append(module)
        try:
            yield
        finally:
            for module in changed:
                del module.forward


class Cuts:
    """One text, run whole once, and again without heads: blocks below the first head that is cut give what they gave. ids [1, T]: the tokens
    of a decoder; `running`: makes the context in which the model runs."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], sites: Mapping[int, Site], ids: Tensor | None, running: Any) -> None:
        self.model, self.sites, self.running, self.ids = model, sites, running, ids
        self.inputs = dict(inputs) | ({} if ids is None else {"use_cache": False})
        self.heads_gave: dict[int, Tensor] = {}  #: by call, [T, heads, width]
        self._blocks: dict[str, Any] = {}  # what each gave; None: it ran more than once
        with fast(model):
            self.whole = self._record()
            again = answers_of(self._forward([()], len(self._blocks)), self.ids)[0]
        self._reuses = all(value < 1e-6 for value in map(abs, self.whole.changed(again).values()))

    def _record(self) -> Answer:
        modules = dict(self.model.named_modules())

        def gave(name: str, output: Any) -> None:
            self._blocks[name] = output if name not in self._blocks else None

        def read(index: int, x: Tensor) -> None:
            self.heads_gave[index] = x.detach().reshape(-1, self.sites[index].heads, self.sites[index].width).clone()

        with contextlib.ExitStack() as stack:
            for name in filter(None, dict.fromkeys(site.layer for _, site in sorted(self.sites.items()))):
                hook = modules[name].register_forward_hook(lambda _, __, output, name=name: gave(name, output))
                stack.callback(hook.remove)
            with _at_sites(self.model, self.sites, read), self.running(self.model), torch.no_grad():
                return answers_of(self.model(**self.inputs), self.ids)[0]

    def _forward(self, rows: Sequence[Heads], below: int, instead: Mapping[int, Tensor] | None = None) -> Any:
        """Outputs of a batch, a row for each cut; the first `below` blocks give what they gave."""

        def many(x: Any) -> Any:
            if isinstance(x, Tensor):
                return x.expand(len(rows), *x.shape[1:]) if x.ndim and len(x) == 1 else x
            return type(x)(map(many, x)) if type(x) in (tuple, list) else x

        modules, names = dict(self.model.named_modules()), list(self._blocks)[:below]
        known = names if all(value is not None for value in self._blocks.values()) else []
        own = {name: vars(modules[name])["forward"] for name in known if "forward" in vars(modules[name])}
        try:
            for name in known:
                modules[name].forward = lambda *_, name=name, **__: many(self._blocks[name])
            with cutting(self.model, self.sites, rows, instead), self.running(self.model), torch.no_grad():
                return self.model(**{name: many(x) for name, x in self.inputs.items()})
        finally:
            for name in known:
                del modules[name].forward
                vars(modules[name]).update({"forward": own[name]} if name in own else {})

    def means(self) -> dict[int, Tensor]:
        """The mean of every head over the positions, by call."""
        return {index: x.mean(0, keepdim=True) for index, x in self.heads_gave.items()}

    def answer(self, heads: Heads, instead: Mapping[int, Tensor] | None = None) -> Answer:
        """Without these heads, all at once."""
        with fast(self.model):
            return self._answers([heads], instead)[0]

    def _answers(self, rows: Sequence[Heads], instead: Mapping[int, Tensor] | None, *, last: bool = True) -> list[Answer]:
        first = min((index for heads in rows for index, _ in heads if index in self.sites), default=0)
        names = list(self._blocks)
        name = self.sites[first].layer if first in self.sites else ""
        below = names.index(name) if self._reuses and name in names else 0
        return answers_of(self._forward(rows, below, instead), self.ids, last=last)

    def every(self, instead: Mapping[int, Tensor] | None = None, *, shown: bool = False) -> dict[str, dict[int, np.ndarray]]:
        """Each head cut alone: by number of docs/explorer-file.md and by call, one of each head."""
        made: dict[str, dict[int, np.ndarray]] = {}
        total, done = sum(site.heads for site in self.sites.values()), 0
        length = next(iter(self.heads_gave.values())).shape[0] if self.heads_gave else 1
        words = 1 if self.ids is None else getattr(self.model.get_output_embeddings(), "out_features", 1)
        at_once = max(1, min(_ROWS // length, _LOGITS // (length * words)))
        with Progress(total, shown=shown) as bar, fast(self.model):
            for index, site in sorted(self.sites.items()):
                for start in range(0, site.heads, at_once):
                    some = range(start, min(start + at_once, site.heads))
                    for head, answer in zip(some, self._answers([[(index, head)] for head in some], instead, last=False)):
                        for name, value in self.whole.changed(answer).items():
                            made.setdefault(name, {}).setdefault(index, np.zeros(site.heads))[head] = value
                    done += len(some)
                    bar.update(done, f"layer {index}: {site.heads} heads cut, one at a time")
        return made
