"""The tasks: function contracts, classes by name, and how a task is guessed from a name and a signature.

Contract arguments in order; `?` marks those that may be missing. Matrices are [in, out]. Not: shapes of probes (the tool's).
"""

from __future__ import annotations

import re
from typing import Any

from . import names

#: {task: {function: arguments}}; the first function is the task's own.
FUNCTIONS = {
    "sdpa": {"sdpa": "q k v mask?"},
    "v1": {"v1": "x W_q b_q W_k b_k W_v b_v"},
    "v2": {"v2": "x W_qkv b_qkv"},
    "v3": {"v3": "x W_qkv b_qkv W_o b_o mask?"},
    "v4": {"v4": "x W_q b_q W_k b_k W_v b_v W_o b_o mask?"},
    "self-attention": {"self_attention": "x W_q b_q W_k b_k W_v b_v"},
    "single-head": {"single_head": "x W_q W_k W_v W_o"},
    "causal": {"causal_attention": "q k v"},
    "mha": {"mha": "x W_q b_q W_k b_k W_v b_v W_o b_o num_heads mask?"},
    "gqa": {"gqa": "x W_q W_k W_v W_o num_heads num_kv_heads"},
    "cross": {"cross_attention": "x memory W_q b_q W_k b_k W_v b_v W_o b_o num_heads mask?"},
    "cache": {"cached_attention": "x W_q W_k W_v W_o num_heads cache?"},
    "rope": {"rope": "x positions base?", "rope_attention": "q k v positions base?"},
    "flash": {"flash": "q k v block_size causal?"},
    "linear": {"linear_attention": "q k v causal?"},
    "backward": {"attention_backward": "q k v dout causal?", "layer_backward": "x W_q W_k W_v W_o dout"},
    "dropout": {"dropout_attention": "q k v p training"},
    "lm": {"train_step": "params tokens lr"},
}

CLASSES = {
    "SelfAttentionV1": "v1", "SelfAttentionV2": "v2", "SelfAttentionV3": "v3", "SelfAttentionV4": "v4",
    "SelfAttention": "self-attention", "SingleHeadAttention": "single-head", "MultiHeadAttention": "mha",
    "GroupedQueryAttention": "gqa", "CrossAttention": "cross", "CachedAttention": "cache",
    "DropoutAttention": "dropout", "ToyLM": "lm",
}  # fmt: skip

#: What a name says, in the order of asking; keys as names.key makes them.
_SAYS = (
    ("lm", r"trainstep|toylm|toyattn|languagemodel|trainonestep"),
    ("backward", r"backward|backprop|gradients?of|bwd|vjp"),
    ("rope", r"rope|rotary|rotate"),
    ("flash", r"flash|tiled|online|blockwise|streaming"),
    ("linear", r"linearatt|linattn|kernelatt|linearised|linearized"),
    ("cache", r"cache|incremental|decodestep|stepwise"),
    ("gqa", r"groupedquery|gqa|multiquery|mqa"),
    ("cross", r"(?<!a)cross|encdec|encoderdecoder"),
    ("dropout", r"dropout"),
    ("mha", r"multihead|multihd|^mha|mha$|mhsa"),
    ("v1", r"v1$"), ("v2", r"v2$"), ("v3", r"v3$"), ("v4", r"v4$"),
    ("single-head", r"singlehead|onehead"),
    ("causal", r"causal|masked"),
    ("sdpa", r"sdpa|scaleddot|dotproduct"),
)  # fmt: skip

SINGLE = ("v1", "v2", "v3", "v4", "self-attention", "single-head")
LAYERS = (*SINGLE, "mha", "gqa", "cross", "cache")
#: Tasks of q, k and v: no layer with parameters is one of them.
OF_QKV = ("sdpa", "flash", "linear", "dropout")
#: Tasks whose formula has a causal mask in every probe.
CAUSAL = ("single-head", "causal", "cache", "lm")


def contract(task: str, function: str) -> list[tuple[str, bool]]:
    """[(argument, may be missing)] of a function of a task."""
    return [(word.rstrip("?"), word.endswith("?")) for word in FUNCTIONS[task][function].split()]


def by_contract(name: str) -> str | None:
    """The task whose contract has this very name."""
    for task, functions in FUNCTIONS.items():
        if name in functions:
            return task
    return CLASSES.get(name)


def says_causal(name: str) -> bool:
    found = names.key(name)
    return "causal" in found or ("masked" in found and "mask" in found)


def by_name(name: str) -> str | None:
    for task, functions in FUNCTIONS.items():
        if any(name.startswith(f"{function}_") for function in functions):
            return task
    found = names.key(name)
    for task, pattern in _SAYS:
        if re.search(pattern, found):
            return task
    return None


def of_function(name: str, roles: dict[str, Any]) -> tuple[str, str] | None:
    """(task, why) of a function whose arguments mean `roles`, or None where they fit no task."""
    says = by_name(name)
    weights = {role for role in roles if role.startswith("W_")}
    signature = f"the arguments of {name}"
    if {"params", "tokens"} <= set(roles) or {"model", "tokens"} <= set(roles):
        return "lm", signature
    if {"q", "k", "v"} <= set(roles):
        for role, task in (("dout", "backward"), ("block_size", "flash"), ("positions", "rope"), ("training", "dropout")):
            if role in roles:
                return task, signature
        if names.key(name).startswith("linear"):
            return "linear", f"the name {name}"
        if says in ("flash", "linear", "causal", "sdpa"):
            return says, f"the name {name}"
        return "sdpa", signature
    if "x" in roles and "positions" in roles:
        return "rope", signature
    if not weights or not ({"x", "q", "k"} & set(roles)):
        return None
    for role, task in (("dout", "backward"), ("memory", "cross"), ("cache", "cache"), ("num_kv_heads", "gqa")):
        if role in roles:
            return task, signature
    if says in (*SINGLE, "mha", "cross", "cache", "gqa"):
        return says, f"the name {name}"
    if "num_heads" in roles:
        return "mha", signature
    if "W_qkv" in weights:
        return ("v3" if "W_o" in weights else "v2"), signature
    if "W_o" not in weights:
        return "v1", signature
    biases = any(role.startswith("b_") for role in roles)
    return ("v4" if biases or "mask" in roles else "single-head"), signature


def of_class(name: str, settings: set[str], roles: list[str]) -> tuple[str, str] | None:
    """(task, why) of a class by its name, its constructor's and its forward's arguments; single heads are told apart later, by
    their parameters (of_parameters)."""
    says = by_name(name)
    arguments = f"the arguments of {name}"
    attention_like = "att" in names.key(name) or says is not None or names.key(name) == "head"
    if says in OF_QKV and "x" in roles and not {"q", "k", "v"} & set(roles):
        if says == "linear":
            return None  # a layer around another formula: no task has it
        says = None
    if says in ("lm", "cache", "gqa", "cross", "mha", "dropout", "flash", "linear", "rope"):
        if says == "mha" and "kv_heads" in settings:
            return "gqa", arguments
        if says == "mha" and "memory" in roles:
            return "cross", arguments
        return says, f"the name {name}"
    if "tokens" in roles and "vocab" in settings:
        return "lm", arguments
    if not attention_like and not roles:
        return None
    if "kv_heads" in settings:
        return "gqa", arguments
    if "memory" in roles:
        return "cross", arguments
    if {"cache", "past_k"} & set(roles):
        return "cache", arguments
    if "heads" in settings:
        return "mha", arguments
    if {"q", "k", "v"} <= set(roles) and not ({"embed", "config"} & settings):
        drops = "dropout" in settings and "mask" not in roles and says != "sdpa"
        return ("causal" if says == "causal" else "dropout" if drops else "sdpa"), arguments
    if says in SINGLE:
        return says, f"the name {name}"
    if "x" in roles or {"q", "k", "v"} <= set(roles) or attention_like:
        return ("self-attention" if "head_dim" in settings else "v1"), arguments
    return None


def of_parameters(task: str, *, named: bool, merged: bool, output: bool, masked: bool, causal: bool, square: bool) -> str:
    """Which of the single heads a class is, now that its parameters are known; `named`: its name says so already."""
    if task not in SINGLE or task == "single-head":
        return task
    if not square and not output:
        return "self-attention"
    if causal and not named:
        return "single-head"
    if merged:
        return "v3" if output or masked or task in ("v3", "v4") else "v2"
    return "v4" if output or masked or task in ("v3", "v4") else "v1"
