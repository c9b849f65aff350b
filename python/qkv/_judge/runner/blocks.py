"""What a transformer's block has beside its attention: norms before it (a) and before the feed-forward part (m), and the matrices up,
gate, down of that (u, g, d). Not: the parameters of its attention (parameters.py)."""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

from .contracts import names
from .frameworks import code_of, is_module, named, parts_of
from .parameters import Entry
from .slots import Slot

_NORM = re.compile(r"norm|(^|[._])ln\d*([._]|$)|gamma|beta|gain|scale|shift")
_SHIFT = re.compile(r"bias|beta|shift|(^|_)b(_?\d+)?$")
_INNER = re.compile(r"mlp|ffn?|feed|fc_?\d|c_fc|intermediate|lin(ear)?_?\d$|(^|\.)w_?[123]$|gate|(^|[._])up|down|expan|contract|inner|hidden|cache")
_ATTENTION = re.compile(r"att|mha|heads?\b")


class Block(NamedTuple):
    """`ways`: the slots of norms and matrices, the likeliest first; `rest`: what is attention's."""

    hidden: int
    ways: list[list[Slot]]
    rest: list[Entry]


def _norms(mine: list[Entry], rest: list[Entry]) -> tuple[dict[str, list[Entry]], set[str]]:
    """({norm: its gain and bias}, their paths): of modules that are norms, and arrays that are called so."""
    groups: dict[str, list[Entry]] = {}
    raw = [one for one in mine if one.layout is None and one.bias and _NORM.search(one.path.lower())]
    for one in (*rest, *raw):
        if len(one.shape) == 1:
            outer, _, last = one.path.lower().rpartition(".")
            own = re.sub(r"weight|bias|gamma|beta|gain|scale|shift|_[bgw](?=_?\d*$)|^[abgw]$", "", last)
            whole = outer if one in rest and outer else outer + own
            groups.setdefault(whole, []).append(one)
    return groups, {one.path for group in groups.values() for one in group}


def _of_norms(groups: dict[str, list[Entry]]) -> list[list[Slot]]:
    """Slots in each order that names leave open."""
    second, first = re.compile(r"ff|mlp|feed|post|second|2|moe|reseau"), re.compile(r"att|input|pre|first|1|self")
    known = ["m" if second.search(name) else "a" if first.search(name) else "" for name in groups]
    orders = [known] if sorted(known) in (["a", "m"], ["a"], ["m"]) else ["am", "ma"]
    return [[Slot(one.path, one.shape, (letter,), bool(_SHIFT.search(one.path.lower().rpartition(".")[2])), ("out",))
             for letter, group in zip(order, groups.values()) for one in group] for order in orders]  # fmt: skip


def _stem(path: str) -> str:
    outer, _, last = path.lower().rpartition(".")
    return outer if last in ("weight", "bias") else outer + "." + re.sub(r"weight|bias|(^|_)[wb](?=_?\d*$)|^[wb]_", "", last)


def of_block(mine: list[Entry], rest: list[Entry]) -> Block | None:
    """None where there is no norm or no feed-forward part, or more than a block's."""
    groups, taken = _norms(mine, rest)
    widths = {one.shape[0] for group in groups.values() for one in group}
    if len(widths) != 1 or len(groups) > 2 or any(len(group) > 2 for group in groups.values()):
        return None
    embed = widths.pop()
    inner: list[tuple[Entry, tuple[int, ...]]] = []
    for one in mine:
        shape, outer = tuple(size for size in one.shape if size != 1), one.path.rpartition(".")[0].lower()
        other = max(shape) if one.path not in taken and len(shape) == 2 and embed in shape else 0
        if other and not _ATTENTION.search(outer) and (_INNER.search(one.path.lower()) or (other > embed and other != 3 * embed)):
            inner.append((one, shape))
    if len(inner) not in (2, 3):
        return None
    hidden = next((size for size in inner[0][1] if size != embed), embed)
    first_in = inner[0][0].layout == "in_out" or (inner[0][0].layout is None and inner[0][1][0] == embed)
    down = [one for one, shape in inner if hidden != embed and shape == ((hidden, embed) if first_in else (embed, hidden))]
    down = down or [one for one, _ in inner if re.search(r"down|2$|out|c_proj", names.stem(one.path).lower())] or [inner[-1][0]]
    ups = [one for one, _ in inner if one is not down[0]]
    gates = [one for one in ups if re.search(r"gate|w_?1$|act|(^|\.)g$", names.stem(one.path).lower())]
    orders = ["gu"] if gates == ups[:1] else ["ug"] if gates == ups[1:] else ["gu", "ug"]
    biases = {_stem(one.path): one for one in mine if one.bias and one.path not in taken}
    ways = []
    for order in orders if len(ups) == 2 else ["u"]:
        slots = []
        for letter, one in (*zip(order, ups), ("d", down[0])):
            axes = ("mid", "out") if letter == "d" else ("in", "mid")
            slots.append(Slot(one.path, one.shape, (letter,), False, axes if first_in else axes[::-1]))
            if bias := biases.get(_stem(one.path)):
                slots.append(Slot(bias.path, bias.shape, (letter,), True, axes[1:]))
        ways += [[*slots, *norms] for norms in _of_norms(groups)]
    taken |= {slot.path for slot in ways[0]}
    return Block(hidden, ways, [one for one in mine if one.path not in taken])


def says_of(thing: Any, prototype: Any) -> dict[str, str]:
    """Metadata of every probe: eps, and words without which some conventions are not tried."""
    eps, code = _eps_of(thing, prototype), " ".join(named(thing)).lower()
    words = {word: "1" for word, pattern in (("std", "std"), ("silu", "silu|swish|sigmoid")) if re.search(pattern, code)}
    return words | ({"eps": repr(eps)} if eps is not None else {})


def _eps_of(thing: Any, prototype: Any) -> float | None:
    """What is added under the root of its norms: as an object keeps it, as an argument's default, as a number in the code."""
    parts = list(prototype.modules()) if is_module(prototype) else [prototype, *vars(prototype).values()] if prototype is not None else []
    kept = [value for part in parts for name, value in getattr(part, "__dict__", {}).items() if "eps" in name.lower()]
    if kept:
        return kept[0] if isinstance(kept[0], float) else sys.float_info.epsilon if kept[0] is None else None
    defaults = [value for one in parts_of(thing) for value in getattr(one, "__defaults__", None) or ()]
    found = [*defaults, *(value for code in code_of(thing) for value in code.co_consts)]
    return next((value for value in found if isinstance(value, float) and 0 < value < 1e-3), None)
