"""What names mean: of parameters, of arguments of calls and of constructors, in English and Chinese (words.txt). Not: shapes
(parameters.py)."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def _read() -> dict[str, dict[str, list[str]]]:
    """{kind: {meaning: words}}."""
    kinds: dict[str, dict[str, list[str]]] = {}
    kind, meaning = "", ""
    for line in Path(__file__).with_name("words.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            kind = line[1 : line.index("]")]
            kinds[kind] = {}
            continue
        if not line.startswith(" "):
            meaning, _, line = line.partition(":")
        words = line.split()
        if words[0] == "=":
            words = kinds[words[1]][words[2]]
        kinds[kind].setdefault(meaning, []).extend(words)
    return kinds


_KINDS = _read()
_MEANINGS = {kind: {word: meaning for meaning, words in reversed(table.items()) for word in words} for kind, table in _KINDS.items()}
_CHINESE = sorted(_MEANINGS["chinese"].items(), key=lambda pair: -len(pair[0]))

_BEFORE = r"(?:to|w|weights?|poids|pesos?|gewichte?|linear|lin|fc|proj|projection|layer|dense|mat|matrix|wt|multihead|self|my)?"
_AFTER = r"(?:proj|projection|projector|linear|lin|layer|weights?|w|s|fc|dense|net|mat|matrix|transform|map|mapping|kernel)*"
_LETTERS = {
    ("q",): r"q|query|queries|requetes?|consultas?|a[nb]fragen?",
    ("k",): r"k|key|keys|cles?|claves?|schl(?:u|ue)ssel",
    ("v",): r"v|val|value|values|valeurs?|valore?s?|werte?",
    ("k", "v"): r"kv|keyvalue",
    ("q", "k", "v"): r"qkv|cattn|in|inp|input|packed|querykeyvalue|fused|attn|all|three|combined|kqv|qvk|inproj",
    ("o",): r"o|out|output|cproj|wproj|unifyheads|unify|merge|combine|final|last|fc|concat|result|sortie|salida|ausgabe",
}
_WEIGHT = [(letters, re.compile(f"^{_BEFORE}(?:{names}){_AFTER}$")) for letters, names in _LETTERS.items()]
_BIAS = [(letters, re.compile(f"^(?:b|bias)(?:{names}){_AFTER}$|^{_BEFORE}(?:{names}){_AFTER}(?:b|bias)$")) for letters, names in _LETTERS.items()]


def key(name: str) -> str:
    """W_Q -> wq, 查询投影 -> queryproj, Clés -> cles."""
    name = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", name)))
    for chinese, english in _CHINESE:
        name = name.replace(chinese, english)
    return re.sub(r"[\W_]+", "", name).lower()


def meaning(kind: str, name: str) -> str | None:
    """The meaning of a kind of words.txt whose words have this name."""
    return _MEANINGS[kind].get(key(name))


def speaks_of(kind: str, name: str) -> str | None:
    """The first meaning of a kind, "task" or "other", that a name speaks of: its words are patterns."""
    found = key(name)
    return next((meaning for meaning, words in _KINDS[kind].items() if re.search("|".join(words), found)), None)


def first(meaning: str, values: dict[str, Any]) -> Any:
    """Of results by their keys, the one that the first word of a meaning names; None where none does."""
    return next((values[word] for word in _KINDS["returned"][meaning] if word in values), None)


def stem(path: str) -> str:
    """The part that says which matrix it is: attn.to_out.0.weight -> to_out, wq.bias -> wq, in_proj_weight -> in_proj."""
    parts = [part for part in path.split(".") if part]
    if len(parts) > 1 and parts[-1] in ("weight", "bias", "W", "b", "w", "kernel"):
        parts.pop()
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    last = parts[-1] if parts else path
    return re.sub(r"_(weight|bias)$", "", last) if last.startswith("in_proj") else last


def _matched(name: str, patterns: list) -> tuple | None:
    return next((found for found, pattern in patterns if pattern.match(name)), None)


def is_bias(path: str) -> bool:
    last = path.split(".")[-1]
    return last in ("b", "bias") or key(last).endswith("bias") or _matched(key(last), _BIAS) is not None


def letters(path: str, bias: bool = False) -> tuple | None:
    """("q",), ("k",), ("v",), ("o",), ("k", "v"), ("q", "k", "v") or None: which projections a parameter's name says it is."""
    name, (*outer, last) = key(stem(path)), path.split(".")
    own = not bias or last in ("weight", "bias", "b") or path.endswith("_bias") or any(key(one) in ("b", "bias", "biases") for one in outer)
    return (_matched(name, _WEIGHT) if own else None) or (_matched(name, _BIAS) if bias else None)


def among(kind: str, name: str, wanted: Iterable[str]) -> list[str]:
    """The meanings of a kind, of those that are wanted, whose words have this name; one of this very name alone."""
    found = [meaning for meaning, words in _KINDS[kind].items() if meaning in wanted and key(name) in words]
    return [name] if name in wanted else found


def mask_kind(name: str) -> str | None:
    """What a mask argument's name says: "lengths", "hides" (True hides, as torch.nn.MultiheadAttention's), "added" (to scores),
    "visible" (True is visible)."""
    return None if meaning("argument", name) else speaks_of("mask", name)


def argument(name: str) -> str | None:
    """What a call's argument is: "x", "q", "mask", "num_heads" ..., "W_q", "b_o" ..., or None."""
    found = meaning("argument", name)
    if mask_kind(name) or (found is None and key(name).endswith("mask")):
        return "mask"
    for prefix, patterns in (("b_", _BIAS), ("W_", _WEIGHT)):
        matched = _matched(key(name), patterns) if found is None else None
        found = prefix + "".join(matched) if matched else found
    return found


def setting(name: str) -> str | None:
    """What a constructor's argument is: "embed", "heads", "dropout" ..., or None."""
    return meaning("setting", name)


class _Whole:
    """Equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ByName(dict):
    """Values by any of their usual names, as a dict and as attributes; `find` raises KeyError for what is none. jax.jit takes it as one
    constant."""

    known_to_jax = False

    def __init__(self, find: Callable[[str], Any]) -> None:
        super().__init__()
        vars(self).update(_find=find)
        if "jax" in sys.modules and not ByName.known_to_jax:
            ByName.known_to_jax = True
            tree = sys.modules["jax"].tree_util
            tree.register_pytree_node(ByName, lambda one: ((), _Whole(one)), lambda whole, _: whole.value)

    def __missing__(self, name: str) -> Any:
        return self._find(name)

    def __contains__(self, name: object) -> bool:
        try:
            return super().__contains__(name) or self._find(str(name)) is not None
        except KeyError:
            return False

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error.args[0])) from None

    __setattr__ = dict.__setitem__
