"""The parameters that an object holds: collected with their shapes, matched with the contract's, set by value. Where names and shapes
leave a choice, several assignments are returned, the likeliest first. Not: layouts of one parameter (slots.py)."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from . import match
from .calling import attributes
from .contracts import names
from .errors import FAILURES, NoTask, People, Stop
from .frameworks import framework_of, from_numpy, is_array, is_module, is_tensor, source_of, torch_of
from .slots import Sizes, Slot, axes_of, numbers


class Entry(NamedTuple):
    """`layout` is "out_in" for nn.Linear and its like, "in_out" for GPT-2's Conv1D, None where only the code knows."""

    path: str
    shape: tuple[int, ...]
    layout: Any  # "out_in" | "in_out" | None
    bias: bool


def _layout(owner: Any, name: str) -> Any:
    kind = type(owner).__name__
    if not type(owner).__module__.startswith("torch.") and kind != "Conv1D":
        return _layout_of_own(owner, name)
    if kind in ("Linear", "NonDynamicallyQuantizableLinear", "MultiheadAttention") or kind.startswith("Conv"):
        return "in_out" if kind == "Conv1D" else "out_in"
    return None


def _layout_of_own(owner: Any, name: str) -> Any:
    """Of a module's own class, whatever its name: by F.linear in its code; with one matrix by what it makes of a basis."""
    torch, text = torch_of(), textwrap.dedent(source_of(type(owner)))
    with contextlib.suppress(SyntaxError):
        calls = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call) and ast.unparse(one.func).split(".")[-1] == "linear"]
        given = [ast.unparse(one) for call in calls for one in [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "weight")]]
        if f"self.{name}" in given:
            return "out_in"
    matrices = {path: one.shape for path, one in owner.named_parameters() if one.ndim == 2}
    if [*matrices] != [name]:
        return None
    rows, columns = matrices[name]
    matrix = torch.arange(1.0, rows * columns + 1, dtype=owner.get_parameter(name).dtype).reshape(rows, columns)
    for layout, size, expected in (("in_out", rows, matrix), ("out_in", columns, matrix.T)):
        with contextlib.suppress(*FAILURES), torch.no_grad():
            basis = torch.cat([torch.eye(size), torch.zeros(1, size)]).to(matrix)
            made = torch.func.functional_call(owner, {name: matrix}, (basis,))
            if torch.allclose(made[:-1] - made[-1:], expected, 1e-3, 1e-2):
                return layout
    return None


def collect_called(thing: Any, method: str, embed: int) -> tuple[list[Entry], list[Entry]]:
    """The same as collect; where there are none, behind a first call of the method, if any, on rows of this width: it may make them."""
    found = collect(thing)
    if any(found) or not method:
        return found
    with contextlib.suppress(*FAILURES):
        getattr(thing, method)(from_numpy(np.zeros((1, 2, embed)), framework_of(thing)))
    return collect(thing)


def collect(thing: Any) -> tuple[list[Entry], list[Entry]]:
    """(what may be projections, the rest: norms, embeddings), in the order in which they were made."""
    if not is_module(thing):
        return [Entry(path, tuple(one.shape), layout, _is_bias(path, one.shape)) for path, one, layout in _arrays(thing, (), "")], []
    torch = torch_of()
    mine, rest = [], []
    own = {path for path, _ in thing.named_parameters()}
    for path, value in thing.named_parameters(remove_duplicate=False):
        if path not in own and not re.search(r"\.\d+\.", path):  # one layer under two names; heads of a list may be one
            continue
        outer, _, name = path.rpartition(".")
        owner = thing.get_submodule(outer)
        entry = Entry(path, tuple(value.shape), _layout(owner, name), _is_bias(path, value.shape))
        (rest if isinstance(owner, torch.nn.Embedding) or (owner is not thing and "norm" in type(owner).__name__.lower()) else mine).append(entry)
    return mine, rest


def _is_bias(path: str, shape: Any) -> bool:
    heads = names.letters(path, True) is not None  # b_q [heads, dim]
    return len(shape) <= 1 or (names.is_bias(path) and sum(size != 1 for size in shape) <= 1 + heads)


def _file(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or "<built in>"


def _members(root: Any, thing: Any) -> dict[Any, Any] | None:
    """What a list, a dict, a module, an object of the person's folder, or a function that the person's file makes inside others holds; None of
    what is not looked into."""
    if isinstance(thing, (dict, list, tuple)):
        return thing if isinstance(thing, dict) else dict(enumerate(thing))
    if is_module(thing):
        return dict(thing.named_parameters())
    people = People(_file(type(root)))
    if isinstance(thing, FunctionType):
        cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or ()))
        own = thing.__code__.co_filename == people.file
        return {name: cell.cell_contents for name, cell in cells.items() if cell != type(cell)()} if own or not cells else None
    own = type(thing).__module__ == type(root).__module__ or people.owns(_file(type(thing)))
    held = {} if isinstance(thing, type) else attributes(thing)
    return held if own else None if held or isinstance(thing, (functools.partial, MethodType)) else {}


def _arrays(root: Any, above: tuple[Any, ...], path: str) -> Iterator[tuple[str, Any, Any]]:
    """(path, floating array, layout) in all that an object holds that is no nn.Module; `above`: what holds it, three levels deep."""
    thing = above[-1] if above else root
    for name, value in (_members(root, thing) or {}).items():
        inner = f"{path}.{name}" if path else str(name)
        if is_array(value):
            floating = value.is_floating_point() if is_tensor(value) else np.issubdtype(value.dtype, np.floating)
            state = names.argument(str(name)) in ("mask", "past_k", "past_v") and not (value.ndim == 1 and names.is_bias(str(name)))
            if floating and value.ndim and not state:
                yield inner, value, _layout(thing, str(name)) if is_module(thing) else None
        elif len(above) < 3 and not any(value is one for one in (root, *above)):
            yield from _arrays(root, (*above, value), inner)


def none_in(name: str, thing: Any, single: bool) -> None:
    """Raises Stop where a layer without parameters is no exercise's, or holds what is not looked into."""
    if single:
        raise NoTask(f"{name} has no parameters: no exercise asks for it")
    unseen = [] if is_module(thing) else [inner for inner, one in attributes(thing).items() if _members(thing, one) is None]
    if unseen:
        raise Stop(f"no parameters were found in {name}, which holds {', '.join(unseen)}: "
                   "arrays are looked for in lists, dicts and objects of its folder")  # fmt: skip


def _key(thing: Any, name: str) -> Any:
    """Of a list, a tuple or a dict."""
    if isinstance(thing, (list, tuple)):
        return int(name)
    return name if name in thing else next(key for key in thing if str(key) == name)


def _step(thing: Any, name: str) -> Any:
    if isinstance(thing, FunctionType):
        return _cell(thing, name).cell_contents
    return thing[_key(thing, name)] if isinstance(thing, (list, tuple, dict)) else getattr(thing, name)


def _cell(function: FunctionType, name: str) -> CellType:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)]


def get(thing: Any, path: str) -> Any:
    if is_module(thing):
        return thing.get_parameter(path)
    for name in path.split("."):
        thing = _step(thing, name)
    return thing


def put(thing: Any, path: str, value: np.ndarray, dtype: str) -> None:
    """Sets one parameter by value."""
    torch = torch_of()
    if is_module(thing):
        with torch.no_grad():
            thing.get_parameter(path).copy_(torch.from_numpy(np.array(value)))
        return
    *outer, last = path.split(".")
    for name in outer:
        thing = _step(thing, name)
    old = _step(thing, last)
    new: Any = np.array(value, dtype=dtype)
    if is_tensor(old):
        new = torch.from_numpy(new).requires_grad_(old.requires_grad)
    if isinstance(thing, tuple):
        old[...] = new
    elif isinstance(thing, FunctionType):
        _cell(thing, last).cell_contents = new
    elif is_module(thing):
        old.data = new.detach()
    elif isinstance(thing, (dict, list)):
        thing[_key(thing, last)] = new
    else:
        setattr(thing, last, new)


_ALL = (("q",), ("k",), ("v",), ("o",))
_PART = r"(?:q(?:uer(?:y|ies)|s)?|k(?:eys?|s)?|v(?:al(?:ue)?s?|s)?)"
_SPELLED = re.compile(rf"(?:to|w|c|in|proj)?({_PART}{{2,3}})(?:proj|projection|linear|layer|w|weights?|s)?")


class Assignment(NamedTuple):
    label: str
    slots: list[Slot]
    convention: str | None = None


class Found(NamedTuple):
    entry: Entry
    letters: tuple | None
    head: int | None = None


def _by_map(entry: Entry, chosen: dict[str, str]) -> tuple | None:
    """What --map says: contract name -> path of theirs, with or without .weight and .bias. Names of arguments are none of these."""
    for name, theirs in chosen.items():
        if name[:2] not in ("W_", "b_"):
            continue
        bias = name.startswith("b_")
        same = entry.path == theirs or (names.key(entry.path) == names.key(theirs) and "." not in theirs)
        family = not bias and entry.path in (f"{theirs}.weight", f"{theirs}.bias", f"{theirs}_weight", f"{theirs}_bias")
        if (same and bias == entry.bias) or family:
            return tuple(name[2:])
    return None


def _in_order(path: str, letters: tuple | None, source: str) -> tuple | None:
    """The letters of matrices in one, in the order that its name spells, or else the names that its columns are given."""
    if letters is None or len(letters) < 2:
        return letters
    spelled = _SPELLED.fullmatch(names.key(names.stem(path)))
    own = [one[0] for one in re.findall(_PART, spelled[1])] if spelled else []
    if not own:
        given = re.search(rf"(\w+(?:\s*,\s*\w+)+)\s*=\s*[^=\n]*\b{re.escape(names.stem(path))}\(", source)
        own = [(names.letters(name) or ("",))[0] for name in re.findall(r"\w+", given[1])] if given else []
    return tuple(own) if sorted(own) == sorted(letters) else letters


def _heads(found: list[Found], sizes: Sizes) -> list[Found]:
    """Parameters of single heads in a list ("heads.0.query.weight"): as many as heads, each a part of one matrix."""
    groups: dict[tuple, list[int]] = {}
    for index, one in enumerate(found):
        if one.letters and len(one.letters) == 1 and re.search(r"\.\d+\.|\.\d+$", one.entry.path):
            groups.setdefault((one.letters, one.entry.bias, re.sub(r"\d+", "#", one.entry.path)), []).append(index)
    for (letters, bias, _), indices in groups.items():
        heads = sizes.heads_of(letters[0])
        single = numbers(letters, bias, sizes) // heads
        if len(indices) == heads > 1 and all(math.prod(found[index].entry.shape) == single for index in indices):
            for head, index in enumerate(indices):
                found[index] = found[index]._replace(head=head)
    return found


def _named(entries: list[Entry], sizes: Sizes, chosen: dict[str, str]) -> list[Found]:
    """Each parameter with the letters that --map, its name or its shape give it; None where only trying helps."""
    found = []
    for entry in entries:
        letters = _by_map(entry, chosen) or names.letters(entry.path, entry.bias)
        if letters and len(letters) > 1 and math.prod(entry.shape) != numbers(letters, entry.bias, sizes):
            letters = None  # called "attn" or "input", but no three matrices in one
        if letters is None or (letters == ("o",) and math.prod(entry.shape) != numbers(letters, entry.bias, sizes)):
            fused = (many for many in (("q", "k", "v"), ("k", "v")) if math.prod(entry.shape) == numbers(many, entry.bias, sizes))
            letters = next(fused, letters)
        found.append(Found(entry, letters))
    found = _heads(found, sizes)
    taken: set[tuple] = set()
    for index, one in sorted(enumerate(found), key=lambda one: _by_map(one[1].entry, chosen) is None):  # --map takes its letters first
        if one.letters is None or one.head is not None:
            continue
        own = {(letter, one.entry.bias) for letter in one.letters}
        if own & taken:
            found[index] = one._replace(letters=None)
        taken |= own
    return found


def _choices(found: list[Found], sizes: Sizes, bias: bool, limit: int) -> list[list[Found]]:
    """Every way to give the unnamed parameters letters that no name has taken; the natural order first."""
    mine = [one for one in found if one.entry.bias == bias]
    open_ones = [one for one in mine if one.letters is None]
    taken = {letter for one in mine for letter in one.letters or ()}
    free = [letters for letters in _ALL if letters[0] not in taken]
    if not open_ones:
        return [mine]
    if len(open_ones) > len(free):
        return []
    if len(open_ones) <= 3 < len(free):
        free.remove(("o",))  # three of four: no output projection
    found = match.ways(open_ones, free, lambda one, letters: math.prod(one.entry.shape) == numbers(letters, bias, sizes))
    return [[one if one.letters else one._replace(letters=dict(pairs)[one]) for one in mine] for pairs in itertools.islice(found, limit)]


def _biases(weights: list[Found], found: list[Found], sizes: Sizes, limit: int) -> list[list[Found]]:
    """A bias belongs to the weight beside it ("wq.bias" to "wq.weight"); others by their own names, then in every order."""
    beside = {re.sub(r"\.?_?weight$", "", one.entry.path): one for one in weights}
    mine = []
    for one in found:
        if one.entry.bias:
            weight = beside.get(re.sub(r"\.?_?bias$", "", one.entry.path))
            mine.append(one._replace(letters=weight.letters, head=weight.head) if weight else one)
    return _choices(mine, sizes, True, limit) or [[one for one in mine if one.letters]]


def _slots(found: list[Found], family: str, sizes: Sizes) -> list[Slot] | None:
    slots = []
    for entry, letters, head in found:
        assert letters is not None
        if family == "by_head":
            layouts = ["by_head" if len(letters) > 1 else entry.layout or "in_out"]
        elif entry.layout:
            layouts = [entry.layout]
        else:
            layouts = ["out_in", "in_out"] if entry.bias or family == "out_in" else ["in_out", "out_in"]
        axes = next((axes for layout in layouts if (axes := axes_of(entry, letters, layout, sizes, head)) is not None), None)
        if axes is None:
            return None
        slots.append(Slot(entry.path, entry.shape, letters, entry.bias, axes, head))
    return slots


def _families(found: list[Found], sizes: Sizes) -> list[str]:
    """The layouts worth trying: both where shapes do not tell, by_head where q, k, v of each head may lie together."""
    raw = [one for one in found if one.entry.layout is None and not one.entry.bias]

    def fits(family: str) -> bool:
        return all(axes_of(entry, letters or (), family, sizes, head) is not None for entry, letters, head in raw)

    families = [family for family in ("in_out", "out_in") if raw and fits(family)] or ["in_out"]
    own = any(one.letters and len(one.letters) > 1 and "in_proj_" not in one.entry.path for one in found)
    return [*families, "by_head"] if sizes.heads > 1 and own else families


def describe(entries: list[Entry]) -> str:
    return ", ".join(f"{entry.path} {list(entry.shape)}" for entry in entries)


def assign(entries: list[Entry], sizes: Sizes, chosen: dict[str, str], limit: int, owner: Any = None) -> list[Assignment]:
    """At least one assignment; raises Stop where nothing fits, with --map as the way out. `owner`: their class, whose code may say what
    a matrix's columns are."""
    matrices = [theirs for name, theirs in chosen.items() if name[:2] in ("W_", "b_")]
    unknown = [theirs for theirs in matrices if not any(_by_map(entry, {"W_q": theirs, "b_q": theirs}) for entry in entries)]
    if unknown:
        raise Stop(f"--map names {unknown[0]}, but the parameters are {describe(entries)}")
    found = [one._replace(letters=_in_order(one.entry.path, one.letters, source_of(owner))) for one in _named(entries, sizes, chosen)]
    ways = _choices(found, sizes, False, limit)
    named = {letter for one in found for letter in one.letters or ()}
    if not ways and named >= {"q", "k", "v"}:
        more = next(one.entry.path for one in found if one.letters is None)
        raise NoTask(f"no exercise asks for what {more} does; --map says which parameter is which")
    if not ways or not any(one.letters for one in ways[0]):
        raise Stop(f"cannot tell which parameter is which of {describe(entries)}: say so, --map W_q=NAME W_k=NAME W_v=NAME W_o=NAME")
    assignments = []
    for way in ways:
        orders = _biases(way, found, sizes, limit)[: 1 if len(ways) > 1 else limit]  # nobody tries every order of both
        for biases in orders:
            every = [*way, *biases]
            tried = way if len(ways) > 1 else biases if len(orders) > 1 else []
            for family in _families(every, sizes):
                slots = _slots(every, family, sizes)
                if slots is not None:
                    assignments.append(_assignment(way, family, slots, tried))
    if not assignments:
        raise Stop(f"the parameters {describe(entries)} do not have the shapes of a projection of {sizes.embed} to "
                   f"{sizes.heads} heads of {sizes.head_dim}: --init gives sizes, --map names")  # fmt: skip
    # Likely layouts of the likeliest order first, then the other orders.
    assignments.sort(key=lambda one: one.convention is not None)
    return assignments[:limit]


def _assignment(way: list[Found], family: str, slots: list[Slot], tried: list[Found]) -> Assignment:
    """`tried`: those whose order is one of several."""
    parts = []
    if tried:
        parts.append(", ".join(f"{'b' if one.entry.bias else 'W'}_{''.join(one.letters or ())}={one.entry.path}" for one in tried))
    if any(one.entry.layout is None for one in way):
        parts.append("matrices [out, in] (x W^T)" if family == "out_in" else "matrices [in, out] (x W)")
    if any(len(one.letters or ()) > 1 for one in way):
        order = next(one.letters for one in way if len(one.letters or ()) > 1) or ()
        parts.append("q, k, v of each head together" if family == "by_head" else ", then ".join(f"all {letter}" for letter in order))
    label = "; ".join(parts) or "their names say"
    return Assignment(label, slots, "merged-by-head" if family == "by_head" else None)
