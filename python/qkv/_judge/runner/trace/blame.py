"""The first line whose value leaves the textbook: of the arrays that lead to the output, the first that is no stage of the
textbook and leads to none; causes.py then says whether an earlier line is the cause. Nothing is said where nothing is known.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from .causes import Causes, role
from .instrument import innermost
from .match import Match, Matcher
from .record import ALIASES, REDUCTIONS, Event, Recorder, is_constant, storage_of
from .stages import SCORES, Departure, Stage, Textbook, same_numbers

#: What is given, in the textbook.
INPUTS = ("x", "memory")
#: What is returned, in its order.
ANSWERS = ("out", "weights", "turned", "dq", "dk", "dv", "dx", "dW_q", "dW_k", "dW_v", "dW_o", "dlogits", "new_scores", "parents", "tokens")
BEFORE_SCORES = (*INPUTS, "q", "k", "v")
#: Stages that wrong numbers may have too.
_WEAK = ("highest", "order", "index")
_DETACHES = ("detach", "item", "numpy", "tolist", "tensor", "new_tensor", "as_tensor", "from_numpy")
_RANDOM = re.compile("drop|rand|bernoulli|generator|binomial|choice")


@dataclasses.dataclass
class Blame:
    """`index`: of the value that is wrong; `sure`: other arrays show that the textbook fits."""

    line: int
    index: int
    sure: bool = True


class Search:
    """`mistaken`: stages of the textbook with the mistake that the code is known to make; `instead`: where it departs, and what it has there."""

    def __init__(self, record: Recorder, book: Textbook, text: str, mistaken: list[Stage], instead: tuple[list[Stage], Departure | None]) -> None:
        self.record, self.events, self.book, self.text = record, record.events, book, text
        self.tree = ast.parse(text)
        turns = book.rounds if book.rounds == len(record.outputs) else 1
        self.matchers = [Matcher(*book.at(n), False) for n in range(turns)] if turns > 1 else [Matcher(book.stages, book.softmaxes)]
        self.needed = self.ancestors(index for call in record.outputs for index in call)
        self.good: set[int] = set()
        self.mistaken, self.instead, self.departure = Matcher(mistaken, []), Matcher(instead[0], []), instead[1]

    def ancestors(self, of: Iterable[int]) -> list[int]:
        """They and all that they were made of, in order."""
        found: set[int] = set()
        todo = list(of)
        while todo:
            index = todo.pop()
            if index not in found:
                found.add(index)
                todo += self.events[index].parents
        return sorted(found)

    def matcher(self, index: int) -> Matcher:
        return self.matchers[min(self.events[index].call, len(self.matchers) - 1)]

    def match(self, index: int) -> Match | None:
        event = self.events[index]
        if event.match is None and event.op in ALIASES:
            event.match = self.match(event.parents[0]) or False
        elif event.match is None:
            event.match = (event.given and self.matcher(index).find(event)) or False
        return event.match or None

    def up(self, index: int, stages: Iterable[str] = ()) -> list[tuple[int, Match]]:
        """What an event was made of, where it is a stage, one of these."""
        stages = tuple(stages)
        return [(p, m) for p in self.events[index].parents if (m := self.match(p)) and (not stages or m.stage in stages)]

    def leading(self, indices: list[int], good: set[int]) -> set[int]:
        """Those that are good, or made into something good."""
        found, near = set(good), set()
        for index in reversed(indices):
            match = self.events[index].match
            if index in found and match and match.stage in _WEAK:
                near.update(self.events[index].parents)
            elif index in found:
                found.update(self.events[index].parents)
        return found | near

    def returns(self, line: int) -> int:
        """The last return of the function around a line; 0 without one."""
        inside = innermost(self.tree, ast.FunctionDef, line)
        return max((one.lineno for one in ast.walk(inside) if isinstance(one, ast.Return)), default=0) if inside else 0

    def _good(self) -> set[int]:
        """Stages, but for exponentials that lack a mask, and but for those after scores that look like q, k or v."""
        late: set[int] = set()
        found = set()
        trained = any(one.name.startswith("after_") for one in self.book.stages)
        ends = {(index, n) for n, call in enumerate(self.record.outputs) for index in call if trained}
        for index in self.needed:
            match = self.match(index)
            inherited = any(p in late for p in self.events[index].parents)
            if match and inherited and match.stage in BEFORE_SCORES:
                self.events[index].match, match = False, None
            if inherited or (match and match.stage in ("scores", "logits", "exp", "weights")):
                late.add(index)
            unfit = match and match.stage == "exp" and (self.book.lse or not match.hidden)
            stale = (index, self.events[index].call) in ends and not self._updated(self.events[index])
            if match and not unfit and not stale and not (match.stage in SCORES and self.events[index].op in REDUCTIONS):
                found.add(index)
        return found

    def _updated(self, event: Event) -> bool:
        """Whether a parameter is what a step of training makes of it."""
        ends = (one.value for one in self.book.stages if one.name.startswith("after_") and one.round == event.call)
        return event.value.size < 3 or any(one.shape == event.value.shape and np.allclose(one, event.value, rtol=1e-5) for one in ends)

    def first(self) -> Blame | None:
        self.good = self._good()
        leads = self.leading(self.needed, self.good)
        wrong = [i for i in self.needed if i not in leads and self._made(i)]
        bad = next((i for i in wrong if not self._filled(i)), wrong[0] if wrong else None)
        if (loop := _wrong_tiles(self)) is not None:
            return loop
        # A statement `a = a`, of code whose mistake is known: there a step is missing.
        if self.mistaken.stages:
            plain = [one for one in ast.walk(self.tree) if isinstance(one, ast.Assign)]
            lines = {one.lineno for one in plain if ast.unparse(one.targets[0]) == ast.unparse(one.value)}
            idle = next((i for i, one in enumerate(self.events) if one.op == "rename" and one.line in lines), None)
            if idle is not None:
                return Blame(self.events[idle].line, idle)
        if bad is None:
            return self._end()
        bad = self._hidden(bad)
        own = self._mistakes(bad)  # of steps of one expression that are alike the last
        hits = [i for i in self.needed if i < bad and self._mistakes(i) not in ("", own if i in leads else "")]
        if (left := self._left(bad)) is not None and left < min(hits, default=bad):
            return Blame(self.events[left].line, left)
        alike = [one for one in self.events if (one.node, one.call) == (self.events[bad].node, self.events[bad].call)]
        if any(one.name == "slots" and len(alike) > len(one.value) for one in self.book.stages):
            return None  # page by page: the textbook has no such values
        constants = [i for i in self.needed if self.events[i].line and not self.events[i].given and not self.events[i].number]
        known = any(self.events[i].match.stage not in INPUTS for i in self.good) or any(one.name == "angles" for one in self.book.stages)
        sure = known or any(self.matcher(i).constant(self.events[i]) for i in constants)
        line = Causes(self, leads).line(bad)
        from_line = next((i for i in self.needed if any(line == one for one, _ in self.events[i].stack)), bad)
        hit = next((i for i in hits if i < from_line), None)
        return Blame(line, bad, sure) if hit is None else Blame(self.events[hit].line, hit, sure)

    def _hidden(self, bad: int) -> int:
        """Of exponentials that are right but for a mask, which may come after them, what hides some of them."""
        if not self.book.lse or not (match := self.events[bad].match) or match.stage != "exp":
            return bad
        same = {bad}
        for i in self.needed:
            event = self.events[i]
            if same & {*event.parents} and event.op in ALIASES:
                same.add(i)
            elif same & {*event.parents} and event.line and _kept(event.value, self.events[bad].value) == 1:
                return i
        return bad

    def _mistakes(self, index: int) -> str:
        """The stage of the textbook with the mistake that a value is, where it is none of the textbook; or empty."""
        event = self.events[index]
        if not event.line or event.number or event.op in ALIASES or index in self.good:
            return ""
        return self.mistaken.constant(event) if event.given or not self.matcher(index).constant(event) else ""

    def _left(self, end: int) -> int | None:
        """Before `end`, what makes nothing new of what the mistake has in place of something, or gives it that thing's name."""
        if self.book.tiled or self.departure is None:
            return None
        needed = {*self.needed}
        near = (i for i in range(end) if i in needed or (self.events[i].op in ("rename", "named") and self.events[i].parents[0] in needed))
        frames = next((self.events[i].stack for i in (*range(end, len(self.events)), *reversed(range(end))) if self.events[i].stack), ())
        around = {code for _, code in frames}  # the functions that the wrong value is in
        left = [i for i in near if self.events[i].stack and self.events[i].stack[0][1] in around and self._stays(self.events[i])]
        idle = (i for i in left if self._named(self.events[i]) or any(self.instead.find(self.events[p]) for p in self.events[i].parents))
        return next(idle, None)

    def _named(self, event: Event) -> bool:
        """Whether it gives another array the name of the one that the mistake is about."""
        one = self.departure
        if one is None or one.missing or one.name not in (event.name.lower(), role(event.name)):
            return False
        return event.op == "rename" or (event.op == "named" and self.events[event.parents[0]].line == event.line)

    def _stays(self, event: Event) -> bool:
        """Whether a line of the person's made it, or gave it a name, and it is what the mistake has there."""
        named = event.op == "rename" or self._named(event)
        if not event.line or event.number or not (named or event.op == "store" or not (event.view or self.book.rounds > 1)):
            return False
        masked = event.op.startswith(("where", "masked_fill")) and not all(self.events[p].given for p in event.parents)
        return not masked and event.op not in ("add", "sub", "mul", "div") and self.instead.find(event) is not None

    def _made(self, index: int) -> bool:
        """By the person's line, of what was given; not columns of what is to be turned."""
        event = self.events[index]
        if not event.line or not event.given or event.number or event.op in ALIASES or is_constant(event.value):
            return False
        cut = event.view and any(self.events[p].value.size > event.value.size for p, _ in self.up(index, BEFORE_SCORES))
        return not (cut and any(stage.name == "angles" for stage in self.book.stages))

    def _filled(self, index: int) -> bool:
        """An array that got a right part, and gets more."""
        event = self.events[index]
        more = (self.events[i] for i in self.needed if i > index)
        return event.op == "store" and any(p in self.good for p in event.parents) and any(e.op == "store" and index in e.parents for e in more)

    def _end(self) -> Blame | None:
        """Every step is right, and what is returned is not, or what was given has changed."""
        for index in self.record.changes:
            event = self.events[index]
            if storage_of(self.record.kept[index]) in self.record.inputs and all(code.co_name != "__init__" for _, code in event.stack):
                return Blame(event.line, index)
        losses = [one.value for one in self.book.stages if one.name == "loss"]
        for index in (index for call in self.record.outputs for index in call if losses):
            event = self.events[index]
            if event.value.size == 1 and event.line and event.given and not any(np.allclose(event.value, loss, rtol=1e-6) for loss in losses):
                return Blame(event.line, index)
        order = [name for name in ANSWERS if name in self.book.answers]
        for call in self.record.outputs:
            if not call or not self.events[call[0]].stack:
                continue
            found = [(index, match.stage) for index in call if (match := self.match(index))]
            back = self.returns(self.events[call[0]].stack[-1][0]) or self.events[call[0]].line
            ranks = [order.index(stage) for _, stage in found if stage in order]
            if ranks != sorted(ranks):
                return Blame(back, call[0])
            if (hit := next((i for i in self.needed if self._mistakes(i)), None)) is not None:
                return Blame(self.events[hit].line, hit)
            if (left := self._left(len(self.events))) is not None:
                returned = left in call and self.events[left].op != "rename"
                return Blame(back if returned else self.events[left].line, left)
            if any(stage in SCORES for _, stage in found):
                return Blame(back, call[0])
            for index, stage in [*found, (call[0], "out")]:
                event, want = self.events[index], self.book.answers.get(stage, self.events[index].value)
                if want.shape != event.value.shape or not np.allclose(want, event.value, rtol=1e-5):
                    return Blame(event.line if (index, stage) in found and same_numbers(want, event.value) else back, index)
        return None

    def detached(self, given: bool = True) -> Blame | None:
        """Of what was given, or of all, the line that takes what a gradient should reach: by such a call, or where PyTorch keeps no history."""
        tracked = [getattr(one, "requires_grad", False) for one in self.record.kept]
        whole = (i for i, one in enumerate(self.events) if one.floating and not one.number)
        lost = {i for i in whole if not tracked[i] and any(tracked[p] for p in self.events[i].parents)}
        lines = (i for i in self.needed if self.events[i].line and (self.events[i].given or not given))
        taken = (i for i in lines if self.events[i].op in _DETACHES or i in lost)
        return next((Blame(self.events[i].line, i) for i in taken if self.events[i].value.size > 1), None)

    def stepped(self) -> Blame | None:
        """In PyTorch's training: the first wrong line, one that takes what is trained, one that makes another number of the loss."""
        if (blame := self.first() or self.detached(given=False)) is not None:
            return blame
        losses = (index for call in self.record.outputs for index in call)
        scalars = {i for i in self.ancestors(losses) if self.events[i].value.size == 1 and self.events[i].given}
        made = (i for i, event in enumerate(self.events) if event.line and not event.view and i not in scalars and scalars & {*event.parents})
        return next((Blame(self.events[i].line, i) for i in made if self.events[i].value.size == 1), None)

    def dropped(self, rate: float) -> Blame | None:
        """In training: the line of a dropout that is not on the weights, does not keep their mean, or draws wrongly."""
        kept = None
        for index in self.needed:
            event = self.events[index]
            for p in event.parents if event.line else ():
                factor = _kept(event.value, self.events[kept[1] if kept else p].value)
                if kept is None and factor and ((match := self.match(p)) is None or match.stage != "weights"):
                    return Blame(event.line, index)
                kept = (index, kept[1] if kept else p, factor) if factor and not event.view else kept
        if kept and abs(kept[2] * (1 - rate) - 1) > 1e-4:
            return Blame(self.events[kept[0]].line, kept[0])
        random = [n for n, event in enumerate(self.events) if event.stack and _RANDOM.search(f"{event.op} {event.name}".lower())]
        return Blame(self.events[random[-1]].line, random[-1]) if random else None


def _kept(value: np.ndarray, made_of: np.ndarray) -> float:
    """By how much numbers were multiplied where they are not 0; 0 where none became 0, or not all by the same."""
    if value.shape != made_of.shape or not ((value == 0) & (made_of != 0)).any() or not (value != 0).any():
        return 0.0
    ratios = value[value != 0] / made_of[value != 0]
    return float(ratios[0]) if np.allclose(ratios, ratios[0], rtol=1e-4) else 0.0


def _wrong_tiles(search: Search) -> Blame | None:
    """Of an algorithm in tiles, the line of a loop that leaves rows of keys out, or reads some twice."""
    events, rows = search.events, {}
    tiles = [i for i in search.needed if events[i].op == "getitem" and events[i].parents] if search.book.tiled else []
    for i in tiles:
        whole = events[events[i].parents[0]].value
        read = _rows_of(events[i].value, whole)
        if read is not None:
            rows.setdefault((events[i].node, events[i].call), np.zeros(whole.shape[-2]))[read] += 1
    unmasked = all(one.visible.all() for one in search.book.softmaxes)
    for i in tiles:
        counts = rows.get((events[i].node, events[i].call), np.ones(1))
        if counts.min() == 0 or (unmasked and counts.max() > counts.min()):
            return Blame(_loop(search.tree, events[i].line), i)
    return None


def _rows_of(tile: np.ndarray, whole: np.ndarray) -> slice | None:
    """Which rows of an array are a tile of it."""
    if tile.ndim < 2 or tile.ndim != whole.ndim or tile.shape[-1] != whole.shape[-1] or tile.shape[:-2] != whole.shape[:-2]:
        return None
    size = tile.shape[-2]
    starts = range(whole.shape[-2] - size + 1) if size else ()
    return next((slice(at, at + size) for at in starts if np.array_equal(whole[..., at : at + size, :], tile)), None)


def _loop(tree: ast.AST, line: int) -> int:
    """The line of the loop around a line, or of the variable that it goes through."""
    loop = innermost(tree, ast.For, line)
    if loop is None or not isinstance(loop.iter, ast.Name):
        return loop.lineno if loop else line
    assigned = (one for one in ast.walk(tree) if isinstance(one, ast.Assign) and one.lineno < loop.lineno)
    named = (one.lineno for one in assigned for target in one.targets if isinstance(target, ast.Name) and target.id == loop.iter.id)
    return max(named, default=loop.lineno)
