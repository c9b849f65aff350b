"""The line that caused a wrong value: that of the value, or an earlier one that gave it a wrong role, factor or mask."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .match import Match, layouts
from .record import ALIASES, Event, is_constant
from .stages import SCORES

_PRODUCTS = ("mm", "matmul", "einsum", "mul", "dot", "linear", "tensordot", "inner", "list", "add", "store")
LATE = ("logits", "exp", "weights", "values", "out")
#: In names that say that True hides.
_HIDING = ("hid", "future", "later", "drop", "block", "pad", "forbid", "ban", "ignore", "exclude", "invisible", "off")


def role(name: str) -> str:
    """ "q" of q, Q, q_heads, queries; "cos" and "sin"; empty for a name that says nothing."""
    low = name.lower()
    for word, found in (("quer", "q"), ("key", "k"), ("val", "v"), ("cos", "cos"), ("sin", "sin")):
        if word in low:
            return found
    parts = re.split(r"[_\d]+", low)
    return next((part for part in parts if part in ("q", "k", "v")), "")


def _masking(name: str) -> bool:
    return "mask" in name.lower() or "causal" in name.lower()


def _arguments(code: Any) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class Causes:
    """`leads`: the events that are right, or made into something right."""

    def __init__(self, search: Any, leads: set[int]) -> None:
        self.search, self.leads, self.record = search, leads, search.record
        self.events, self.book, self.up, self.match = search.events, search.book, search.up, search.match
        self.masks = any((~one.visible).any() for one in self.book.softmaxes)

    def line(self, index: int) -> int:
        event = self.events[index]
        ups = [(p, m) for p in (self._handed(p, event.line) for p in event.parents) if (m := self.match(p))]
        if line := self._kept(event) or self._unused(index, ups) or self._heads(ups) or self._misnamed(event, ups):
            return line
        early = next((p for p, match in ups if match.stage in ("exp", *SCORES)), None)
        product = any(word in event.op for word in _PRODUCTS) and any(match.stage == "v" for _, match in ups)
        if early is not None and product and (line := self._undivided(event, early)):
            return line
        score = next(((p, m) for p, m in ups if m.stage in SCORES), None)
        side = self._side(event.parents)
        if score and side:
            return self._masked(event, *score, side)
        if score:
            return self._scored(event, *score)
        return self._drawn(side) or self._renamed(event) or self._caller(event)

    def _side(self, parents: tuple[int, ...]) -> list[int]:
        """Arrays of constants."""
        return [p for p in map(self._root, parents) if not self.events[p].given and not self.events[p].number and self.events[p].value.size > 1]

    def _root(self, index: int) -> int:
        while self.events[index].op in ALIASES:
            index = self.events[index].parents[0]
        return index

    def _handed(self, index: int, line: int) -> int:
        """The array as the line got it: operations have steps of their own."""
        while (match := self.match(index)) and self.events[index].line == line and self.events[index].view:
            up = self.up(index, (match.stage,))
            if not up:
                break
            index = up[0][0]
        return index

    def _chain(self, index: int, holds: Any = None) -> list[int]:
        """Events of the same stage and factor, or of what `holds`, each made of the one before; the first first."""
        found = [index]
        while match := self.match(found[0]):
            up = [(p, m) for p, m in self.up(found[0]) if self.events[p].line and (holds(m) if holds else self._same(m, match))]
            if not up:
                break
            found.insert(0, up[0][0])
        return found

    def _same(self, one: Match, other: Match) -> bool:
        if {one.stage, other.stage} <= {*SCORES}:
            return abs(self._total(one) / self._total(other) - 1) < 1e-6
        return one.stage == other.stage and abs(one.factor / other.factor - 1) < 1e-6

    def _total(self, match: Match) -> float:
        """The factor of q k^T."""
        return match.factor if match.stage == "scores" else match.factor * self.book.scale

    def _kept(self, event: Event) -> int:
        """The line that kept for a later call what the textbook does not keep."""
        for own in (self.events[i] for i in self.search.ancestors(event.parents)):
            past = self.book.past.get(own.call) if own.op == "given" and own.parents and own.call == event.call else None
            if past and not any(np.array_equal(np.sort(own.value, None).round(5), np.sort(one, None).round(5)) for one in past):
                return self.events[own.parents[0]].line
        return 0

    def _unused(self, index: int, ups: list[tuple[int, Match]]) -> int:
        """A later stage made of the same that leads to nothing: its line, or the one that reads what was there before by name."""
        made, needed = {self._root(p) for p, _ in ups}, {*self.search.needed}
        names = {p for event in self.events if event.name for p in event.parents}
        frame = next((code for _, code in reversed(self.events[index].stack)), None)  # of the function that was called
        for u, other in enumerate(self.events[:index]):
            beside = u not in needed and other.line and other.op not in ALIASES and other.stack and other.stack[-1][1] is frame
            if beside and made & {self._root(p) for p in other.parents}:
                match = self.match(u)
                if match and any((match.stage in LATE and match.stage != up.stage) or match.hidden > up.hidden for _, up in ups):
                    return self.events[index].line if u in names else other.line
        return 0

    def _heads(self, ups: list[tuple[int, Match]]) -> int:
        """Heads that share keys, side by side in one array and apart in the other, or mixed with columns: who put them so."""

        def exchanged(match: Match) -> bool:
            return 0 <= match.order.find("d" if match.stage == "values" else "r") < match.order.find("g")

        apart = [(p, match) for p, match in ups if exchanged(match)]
        return self.events[self._chain(apart[0][0], exchanged)[0]].line if apart else 0

    def _misnamed(self, event: Event, ups: list[tuple[int, Match]]) -> int:
        """The line that gave q, k, v, a cosine or a sine the name of another."""
        constants = [(p, self.search.matcher(p).constant(self.events[self._root(p)])) for p in event.parents if not self.events[p].given]
        for p, stage in [*((p, match.stage) for p, match in ups), *constants]:
            kinds = ("cos", "sin") if stage in ("cos", "sin") else ("q", "k", "v") if stage in ("q", "k", "v", "x", "memory") else ()
            chain = self._chain(p)
            while self.events[chain[0]].op in ALIASES:
                chain.insert(0, self.events[chain[0]].parents[0])
            for other in chain:
                own = self.events[other]
                named = own.op == "rename" or (own.op in ALIASES and stage not in ("x", "memory"))
                if named and role(own.name) in kinds and role(own.name) != stage:
                    return own.line
        return 0

    def _undivided(self, event: Event, index: int) -> int:
        """Scores or exponentials that meet v: the last line that made them."""
        while self.events[index].view and self.events[index].op != "rename":
            index = self.events[index].parents[0]
        own, back = self.events[index], self.search.returns(self.events[index].line)
        if self._softmax(own):
            return own.stack[1][0]
        return back if own.stack and own.stack[0][1] is not event.stack[0][1] and back > own.line else own.line

    def _renamed(self, event: Event) -> int:
        """A statement `a = b` that handed on what the value was made of."""
        for p in (self._handed(p, event.line) for p in event.parents):
            match = self.match(p)
            while self.events[p].op in ALIASES and (match is None or match.stage not in ("v", "maximum", "largest")):
                if self.events[p].op == "rename":
                    return self.events[p].line
                p = self.events[p].parents[0]
        return 0

    def _copied(self, index: int) -> int:
        return next((self.events[i].line for i in reversed(self._chain(index)) if self.events[i].op == "rename"), 0)

    def _caller(self, event: Event) -> int:
        """A line of a helper that was right in another call, or that sums an axis that its caller says: the line that called it."""
        if len(event.stack) < 2:
            return event.line
        arrays = {self.events[p].name for p in self.search.ancestors(event.parents)}
        if (self.record.reduces(event.node) - arrays) & {*_arguments(event.stack[0][1])}:
            return event.stack[1][0]
        alike = (one for i in self.leads if (one := self.events[i]).given and (one.node, one.call) == (event.node, event.call))
        return event.stack[1][0] if event.op != "list" and any(one.stack and one.stack[0][1] is event.stack[0][1] for one in alike) else event.line

    def _softmax(self, event: Event) -> bool:
        """Whether a helper's value is the softmax of its argument: it was handed something wrong."""
        if len(event.stack) < 2:
            return False
        (_, code), (called, _) = event.stack[:2]
        handed = (one.value for one in self.events if one.op == "argument" and one.line == called and one.value.size > 2)
        given = next((value for value in handed if value.dtype != bool), None)
        if given is None:
            return False
        with np.errstate(all="ignore"):
            share = np.exp(given - given.max(-1, keepdims=True))
            share = share / share.sum(-1, keepdims=True)
        inside = (one.value for one in self.events if len(one.stack) > 1 and one.stack[0][1] is code and one.stack[1][0] == called)
        return any(value.shape == share.shape and np.allclose(value, share, rtol=1e-4) for value in inside)

    def _scored(self, event: Event, index: int, match: Match) -> int:
        total, sums = self._total(match), [event.value.sum(axis) for axis in range(-event.value.ndim, 0)]
        listed = event.op == "list" and bool((event.value > 0).all() and event.value.max() <= 1)
        normalises = listed or "softmax" in event.op or "exp" in event.op or any(np.allclose(one, 1) for one in sums)
        if abs(total / self.book.scale - 1) > 1e-4 and normalises:
            if abs(total - 1) < 1e-6 and self._returns_scaled():
                return event.line  # they are scaled, and not those that are used
            culprit = self._scaled(index, total)
            return (abs(total - 1) < 1e-6 and self._copied(index)) or self._number(culprit)
        if self.masks and (not match.hidden or match.stage == "scores"):
            return self._copied(index) or self._unmasked(event, index)
        if match.last == "i" and (match.stage == "scores" or not self.masks) and (line := self._exchanged(index)):
            return line
        return self._caller(event)

    def _returns_scaled(self) -> bool:
        """Whether an answer is scaled scores."""
        answers = [match for call in self.record.outputs for i in call if (match := self.match(i)) and match.stage in SCORES]
        return any(abs(self._total(match) / self.book.scale - 1) < 1e-6 for match in answers)

    def _exchanged(self, index: int) -> int:
        """Scores whose rows are keys: the line that exchanged q and k; 0 where no product of k and q is found."""
        while up := self.up(index, SCORES):
            index = up[0][0]
        product, ups = self.events[index], self.up(index, ("q", "k"))
        if [match.stage for _, match in ups] != ["k", "q"]:
            return 0
        return self._misnamed(product, ups) or product.line

    def _scaled(self, index: int, total: float) -> int:
        """Who gave the scores their factor."""
        while True:
            ups = self.up(index, (*SCORES, "q", "k"))
            score = next(((p, m) for p, m in ups if m.stage in SCORES), None)
            if score is None:
                own = [p for p, m in ups if abs(m.factor - 1) > 1e-6]
                whole = abs(np.prod([m.factor for _, m in ups]) / total - 1) < 1e-6
                return self._chain(own[-1])[0] if own and whole else index
            if abs(self._total(score[1]) / total - 1) > 1e-6 or not self.events[score[0]].line:
                return index
            index = score[0]

    def _number(self, index: int) -> int:
        """The line, or the one that gave a number in it a value that no scale has."""
        d, found = round(self.book.scale**-2), self.events[index].line
        right = (d, d**0.5, d**-0.5, d**0.25, d**-0.25, 1, -0.5, 0.5, 2, 0.25, -0.25)
        numbers = [p for p in self.events[index].parents if self.events[p].number]
        while numbers:
            own = self.events[numbers.pop(0)]
            low = own.name.lower()
            sized = low.startswith("d") or "dim" in low or "size" in low or "sc" in low  # how many heads or tokens there are is no mistake
            if own.line and (own.value % 1 or sized) and not any(abs(own.value - one) < 1e-9 for one in right):
                found, numbers = own.line, [p for p in own.parents if self.events[p].number]
        return found

    def _masked(self, event: Event, score: int, match: Match, side: list[int]) -> int:
        """Scores that are right met a mask."""
        turned = match.order.translate(str.maketrans("ij", "ji"))
        if match.last == "i" and not self._constant(side, turned) and (line := self._exchanged(score)):
            return line
        line = self._constant(side, match.order)
        index = side[0]
        while self.events[index].view and self.events[index].line == event.line and self.events[index].parents:
            index = self.events[index].parents[0]
        own = self.events[index]
        if not line and own.line and own.line != event.line and self._is_mask(own.value, match.order):
            named = any(word in own.name.lower() for word in _HIDING)
            if named or ("add" in event.op and own.value.min() < 0):
                return own.line
        if not line and self.search.matcher(score).exact:
            total = self._total(match)
            line = self._number(self._scaled(score, total)) if abs(total / self.book.scale - 1) > 1e-4 else self._copied(score)
        return line or event.line

    def _unmasked(self, event: Event, index: int) -> int:
        """A mask that hides nothing, the call that did not hand the mask on, or the line that goes on without it."""
        while (match := self.match(index)) and (up := self.up(index, (*SCORES, "exp"))):
            side = self._side(self.events[index].parents)
            if side and (wrong := self._constant(side, match.order)):
                return wrong
            index = up[0][0]
        for outer, code in event.stack[1:]:
            if any(map(_masking, _arguments(code))) and not any(_masking(node.name) for node in self.record.nodes if node.line == outer):
                return outer
        return event.line

    def _first_wrong(self, index: int, good: set[int]) -> int:
        """The first line on the way of a constant that is not good and leads to nothing good."""
        chain = [i for i in self.search.ancestors([index]) if not self.events[i].given and not self.events[i].number]
        chain = [i for i in chain if self.events[i].op not in ALIASES]
        leads, whole = self.search.leading(chain, good), self.events[index].value
        rows = next((one.value.size for one in self.book.stages if one.name == "positions"), 0)
        for i in (i for i in chain if i not in leads and self.events[i].line):
            value = self.events[i].value
            steps = value.ndim == 1 and value.size != rows and np.allclose(np.diff(value, 2), 0)  # 0, 2, 4, ...
            kind = is_constant(value) if is_constant(whole) else not steps
            if i == index or kind:
                return self.events[i].line
        return 0

    def _constant(self, side: list[int], order: str) -> int:
        """The first line on the way of a mask that is not the textbook's; 0 where it is, or was given."""
        for index in side:
            own = self.events[index]
            if not is_constant(own.value) or (own.floating and len(np.unique(own.value)) < 2):
                continue
            good = {i for i in self.search.ancestors([index]) if not self.events[i].number and self._is_mask(self.events[i].value, order)}
            if index not in good and (line := self._first_wrong(index, good)):
                return line
        return 0

    def _drawn(self, side: list[int]) -> int:
        """The first line on the way of angles or indices that are not the textbook's, where it has some."""
        if not side or not any(stage.name in ("angles", "slots") for stage in self.book.stages):
            return 0
        good = {i for i in self.search.ancestors(side) if not self.events[i].number and self.search.matcher(i).constant(self.events[i])}
        return next((line for index in side if index not in good and (line := self._first_wrong(index, good))), 0)

    def _is_mask(self, value: np.ndarray, order: str) -> bool:
        """The pairs that the textbook sees, or those that it does not, with the axes of scores in this order."""
        if value.size < 3 or not is_constant(value) or len(kinds := np.unique(value)) != 2:
            return False
        mine = (value == kinds[0]).ravel()
        for one in self.book.softmaxes:
            for layout in layouts(value.shape, one.visible.shape, one.axes):
                at = [order.find(one.axes[a]) for a in layout.order]
                if min(at) < 0 or at != sorted(at):
                    continue
                pieces = layout.pieces(one.visible).reshape(-1, value.size)
                if (pieces == pieces[:1]).all() and any(np.array_equal(pieces[0], other) for other in (mine, ~mine)):
                    return True
        return False
