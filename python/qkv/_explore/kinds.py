"""What a head does, said from sums of its weights: previous, self, duplicate, induction, local, diffuse, first, or mixed. Memory is of
the order of the pairs that are looked at, never Tq x Tk.

The mass on the first keys (a sink, and a learned one) is set apart: what follows is of the rest of each row, r. In sums over queries i:

    share   = sum_i (weights on the pairs in question) / sum_i r_i, over the queries that have such a pair and another key too
    score   = (share - chance) / (1 - chance), chance: the share of a head that looks at all its other keys alike
    diffuse = sum_i r_i H_i / sum_i r_i ln n_i, H_i the entropy of the rest divided by r_i, n_i the keys it may lie on

A kind is said where its score (of "first" and "diffuse": its share) reaches a threshold; of several the simplest explanation, in the order
of KINDS. Otherwise a head is mixed. Of more than 2,048 queries every n-th counts, with its exact weights:
the rules, the numbers and the queries are those of src/view/explore/kinds.cc. Olsson 2022
(arXiv:2209.11895) for induction and previous-token heads, Wang 2022 (2211.00593) for duplicate-token heads, Xiao 2023
(2309.17453) for sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .formula import Formula

#: In the order in which they are asked.
KINDS = ("first", "previous", "self", "duplicate", "induction", "local", "diffuse", "mixed")
THRESHOLD = 0.5  # of a score
FIRST = 0.9  # of the mass on the first keys: what is left is too little to speak of
DIFFUSE = 0.95  # of the entropy over ln n; scores of variance 1 over 500 keys have 0.92
LOCAL = 8  # keys on either side
QUERIES = 2048
_PAIRS = 1 << 18  # of equal words, of one sequence
_LEAST_ROWS = 4  # queries that must have such a pair

Weights = Callable[[int, np.ndarray, np.ndarray], np.ndarray]  # sequence, i[n], j[n] -> [H, n]


@dataclass
class Kind:
    """Of one head."""

    kind: str
    share: float | None  #: that speaks for it; None: mixed
    first: float  #: mass on the first keys, learned sinks included
    shares: dict[str, float] = field(default_factory=dict)  #: of every kind that could be asked for


@dataclass
class _Sums:
    """Of one kind, over the queries of all sequences: [H] each."""

    mass: np.ndarray
    rest: np.ndarray
    chance: np.ndarray
    rows: int = 0


class Sums:
    """Sums over queries, added up sequence by sequence and call by call. first: how many keys are set apart; grid: (height, width) of
    the patches of an image, which begin behind them."""

    def __init__(self, heads: int, *, first: int = 1, grid: tuple[int, int] | None = None) -> None:
        self.heads, self.first, self.grid = heads, first, grid
        self.queries = self.spread = 0  # queries with a key behind the first ones, with several
        self.apart, self.weighted, self.even = np.zeros((3, heads))
        self.of: dict[str, _Sums] = {}

    def add(
        self, formula: Formula, weights: Weights, b: int, entropy: np.ndarray, sink: np.ndarray, *, start: int | np.ndarray = 0,
        live: np.ndarray | None = None, ids: np.ndarray | None = None, q_first: int | None = None,
    ) -> None:  # fmt: skip
        """Sequence b of a call. entropy, sink [H, Tq]: statistics of the rows. start: its first key that is a token, or
        [Tq]: of each query's document. live [Tq]: which
        queries are tokens. ids [Tk]: tokens' numbers of the keys, of which the last Tq are the queries'."""
        rows = np.arange(formula.q_len) if live is None else np.flatnonzero(live)
        step = max(1, -(-len(rows) // QUERIES))
        rows = rows[::step]
        counts = formula.count(b, rows)
        starts = np.broadcast_to(start, formula.q_len)
        apart = self._first_keys(rows, starts)
        seen = formula.keep(b, *apart).reshape(len(rows), self.first).sum(1)
        others = counts - seen
        chosen = others >= 1
        rows, others, turns = rows[chosen], others[chosen], np.flatnonzero(chosen)
        if not len(rows):
            return
        apart = self._first_keys(rows, starts)
        on_first = weights(b, *apart).reshape(self.heads, len(rows), self.first)
        own_sink, entropy = sink[:, rows], entropy[:, rows]
        rest = np.clip(1 - on_first.sum(-1) - own_sink, 0, 1)
        self.queries += len(rows)
        self.apart += (1 - rest).sum(1)
        left = entropy + _xlogx(on_first).sum(-1)  # - sum of w ln w over the rest
        several = others >= 2
        self.spread += int(several.sum())
        self.weighted += np.where(several, np.maximum(left + _xlogx(rest), 0), 0).sum(1)
        self.even += np.where(several, rest * np.log(np.maximum(others, 2)), 0).sum(1)
        offset = formula.offset(b)
        equals = 0 if ids is None else (np.unique(ids, return_counts=True)[1].astype(float) ** 2).sum()
        with_equals = turns % max(1, int(np.ceil(equals / (step * _PAIRS)))) == 0
        for name, pairs in self._asked(rows, offset, starts, formula, ids, with_equals):
            self._add(name, formula, weights, b, rows, others, rest, starts, pairs)

    def _first_keys(self, rows: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(rows, self.first), (starts[rows, None] + np.arange(self.first)).ravel()

    def _asked(
        self, rows: np.ndarray, offset: int, starts: np.ndarray, formula: Formula, ids: np.ndarray | None, with_equals: np.ndarray
    ) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
        """Of each kind the pairs that speak for it: places in rows, and keys. with_equals [rows]: the queries that are asked for words."""
        if formula.cross:
            return
        places, at = np.arange(len(rows)), rows + offset
        yield "previous", (places, at - 1)
        yield "self", (places, at)
        if ids is not None:
            asked = np.flatnonzero(with_equals & (at >= 0) & (at < len(ids)))
            place, keys = _equal(ids[at[asked]], ids)
            place, apart = asked[place], keys != at[asked][place]
            yield "duplicate", (place[apart], keys[apart])
            place, keys = _equal(ids[at[asked]], ids[:-1])
            place, keys = asked[place], keys + 1  # the token before key j is the query's
            apart = (keys != at[place]) & (keys != at[place] + 1)
            yield "induction", (place[apart], keys[apart])
        near = self._neighbours(at, starts[rows])
        yield "local", (np.repeat(places, near.shape[1]), near.ravel())

    def _neighbours(self, at: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Keys around each position [n, keys]; -1: none."""
        if self.grid is None:
            return at[:, None] + np.arange(-LOCAL, LOCAL + 1)
        height, width = self.grid
        y, x = np.divmod(at - start - self.first, width)
        dy, dx = (d.ravel() for d in np.mgrid[-1:2, -1:2])
        rows, columns = y[:, None] + dy, x[:, None] + dx
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width) & (at >= start + self.first)[:, None]
        return np.where(inside, start[:, None] + self.first + rows * width + columns, -1)

    def _add(
        self, name: str, formula: Formula, weights: Weights, b: int, rows: np.ndarray, others: np.ndarray, rest: np.ndarray, starts: np.ndarray,
        pairs: tuple[np.ndarray, np.ndarray],
    ) -> None:  # fmt: skip
        place, keys = pairs
        kept = (keys >= starts[rows[place]] + self.first) & formula.keep(b, rows[place], keys)
        place, keys = place[kept], keys[kept]
        targets = np.bincount(place, minlength=len(rows))
        having = (targets > 0) & (others >= 2) & (targets < others)
        on = np.zeros((self.heads, len(rows)))
        step = 1 << 15
        for at in range(0, len(place), step):
            some = slice(at, at + step)
            found = weights(b, rows[place[some]], keys[some])
            for head in range(self.heads):
                on[head] += np.bincount(place[some], found[head], len(rows))
        sums = self.of.setdefault(name, _Sums(*np.zeros((3, self.heads))))
        sums.rows += int(having.sum())
        sums.mass += on[:, having].sum(1)
        sums.rest += rest[:, having].sum(1)
        sums.chance += (rest[:, having] * (targets / np.maximum(others, 1))[having]).sum(1)

    def kinds(self) -> list[Kind]:
        """One per head."""
        if not self.queries:
            return [Kind("mixed", None, 0.0) for _ in range(self.heads)]
        return [self._kind(head) for head in range(self.heads)]

    def _kind(self, head: int) -> Kind:
        first = float(self.apart[head] / self.queries)
        shares, said = {"first": first}, "first" if first >= FIRST else None
        for name in KINDS[1:6]:
            sums = self.of.get(name)
            if sums is None or sums.rows < _LEAST_ROWS or not sums.rest[head] > 1e-3 * sums.rows:
                continue
            share, chance = float(sums.mass[head] / sums.rest[head]), float(sums.chance[head] / sums.rest[head])
            shares[name] = share
            if said is None and share - chance >= THRESHOLD * (1 - chance):
                said = name
        if self.spread >= _LEAST_ROWS and self.even[head] > 1e-3 * self.queries:
            shares["diffuse"] = float(self.weighted[head] / self.even[head])
            if said is None and shares["diffuse"] >= DIFFUSE:
                said = "diffuse"
        return Kind(said or "mixed", shares[said] if said else None, first, shares)


def _xlogx(x: np.ndarray) -> np.ndarray:
    return x * np.log(np.maximum(x, 1e-300))


def _equal(own: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (n, j) with ids[j] == own[n]."""
    order = np.argsort(ids, kind="stable")
    low, high = (np.searchsorted(ids[order], own, side) for side in ("left", "right"))
    counts = high - low
    place = np.repeat(np.arange(len(own)), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, order[np.repeat(low, counts) + within]
