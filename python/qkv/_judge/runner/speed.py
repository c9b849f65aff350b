"""`--speed`: seconds of the person's code, of PyTorch and of the textbook in NumPy, at the sizes the tool asks for, in float32.

Not: qkv's own time (the tool measures it).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import building, names
from .calling import Binding
from .frameworks import default_dtype, from_numpy, is_module, torch_of
from .subject import Subject, set_training

#: Seconds of measuring and the fewest calls of each; the median is reported.
_ENOUGH, _LEAST = 0.2, 5
_FUNCTIONS = ("sdpa", "causal", "flash")
_LAYERS = ("v1", "v2", "v3", "v4", "self-attention", "single-head", "mha", "gqa")


def seconds_of(call: Callable[[], Any]) -> float:
    """The median of repeated calls, after one that is not counted."""
    call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _LEAST or time.perf_counter() - begin < _ENOUGH:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _sizes(task: str, row: dict[str, int]) -> building.Sizes:
    heads = row["heads"] if task in ("mha", "gqa", *_FUNCTIONS) else 1
    return building.Sizes(row["embed"], heads, heads // 2 if task == "gqa" else heads, row["embed"] // heads)


def _tensors(task: str, batch: int, length: int, sizes: building.Sizes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    embed, width, narrow = sizes.embed, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    if task in _FUNCTIONS:
        return {name: rng.standard_normal((batch, sizes.heads, length, sizes.head_dim), np.float32) for name in "qkv"}
    shapes = {
        "x": (batch, length, embed),
        "W_q": (embed, width),
        "W_k": (embed, narrow),
        "W_v": (embed, narrow),
        "W_o": (width, embed),
    }
    scale = np.float32(1 / np.sqrt(embed))
    return {name: rng.standard_normal(shape, np.float32) * (1 if name == "x" else scale) for name, shape in shapes.items()}


def textbook(tensors: dict[str, np.ndarray], sizes: building.Sizes, causal: bool, output: bool) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v, with the score matrix in memory."""
    x = tensors.get("x")
    if x is None:
        q, k, v = (tensors[name] for name in "qkv")
    else:
        q, k, v = (_split(x @ tensors[f"W_{name}"], sizes.heads_of(name)) for name in "qkv")
        k, v = (np.repeat(one, sizes.heads // sizes.kv_heads, axis=1) for one in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.float32(np.sqrt(q.shape[-1]))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    if x is None:
        return out
    merged = out.swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return merged @ tensors["W_o"] if output else merged


def _split(x: Any, heads: int) -> Any:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).swapaxes(1, 2)


def _torch_seconds(
    tensors: dict[str, np.ndarray], sizes: building.Sizes, causal: bool, output: bool, task: str
) -> float | None:
    """F.scaled_dot_product_attention, with linear layers around it; nn.MultiheadAttention for mha."""
    try:
        import torch
    except Exception:  # not installed, or not for this machine
        return None
    functional = torch.nn.functional
    given = {name: torch.from_numpy(value) for name, value in tensors.items()}

    def layer() -> Any:
        q, k, v = (_split(given["x"] @ given[f"W_{name}"], sizes.heads_of(name)) for name in "qkv")
        group = sizes.heads // sizes.kv_heads
        k, v = (one.repeat_interleave(group, 1) if group > 1 else one for one in (k, v))
        merged = functional.scaled_dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2).flatten(2)
        return merged @ given["W_o"] if output else merged

    call: Callable[[], Any] = layer
    if task in _FUNCTIONS:
        call = lambda: functional.scaled_dot_product_attention(given["q"], given["k"], given["v"], is_causal=causal)  # noqa: E731
    elif task == "mha":
        module = torch.nn.MultiheadAttention(sizes.embed, sizes.heads, batch_first=True).eval()
        call = lambda: module(given["x"], given["x"], given["x"], need_weights=False)  # noqa: E731
    with torch.no_grad(), default_dtype("torch", "float32"):
        return seconds_of(call)


def _person_seconds(
    subject: Subject, tensors: dict[str, np.ndarray], sizes: building.Sizes, metadata: dict[str, str]
) -> float | None:
    """A class is made anew at this size, with the parameters it makes itself; a module that exists has one size only."""
    torch = torch_of()
    with default_dtype(subject.framework, "float32"), torch.no_grad() if torch is not None else contextlib.nullcontext():
        if subject.kind == "function":
            binding = subject.binding_for()
            biases = {f"b_{name}": np.zeros(sizes.heads_of(name) * sizes.head_dim, np.float32) for name in "qkv"}
            every = {**tensors, **({**biases, "b_o": np.zeros(sizes.embed, np.float32)} if "x" in tensors else {})}
            if binding.takes("W_qkv"):
                every["W_qkv"] = np.concatenate([every[f"W_{name}"] for name in "qkv"], -1)
                every["b_qkv"] = np.concatenate([every[f"b_{name}"] for name in "qkv"])
            call: Binding = binding
        else:
            if subject.kind != "class":
                return None
            values, own = building.values_for(subject.task, subject.helpers.get("init") or {})
            values.update(
                embed=sizes.embed,
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                context=1024,
                dropout=0.0,
            )
            rest = {name: value for name, value in own.items() if names.setting(name) is None}
            target, _, _ = building.build(subject.thing, values, rest, subject.people)
            if is_module(target):
                target = target.float()
            set_training(target, False)
            every, call = tensors, subject.binding_for().on(target, subject.method)
        given = {name: from_numpy(value, subject.framework, "float32") for name, value in every.items()}
        extra = {
            "num_heads": sizes.heads,
            "num_kv_heads": sizes.kv_heads,
            "causal": metadata["causal"] == "1",
            "block_size": 32,
            "training": False,
        }
        return seconds_of(lambda: call({**given, **extra}))


def speed(subject: Subject, rows: list[dict[str, int]]) -> list[dict[str, Any]]:
    """[{"yours", "torch", "naive"}] in seconds, null where there is none; empty for tasks that are not timed."""
    if subject.task not in (*_FUNCTIONS, *_LAYERS):
        return []
    causal = subject.task in ("causal", "single-head") or bool(subject.has.get("causal"))
    output = subject.task not in ("v1", "v2", "self-attention")
    reply = []
    for row in rows:
        sizes = _sizes(subject.task, row)
        tensors = _tensors(subject.task, row["batch"], row["length"], sizes)
        try:
            yours = _person_seconds(subject, tensors, sizes, {"causal": "1" if causal else "0"})
        except (Exception, SystemExit):  # it was judged at its own size; this one it may not take
            yours = None
        torch_seconds = _torch_seconds(tensors, sizes, causal, output, subject.task)
        naive = seconds_of(lambda: textbook(tensors, sizes, causal, output))
        reply.append({**row, "yours": yours, "torch": torch_seconds, "naive": naive})
    return reply
