"""The forms in which a person's code may want its mask: shapes, types, what True means; whether a call depends on what it hides.
Not: which form it is (first_calls.py)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from .contracts import names
from .contracts.tasks import SINGLE
from .frameworks import from_numpy, source_of, to_numpy, told, told_with_parts
from .slots import Tensors

#: In the order of the first calls; tasks whose contract is [B, L, L] begin with that.
SHAPES = ("[B, 1, L, L]", "[B, H, L, L]", "[B, L, L]", "[B, L]", "[L, L]", "[B, 1, 1, L]", "[B, 1, L]", "[B*H, L, L]")
LENGTHS = "[B] lengths"
#: Those that say of keys alone whether they are visible.
ROWS = ("[B, L]", "[B, 1, 1, L]", "[B, 1, L]", LENGTHS)
TYPES = ("bool", "int64", "float")


class Form(NamedTuple):
    shape: str
    dtype: str
    hides: bool = False  # True means hidden
    added: bool = False  # 0 and -inf, to be added to scores
    shift: float = 0.0  # what stands for 0 then

    def of(self, mask: np.ndarray, heads: int, framework: str, dtype: str) -> Any:
        """mask bool [B, 1, Tq, Tk], True = visible, in this form; None where the form cannot say it."""
        shaped = _shaped(mask, self.shape, heads)
        if shaped is None:
            return None
        if self.added:
            return from_numpy(np.where(shaped, self.shift, -np.inf), framework, dtype)
        shaped = ~shaped if self.hides else shaped
        return from_numpy(shaped if self.dtype == "bool" else shaped.astype("int64" if self.dtype == "int64" else dtype), framework, dtype)

    @property
    def convention(self) -> str | None:
        return "mask-true-hides" if self.hides else "mask-added" if self.added else None


def _shaped(mask: np.ndarray, shape: str, heads: int) -> np.ndarray | None:
    """None where the shape cannot say it."""
    row, whole = mask[:, 0, 0], np.repeat(mask, heads, 1)
    counts = row.sum(-1)
    lost = {"[L, L]": mask != mask[:1], LENGTHS: row != (np.arange(row.shape[1]) < counts[:, None])}.get(shape, np.zeros(1))
    if lost.any() or (shape in ROWS and (mask != mask[:, :, :1]).any()):
        return None
    return {"[B, H, L, L]": whole, "[B, L, L]": mask[:, 0], "[B*H, L, L]": whole.reshape(-1, *whole.shape[2:]), "[L, L]": mask[0, 0],
            "[B, L]": row, "[B, 1, L]": row[:, None], "[B, 1, 1, L]": row[:, None, None], LENGTHS: counts}.get(shape, mask)  # fmt: skip


def forms(argument: str, task: str, hides: bool | None = None) -> list[Form]:
    """Every form of a mask argument, the contract's first. `hides`: what is said of it beside its name."""
    kind = names.mask_kind(argument)
    if kind == "lengths":
        return [Form(LENGTHS, "int64")]
    hides = kind == "hides" if hides is None else hides
    first = "[B, L]" if hides and "pad" in names.key(argument) else "[B, L, L]" if task in SINGLE else SHAPES[0]
    shapes = [first, *(shape for shape in SHAPES if shape != first)]
    if kind == "added":
        return [added(Form(shape, "float")) for shape in shapes]
    return [Form(shape, dtype, hides) for dtype in TYPES for shape in shapes]


#: What a docstring says of a mask: "1 = hidden", "mask: True where padding is", "padded positions are 1 in the mask"; "0 or -inf".
_OFF = (
    r"(?:hidden|masked|ignored?|pad\w*|blocked|drop(?:ped)?\b|removed|excluded|forbidden|disallowed|prohibited|invalid|skip(?:ped)?\b|suppressed|"
    r"prevented|discard(?:ed)?\b|disabled|(?:set to|filled with|replaced (?:by|with)) -\s?inf)"
)
_HIDDEN = (
    rf"(?:{_OFF}|hide|mask out|future|(?:(?:(?:do(?:es)?|may|must|should|can|is|are) )?not|cannot|can't)\b"
    rf"(?! (?:(?:to be|to|be|an?|zero) )?(?:{_OFF}|mask|hide|block|remove|exclude|forbid|disable))|"
    r"[需应]?[要该会将]?被?\s*(?:遮|屏蔽|隐藏|填充|忽略|禁止|[置设]为\s*-|mask\s*[掉住])|看不|不(?!(?:会|需要?|应该?|用|能|可|是|该)?被?\s*(?:[遮屏隐忽填禁]|mask)))"
)
_ONE = r"(?:(?<![\w.])(?:1s?|ones?|true|non-?zero)(?![a-z0-9_])|为真)"
_ZERO = r"(?<![\w.-])(?:0s?|zeros?|false)(?![a-z0-9_.])"
_NOUN = r"(?:tokens?|positions?|keys?|quer(?:y|ies)|entry|entries|elements?|attention|scores?|values?|we|what)"
_MEANS = (
    rf"[\"'”’`]*(?:\s+{_NOUN})?\s*(?:=+|:|：|->|means?|indicates?|denotes?|is|are|will be|where|if|for|at|marks?|表示|代表|为|是|"
    r"的?处|的(?:位置|地方|词元|键)?)\s*[\"'“‘]?(?:that\s+)?(?:(?:a|the|this|that)\s+)?(?:corresponding\s+)?"
    r"(?:该|此|这个)?(?:位置|词元|键)?[是为]?\s*(?:[a-z] )?"
)
_OF_A_TOKEN = (
    rf"(?:{_NOUN}(?:\s+[a-z])?\s+(?:(?:that |which )?(?:(?:is|are|must|may|will|should|to)\b(?: be\b)?\s*|(?=cannot|can't))|we (?=cannot|can't))"
    r"(?:an?\s+)?)?"
)
_SEEN = r"(?:(?:may(?! not)|visible|see|seen|real|keep|kept|tokens?(?!\s+(?:is|are))|attend\w*|look|valid|allowed)\b|可|能|有效|保留|真实|允许)"
_HIDES = re.compile(rf"{_ONE}{_MEANS}{_OF_A_TOKEN}{_HIDDEN}|{_ONE} above the (?:main )?diagonal|"
                    rf"(?:mask \w+|is) (?:true|non-?zero),? (?:the|that|its) {_OF_A_TOKEN}{_HIDDEN}|"
                    rf"(?<!not )(?<![\w-]){_HIDDEN}(?:\s+\w+)?\s+(?:=+|is|are|have|has|get)\s+(?:marked (?:with|by|as) )?(?:a\s+)?{_ONE}|"
                    rf"{_ONE}\s+(?:{_NOUN}\s+of|in)\s+(?:the\s+)?\w*mask\s+(?:are|is|means?)\s+{_HIDDEN}|"
                    rf"{_ONE}\s+(?:hides|drops|removes|disables|blocks|excludes|ignores|forbids|prevents|to mask)\b|"
                    rf"{_ZERO}{_MEANS}{_OF_A_TOKEN}(?!tokens?){_SEEN}(?![^\n]*-\s?inf)|"
                    rf"(?:遮|屏蔽|隐藏|填充|忽略|padding)\w{{0,4}}?\s*(?:为|是|=|置为?|取)\s*{_ONE}", re.IGNORECASE)  # fmt: skip
_VISIBLE = re.compile(rf"{_ONE}{_MEANS}{_OF_A_TOKEN}{_SEEN}|(?:可见|有效|保留|真实)\w{{0,4}}?\s*(?:为|是|=)\s*{_ONE}", re.IGNORECASE)
_ADDED = re.compile(r"-\s?inf|additive|added to|mask (?:is|gets) added|-1e\d", re.IGNORECASE)


def said_by_file(argument: str, thing: Any) -> bool:
    """Whether a file that `qkv practice` printed says of this mask, above its code, that True may attend."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    printed = module is not None and source_of(module).startswith("# qkv practice ")
    return printed and bool(re.search(rf"(?m)^\s+{argument}\s.*\bTrue: [^.\n]*\bmay attend", module.__doc__ or ""))


def _hides_alone(argument: str, documented: tuple[Any, ...]) -> bool:
    """Whether a docstring says, in a sentence that names no other argument and nothing like a weight, that True hides, and none that it
    shows; `argument` is the only mask."""
    functions = [one for one in documented if isinstance(one, FunctionType | MethodType)]
    arguments = [name for one in functions[-1:] for name in inspect.signature(one).parameters]
    if [name for name in arguments if names.argument(name) == "mask" or "pad" in names.key(name)] != [argument]:
        return False
    sentences = re.split(r"[.;。；\n]", "\n".join(one.__doc__ or "" for one in documented))
    others = "|".join({"causal", "is_causal", "weights?", "rows?", "sums?", "add up", *map(re.escape, arguments)} - {argument})
    own = [one for one in sentences if not re.search(rf"(?i)(?<![\w-])(?:{others})(?![\w-])", one)]
    return any(map(_HIDES.search, own)) and not any(map(_VISIBLE.search, sentences))


def meaning_of(argument: str, *documented: Any) -> set[str]:
    """What a function and its class say of a mask in docstrings and comments, and its name: "hides" (True does), "visible" (True
    is, also where 1 - mask is what hides), "added" (to the scores); "hides it", "shows it", "float" where a docstring says so of this
    argument, or a comment where nothing else is called so later. An exercise's own words count alone."""
    if any(said_by_file(argument, one) for one in documented):
        return {"visible", "shows it"}
    text, source = (" ".join(map(one, documented)) for one in (told, source_of))
    inverted = re.search(rf"\b1(?:\.0*)?\s*-\s*{argument}\b", source)
    text += " 1: visible" if inverted and not _HIDES.search(text) else ""
    found = {name for name, pattern in (("hides", _HIDES), ("visible", _VISIBLE), ("added", _ADDED)) if pattern.search(text)}
    again = re.search(rf"(?m)^\s*{argument}\s*=[^=]", source)
    documents = " ".join(one.__doc__ or "" for one in documented) if again else text
    if _hides_alone(argument, documented):
        found |= {"hides it"}
    of_it = [match[0] for match in re.finditer(rf"\b{argument}\b\s*(?:\[[^\]]*\]\s*)?[:：(][^\n]{{0,120}}", documents, re.IGNORECASE)]
    said = {name for name, pattern in (("hides it", _HIDES), ("shows it", _VISIBLE)) if any(map(pattern.search, of_it))}
    said |= {"float"} if any(re.search(r"[:：(]\s*(?:an?\s+)?float", one) for one in of_it) else set()
    return found | ({names.mask_kind(argument) or ""} | said) - {""}


#: Conventions that a docstring excludes, and mistakes that it announces.
_PROMISES = (
    (r"(?:nothing|no keys?|fully masked|all masked)\b[^.]*\bzeros?\b", ("empty-row-nan", "empty-row-mean", "empty-row-unmasked")),
    (r"(?is)^(?!.*(?:hal[fv]|/ ?2|neox|instead|unlike|\bnot\b)).*(?:\(0, 1\)|\(2i, 2i ?\+ ?1\)|interleaved|neighbou?r|adjacent)",
     ("rope-interleaved-to-half", "rope-halves-unsaid")),
    (r"(?i)quer(?:y|ies) (?:are|is) the last|^(?!.*top[- ]left).*bottom[- ]right", ("causal-top-left",)),
    (r"[Rr]eturns?\b\W*(?:the )?(?:output|context|result)[\w ]*(?:,| and)[ \w(]*(?:weights|probabilities|attention)", ("weights-first",)),
    (r"(?i)(?:normali[sz]ed|finished|divided) output|归一化(?:后|过)?的?输出", ("merge-divided",)),
)


def promised_by(thing: Any) -> list[str]:
    """Ids of conventions that what a function or class says of itself excludes, and of mistakes that it says are meant."""
    return [name for pattern, names in _PROMISES if re.search(pattern, told_with_parts(thing)) for name in names]


def added(form: Form) -> Form:
    """The same shape as 0 and -inf; lengths are never added."""
    if form.shape == LENGTHS:
        return form
    return Form(form.shape, "float", False, True)


#: A call of the person's code with other inputs.
Call = Callable[[Tensors], Any]


def _out(call: Call, tensors: Tensors) -> np.ndarray:
    return np.asarray(to_numpy(call(tensors).out), np.float64)


def _far(one: np.ndarray, other: np.ndarray) -> bool:
    """Further apart than rounding to float32 explains; NaN is far from everything."""
    return one.shape != other.shape or not bool((np.abs(one - other) <= 1e-4 * (1 + np.abs(one))).all())


def leaks(call: Call, tensors: Tensors, mask: np.ndarray) -> bool:
    """Other values of keys that the mask [B, 1, Tq, Tk] hides from the first query change the output where they are hidden."""
    hidden = ~mask[:, 0, 0]  # [B, Tk]
    rows = ~(mask[:, 0] & hidden[:, None]).any(-1)  # [B, Tq]: the queries that see none of these keys
    names = ["memory"] if "memory" in tensors else ["x"] if "x" in tensors else ["k", "v"]  # what the keys are made of
    if names == ["x"]:
        rows &= ~hidden
    other = dict(tensors)
    for name in names:
        where = hidden.reshape(hidden.shape[0], *(1,) * (tensors[name].ndim - 3), hidden.shape[1], 1)
        other[name] = np.where(where, 1.5 - 2 * tensors[name], tensors[name])
    one, two = _out(call, {**tensors, "mask": mask}), _out(call, {**other, "mask": mask})
    if one.ndim < 3 or one.shape != two.shape or one.shape[0] != len(rows) or one.shape[-2] != rows.shape[1]:
        return True
    return any(_far(one[b][..., rows[b], :], two[b][..., rows[b], :]) for b in range(len(rows)))


def mixes(call: Call, tensors: Tensors) -> bool:
    """Whether the first sequence's output depends on the others."""
    x = tensors["x"]
    one, two = (_out(call, {**tensors, "x": np.concatenate([x[:1], rest])})[:1] for rest in (x[1:], 1 - x[1:]))
    return _far(one, two)


def beyond(call: Call, tensors: Tensors, form: Form, padding: np.ndarray) -> np.ndarray:
    """What the output has more with the last keys of each sequence hidden by `padding` [B, 1, Tq, Tk], given as "other_mask" in this form,
    than without these keys, under the same "mask" [B, 1, Tq, Tk] if there is one; 0 for rounding."""
    keys = [name for name in ("memory", "k", "v") if name in tensors] or ["x"]
    out = _out(call, {**tensors, "other_mask": form.of(padding, 1, "numpy", "float64")})
    more = np.zeros_like(out)
    for n, count in enumerate((~padding[:, 0, 0]).sum(-1)):
        own = {name: tensors[name][n : n + 1] for name in {*keys, "x", "q", "mask"} & tensors.keys()}
        cut = {name: own[name][..., :-count, :] for name in keys}
        if "mask" in own:
            cut["mask"] = own["mask"][..., : -count if keys == ["x"] else None, :-count]
        one = _out(call, {**tensors, **own, **cut})[0]
        rows = np.s_[..., : one.shape[-2], :]
        more[n][rows] = out[n][rows] - one if _far(one, out[n][rows]) else 0
    return more


def neutral(call: Call, tensors: Tensors, mask: np.ndarray) -> bool:
    """A mask that hides nothing changes nothing."""
    return not _far(_out(call, tensors), _out(call, {**tensors, "mask": np.ones_like(mask)}))
