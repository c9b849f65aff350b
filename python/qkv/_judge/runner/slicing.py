"""Code that takes no batch: it is called once for each sequence and head, or with both in one axis, and the outputs are stacked.
Not: when that is so (first_calls.py)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .frameworks import is_array, is_tensor, source_of, torch_of
from .slots import Tensors

_HEADED = ("q", "k", "v", "x", "memory", "dout", "weights", "out", "lse")
#: Each is a part of a note; the last six are ways of one call.
HEAD, TOKEN, FULL = "once for each head", "once for each token", "with as many sequences as it was made for"
SWAPPED, TIME_FIRST, ROWS = "with heads behind tokens", "with tokens before the batch", "with all tokens as rows"
BEHIND = "as it stands"
WHOLE = (SWAPPED, TIME_FIRST, BEHIND)  # any mask can be given
#: Sequences that buffers of a cache are made for.
FULL_BATCH = 8
#: What says so: a docstring of x, the names of the axes of an argument.
_FIRST = r"(?:t|l|s|seq\w*|len\w*|(?:tgt|src|q)_?len\w*|time|tokens), ?(?:b|bs|batch\w*|bsz)\b"
_SAID = re.compile(rf"\bx\b[^(\[]{{0,20}}[(\[](?:{_FIRST}|(?:t|l|s|seq\w*|time), n\b)|\b(?:time|seq\w*) x batch", re.IGNORECASE)
_BATCH_FIRST = re.compile(r"[(\[](?:b|n|bs|bsz|batch\w*), ?(?:t|l|s|n|seq\w*|len\w*|time|tokens)\b", re.IGNORECASE)
_UNPACKED = re.compile(rf"(?m)^\s*{_FIRST}.*= *(\w+)\.(?:shape\b|size\(\))", re.IGNORECASE)


class Slices(NamedTuple):
    """`axes`: of each input those that are gone through, of one with fewer the first of them."""

    takes: str
    how: str
    axes: dict[str, tuple[int, ...]] = dict.fromkeys(_HEADED, ())
    swaps: tuple[int, int] = (0, 0)  # axes of what is returned
    lists: bool = False  # nested lists in place of arrays
    columns: bool = False  # tokens are columns

    @property
    def note(self) -> str:
        if self.how == BEHIND:
            return f"it returns heads behind tokens, {self.takes}: compared as [B, H, T, d]"
        return f"called {self.how}: it takes {self.takes}"

    def call(self, function: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
        """What the whole call would return; a mask must be [B, H, Tq, Tk], or [B, Tq, Tk] where x is sliced."""
        inputs = {name: values[name] for name in self.axes if name in values and is_array(values[name])}
        if self.how in (TOKEN, FULL, ROWS, *WHOLE):
            changed, back = self._whole(inputs)
            raw = function({**values, **changed})
            if self.how == ROWS:
                return rebuilt([raw], lambda parts: back(parts[0]))
            return (back(raw[0]), *raw[1:]) if isinstance(raw, tuple) else back(raw)
        if self.columns:
            row, function = function, lambda given: _turned(row({name: _turned(value) for name, value in given.items()}))
        if self.lists:
            person, function = function, lambda given: person(
                {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in given.items()}
            )
        most = max(inputs, key=lambda name: len(self.axes[name]))
        lead = tuple(inputs[most].shape[axis] for axis in self.axes[most])
        cuts = [{name: _at(value, self.axes[name], index) for name, value in inputs.items()} for index in np.ndindex(*lead)]
        return rebuilt([function({**values, **cut}) for cut in cuts], lambda parts: _stacked(parts, lead).swapaxes(*self.swaps))

    def _whole(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        """(inputs of one call, what makes the contract's output of its output)"""
        if self.how in WHOLE:
            given = inputs if self.how == BEHIND else {name: value.swapaxes(*self.swaps) for name, value in inputs.items()}
            heads = inputs["q"].shape[1:2] if getattr(inputs.get("q"), "ndim", 0) == 4 else ()
            return given, lambda out: (out.reshape(*out.shape[:2], *heads, -1) if heads and out.ndim == 3 else out).swapaxes(*self.swaps)
        x, lead = inputs["x"], tuple(inputs["x"].shape[:-1])
        if self.how == ROWS:
            rows = {name: value.reshape(-1, value.shape[-1]) for name, value in inputs.items()}
            return rows, lambda out: out.reshape(*lead, -1) if out.ndim == 2 and len(out) == math.prod(lead) else out
        if self.how == TOKEN:
            return {"x": x[:, 0]}, lambda out: out[:, None]
        # Zeros beside the sequences, which the buffers of a cache have room for.
        return {"x": _stacked([x[n] if n < len(x) else 0 * x[0] for n in range(FULL_BATCH)], (FULL_BATCH,))}, lambda out: out[: len(x)]

    def takes_mask(self, shape: str) -> bool:
        """Whether a mask of this shape can be given."""
        if self.how == HEAD:
            return shape not in ("[B, 1, L, L]", "[B, H, L, L]", "[B, 1, 1, L]", "[B*H, L, L]")
        whole = "[B, H, L, L]" if max(map(len, self.axes.values())) > 1 else "[B, L, L]"
        return self.how in WHOLE or shape == whole


def tokens_first(thing: Any, function: Any) -> str:
    """Whether a docstring says that the input is [L, B, E]: "said"; or the names of its axes, which no docstring denies: "named"."""
    source = source_of(function)
    unpacked = _UNPACKED.search(source)
    own = unpacked and not re.search(rf"(?m)^\s*{unpacked[1]}\b.*=[^=]", source[: unpacked.start()])
    documents = f"{thing.__doc__} {function.__doc__}"
    return "said" if _SAID.search(documents) else "named" if own and not _BATCH_FIRST.search(documents) else ""


#: "(batch, seq, heads, dim)", as docstrings write it; what says that heads are before tokens in what is returned.
_HEADS_LAST = re.compile(r"(?i)\b(?:batch\w*|b)\s*,\s*(?:seq\w*|time|length|tokens|[lts])\s*,\s*(?:\w*heads?|h)\s*,")
_RETURNS_HEADS = re.compile(r"(?i)(?:\bout(?:put)?\b|return|返回|输出)[^.\n\[(]{0,30}[\[(]\s*\w+\s*,\s*(?:n?_?h|\w*heads?)\s*,")


def heads_behind(one: np.ndarray, two: np.ndarray, q: tuple[int, ...], says: str, asked: bool) -> Slices | None:
    """How code is called that takes or returns heads behind tokens, or returns them joined, by its output for q [B, H, T, d], and for other
    keys of head 0: [B, T, H, d] are taken where heads depend on each other's, as no exercise's do. `asked`: by the contract."""
    batch, heads, tokens, dim = q
    if asked and not _HEADS_LAST.search(says):
        return None
    returned = {(batch, tokens, heads, dim): "[B, T, H, d]", (batch, tokens, heads * dim): "[B, T, H * d]"}.get(one.shape)
    if returned and not asked and not _RETURNS_HEADS.search(says):
        return Slices(returned, BEHIND, swaps=(1, 2))
    if one.shape == two.shape and not (one[:, 1:] == two[:, 1:]).all():
        return Slices("[B, T, H, d]", SWAPPED, swaps=(1, 2))
    return None


def _leading(count: int, takes: str, names: Iterable[str] = (*_HEADED, "mask"), lists: bool = False, columns: bool = False) -> Slices:
    """Once for each sequence, or for each of its heads."""
    how = "once for each sequence" + " and head" * (count == 2)
    return Slices(takes + " as lists" * lists, how, dict.fromkeys(names, tuple(range(count))), (0, 0), lists, columns)


def _by_head(takes: str, heads: dict[str, tuple[int, ...]]) -> Slices:
    """One head after the other, without an axis: where it is."""
    return Slices(takes, HEAD, heads, (0, 1))


def choices(tensors: Tensors, cache: bool = False) -> list[Slices]:
    """The ways to call with fewer axes than the contract's, `cache`: of a call with one; none for inputs that cannot be cut."""
    x, heads = tensors.get("x"), _by_head("[B, T, d]", dict.fromkeys(_HEADED, (1,)))
    if "q" in tensors and x is None:
        query = Slices("q [H, d], k [H, S, d]", "once for each sequence and query", {"q": (0, 2), "k": (0,), "v": (0,)}, (1, 2))
        row = Slices("q [d], k [S, d]", "once for each sequence, head and query", {"q": (0, 1, 2), "k": (0, 1), "v": (0, 1)})
        return [_leading(2, "[T, d]"), heads, _leading(2, "[T, d]", lists=True), *([] if "dout" in tensors else [query, row])]
    if cache:
        return [Slices("[B, E]", TOKEN), Slices(f"batches of {FULL_BATCH}", FULL)]
    if x is None or "dout" in tensors or "q" in tensors:  # gradients of parameters are sums over the batch
        return []
    if x.ndim == 3:
        return [_leading(1, "[L, E]"), _leading(1, "[L, E]", lists=True), _leading(1, "[E, L]", columns=True)]
    return [_leading(2, "[T, d]"), heads, Slices("[B, T, H, d]", SWAPPED, swaps=(1, 2))]


def choices_of_part(axes: dict[str, list[str]], answers: list[str]) -> list[Slices]:
    """The same of a part's tensors {name: axes}, where its answers have the batch too."""
    cut = {name: one for name, one in axes.items() if one[0] == "B"}
    if not cut or not {"out", "m", "l", "dx", "dq", "dk", "dv"} >= {*answers}:
        return []
    paged = [_by_head("q [B, d]", {name: (one.index("H"),) for name, one in axes.items() if "H" in one})] if "block_table" in axes else []
    longest, least = max(cut.values(), key=len), min(len(one) for one in cut.values())
    counts = range(1, least + (len(longest) > least))
    return paged + [_leading(count, f"[{', '.join(longest[count:])}]", cut, lists) for count in counts for lists in (False, True)]


def _at(value: Any, axes: tuple[int, ...], index: tuple[int, ...]) -> Any:
    """An array at an index of these axes."""
    where = dict(zip(axes, index))
    return value[tuple(where.get(axis, slice(None)) for axis in range(value.ndim))]


def _turned(value: Any) -> Any:
    return value.swapaxes(-1, -2) if is_array(value) and value.ndim == 2 else value


def _stacked(parts: list[Any], lead: tuple[int, ...]) -> Any:
    whole = torch_of().stack(parts) if is_tensor(parts[0]) else np.stack(parts)
    return whole.reshape(*lead, *whole.shape[1:])


def rebuilt(raws: list[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Arrays joined, wherever they lie in what was returned; lists of numbers too."""
    first, number = raws[0], (int, float, np.generic)
    row = isinstance(first, list) and all(isinstance(one, number) for one in first)
    rows = isinstance(first, list) and all(isinstance(one, (list, tuple)) for one in first) and np.array(first, dtype=object).ndim > 1
    if isinstance(first, number) or row or rows:
        raws = [np.array(raw, dtype=float) for raw in raws]
    first = raws[0]
    if is_array(first):
        return join(raws)
    if isinstance(first, dict):
        return {key: rebuilt([raw[key] for raw in raws], join) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(rebuilt(list(parts), join) for parts in zip(*raws))
    return first
