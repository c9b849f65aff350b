"""The textbook's arrays with their axes: what a person's arrays are compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_ROWS = {"q": "i", "out": "i", "values": "i", "merged": "i", "k": "j", "v": "j"}
_FREE = ("q", "k", "scores")
_HEADS = ("q", "k", "v", "scores", "weights")
_NONE = ("visible", "heads", "kv_heads", "causal", "round", "rounds")
SCORES = ("scores", "logits")
#: Whole numbers that say where something is.
INDICES = ("tokens", "parents", "offset", "pages", "slots")
#: Later is nearer to the output.
ORDER = ("x", "q", "k", "v", "scores", "logits", "exp", "weights", "values", "out")


class Stage(NamedTuple):
    """`axes`: b sequence, g key/value head, r query head of a group, i query, j key, d column of a head, e column."""

    name: str
    value: np.ndarray
    axes: str
    round: int
    free: bool = False  # up to a factor

    @property
    def rank(self) -> int:
        return ORDER.index(self.name) if self.name in ORDER else len(ORDER) - 2


class Softmax(NamedTuple):
    logits: np.ndarray
    visible: np.ndarray
    weights: np.ndarray
    axes: str
    round: int


class Textbook:
    """`stages` in the textbook's order; `scale`; `answers` by name."""

    def __init__(self, tensors: dict[str, np.ndarray], heads: int, kv_heads: int, answers: tuple[str, ...]) -> None:
        keys = sorted((key.split() for key in tensors), key=lambda words: int(words[0]))
        rows = [(int(words[1]), words[-2].rpartition(".")[2], words[-1], tensors[" ".join(words)]) for words in keys]
        self.group = kv_heads if heads % kv_heads == 0 else heads
        self.stages: list[Stage] = []
        self.past: dict[int, list[np.ndarray]] = {}  # what a call keeps for the next one, by that
        self.softmaxes: list[Softmax] = []
        self.scale, self.rounds = 1.0, 1 + max((turn for turn, *_ in rows), default=0)
        self.answers = {name: value for _, _, name, value in rows if name in answers}
        self.lse = any(stage == "given" and name == "lse" for _, stage, name, _ in rows)  # weights are exp(scores - lse) alone
        self.tiled = any(name == "unscaled" for *_, name, _ in rows)
        one_query = any(name == "q" and value.ndim == 1 for _, _, name, value in rows)
        one_head = not any(name == "weights" and value.ndim == 4 for _, _, name, value in rows)
        latest: dict[str, Any] = {}
        for self._turn, stage, name, value in rows:
            name = "scores" if name == "scaled" else name
            own = re.sub("^(was|now|nope|rope)_", "", name.rpartition(".")[2])
            if one_query and own in _HEADS:
                value = value.reshape((1,) * (4 - value.ndim) + value.shape)
            if one_head and value.ndim == 3 and own in _HEADS:
                value = value[:, None]
            self._read(stage, own, value, latest)
            latest[name.rpartition(".")[2]] = value
        for turn in range(self.rounds):
            self._fused(turn)

    def at(self, turn: int) -> tuple[list[Stage], list[Softmax]]:
        """What is known in a round: its own arrays, and earlier ones that did not change in it."""
        last = {one.name: one.round for one in self.stages if one.round <= turn}
        return [one for one in self.stages if last.get(one.name) == one.round], [one for one in self.softmaxes if one.round == turn]

    def apart(self, right: Textbook) -> list[Stage]:
        """Its stages that are not as in another textbook."""

        def same(one: Stage, other: Stage) -> bool:
            if (one.name, one.value.shape) != (other.name, other.value.shape):
                return False
            at = np.unravel_index(np.abs(other.value).argmax(), other.value.shape)
            factor = abs(one.value[at] / other.value[at]) if one.free else 1.0
            return _same(one.value, other.value * factor)

        return [one for one in self.stages if not any(same(one, other) for other in right.stages)]

    def instead(self, right: Textbook, found: Iterator[Departure]) -> tuple[list[Stage], Departure | None]:
        """The first departure that is a stage of another textbook: the stages that it is, of both."""
        mine, right_ones = ([(stage, _sorted(stage.value)) for stage in book.stages] for book in (self, right))
        for one in found:
            value = _sorted(one.value)
            if any(_same(other, value) for _, other in right_ones):
                return [stage for stage, other in (*mine, *right_ones) if _same(other, value)], one
        return [], None

    def _read(self, stage: str, name: str, value: np.ndarray, latest: dict[str, Any]) -> None:
        if name == "loss" or name == "positions":
            self.stages.append(Stage(name, value.ravel(), "i", self._turn))
        if name.startswith("past_"):
            self.past.setdefault(self._turn + 1, []).append(value)
        if re.fullmatch("d_.+_now", name):
            self.stages.append(Stage(name, value, "ef"[-value.ndim :], self._turn))
        if stage == "join" or name in _NONE or name.startswith(("past_", "carried_")) or value.size < 2 or name[1:2] == "_":
            return
        if name == "scores" and stage in ("scale", "mask"):
            if stage == "scale":
                where = np.unravel_index(np.abs(value).argmax(), value.shape)
                self.scale = float(value[where] / latest["scores"][where])
                latest["logits"] = value
            return
        if name == "scores":
            latest["logits"] = value
            name = "scores" if stage == "scores" else "logits"
        if name == "weights" and value.ndim == 4 and "logits" in latest:
            visible = np.broadcast_to(latest.get("visible", np.ones(())), value.shape) > 0
            self.softmaxes.append(Softmax(*self._split(latest["logits"], visible, value), self._axes("scores"), self._turn))
        if name in INDICES:
            self.stages.append(Stage(name, value, "bj"[-value.ndim :], self._turn))
        elif name in ("angles", "columns"):
            self._turns(name, value, latest)
        elif value.ndim == 4 and (value.shape[1] == 1 or value.shape[1] % self.group == 0):
            self._add(name, self._split(value)[0])
        elif value.ndim == 3 and name not in ("q", "k", "v", "merged"):
            self.stages.append(Stage(name, value, f"b{_ROWS.get(name, 'i')}e", self._turn))
        elif value.ndim == 2 or (value.ndim == 1 and value.size > 2 and stage != "given"):
            self.stages.append(Stage(name, value, "ef"[: value.ndim], self._turn))

    def _turns(self, name: str, angles: np.ndarray, latest: dict[str, Any]) -> None:
        """Angles [T, n], their sines and cosines, and how much a position turns."""
        positions = latest.get("positions")
        if positions is not None and name == "angles":
            at = int(np.abs(positions).argmax())
            self.stages.append(Stage("frequencies", angles.reshape(positions.size, -1)[at] / positions.flat[at], "d", self._turn))
        for own, value in ((name, angles), ("cos", np.cos(angles)), ("sin", np.sin(angles))):
            self.stages.append(Stage(own, value.reshape(-1, value.shape[-1]), "id", self._turn))
            x = next((latest[key] for key in "xq" if key in latest and latest[key].ndim == 4), None)
            if own in ("cos", "sin") and name == "columns" and x is not None:
                self._add(own + "_x", self._split(x * value)[0])

    @staticmethod
    def _axes(name: str) -> str:
        last = "j" if name in ("scores", "weights", "logits") or name.startswith(("products", "share", "bias", "dscore", "dweight")) else "d"
        return f"bgr{_ROWS.get(name, 'i')}{last}"

    def _split(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(one.reshape(one.shape[0], self.group if one.shape[1] > 1 else 1, -1, *one.shape[2:]) for one in arrays)

    def _add(self, name: str, value: np.ndarray) -> None:
        self.stages.append(Stage(name, value, self._axes(name), self._turn, name in _FREE))

    def _fused(self, turn: int) -> None:
        """q, k and v in one array, before they are cut apart."""
        first: dict[str, np.ndarray] = {}
        for stage in self.stages:
            if stage.round == turn and stage.value.ndim == 5:
                first.setdefault(stage.name, stage.value)
        whole = [first[name] for name in "qkv" if name in first]
        if len(whole) == 3 and whole[0].shape == whole[1].shape == whole[2].shape:
            self.stages.append(Stage("qkv", np.stack(whole, 1), "bpgrid", turn))
        if len(whole) > 1:
            if whole[-1].shape == whole[-2].shape:
                self.stages.append(Stage("kv", np.stack(whole[-2:], 1), "bpgrid", turn))
            if len({(one.shape[0], one.shape[3]) for one in whole}) == 1:  # columns side by side
                flat = [one.transpose(0, 3, 1, 2, 4).reshape(one.shape[0], one.shape[3], -1) for one in whole]
                self.stages.append(Stage("qkv", np.concatenate(flat, -1), "bie", turn))


class Departure(NamedTuple):
    """An array of a textbook with a mistake where the textbook makes other numbers of it; whether it is as it was before."""

    name: str
    value: np.ndarray
    missing: bool


def departures(right: dict[str, np.ndarray], wrong: dict[str, np.ndarray]) -> Iterator[Departure]:
    """In the textbook's order."""
    made = [sorted((int(words[0]), words[-1], key) for key in one if (words := key.split())[-1] not in _NONE) for one in (right, wrong)]
    before: dict[str, np.ndarray] = {}
    for count, name, key in made[0]:
        instead = next((wrong[other] for n, own, other in reversed(made[1]) if own == name and n <= count), None)
        if instead is not None and instead.size > 1 and not same_numbers(instead, right[key]):
            yield Departure(name, instead, name in before and same_numbers(before[name], instead))
        before[name] = right[key]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    with np.errstate(invalid="ignore"):  # np.allclose takes ten times as long
        near = np.abs(one - other) <= 1e-9 + 1e-6 * np.abs(other)
    return bool((near | (one == other) | (np.isnan(one) & np.isnan(other))).all())


def same_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    """The same numbers in any order."""
    return one.size == other.size and _same(_sorted(one), _sorted(other))


def _sorted(array: np.ndarray) -> np.ndarray:
    return np.sort(np.nan_to_num(array), axis=None)
