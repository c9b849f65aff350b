"""A layer of attention as a person would write it, forward and backward, in any type: the oracle of test_nn.py in float64, the
naive form in float32; beside each result its A (support.py). Not: a test."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import textbook

Arrays = dict[str, Any]

#: name of a form -> names of its q, k, v projections (one name: merged rows) and of its output projection.
NAMES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "v1": (("query_proj", "key_proj", "value_proj"), None),
    "v2": (("proj",), None),
    "v3": (("proj",), "output_proj"),
    "v4": (("query_proj", "key_proj", "value_proj"), "output_proj"),
    "self-attention": (("W_Q", "W_K", "W_V"), None),
    "single-head": (("W_q", "W_k", "W_v"), "W_o"),
    "mha": (("q_proj", "k_proj", "v_proj"), "o_proj"),
    "grouped-query": (("q_proj", "k_proj", "v_proj"), "o_proj"),
}


def split_parameters(form: str, state: Arrays) -> Arrays:
    """Wq bq Wk bk Wv bv Wo bo of a state dict; None where there is none."""
    names, output = NAMES[form]
    parts: Arrays = {}
    for kind, letter in (("weight", "W"), ("bias", "b")):
        if len(names) == 1:
            merged = state.get(f"{names[0]}.{kind}")
            three = (None,) * 3 if merged is None else np.split(merged, 3)
        else:
            three = tuple(state.get(f"{name}.{kind}") for name in names)
        parts |= {letter + part: array for part, array in zip("qkv", three, strict=True)}
        parts[letter + "o"] = None if output is None else state.get(f"{output}.{kind}")
    return parts


def merge_gradients(form: str, gradients: Arrays) -> Arrays:
    """Back: what layer_truth calls dWq, dbq ... under the names of the state dict."""
    names, output = NAMES[form]
    named: Arrays = {}
    for kind, letter in (("weight", "W"), ("bias", "b")):
        if len(names) == 1:
            named[f"{names[0]}.{kind}"] = np.concatenate([gradients[f"d{letter}{part}"] for part in "qkv"])
        else:
            named |= {f"{name}.{kind}": gradients[f"d{letter}{part}"] for name, part in zip(names, "qkv", strict=True)}
        if output is not None:
            named[f"{output}.{kind}"] = gradients[f"d{letter}o"]
    return named


def _heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _rows(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def layer_truth(
    x: np.ndarray,
    dy: np.ndarray,
    parameters: Arrays,
    *,
    heads: int = 1,
    kv_heads: int = 0,
    keep: np.ndarray | None = None,
    factors: np.ndarray | None = None,
    dtype: Any = np.float64,
) -> tuple[Arrays, Arrays]:
    """(results, their A): y, weights, dx, dWq, dbq, ... of x [B, T, E] and dy [B, T, O]. factors: of the dropout on weights."""
    kv_heads = kv_heads or heads
    x, dy = x.astype(dtype), dy.astype(dtype)
    w = {name: None if p is None else p.astype(dtype) for name, p in parameters.items()}
    count = {"q": heads, "k": kv_heads, "v": kv_heads}
    projected, size = {}, {}
    for part in "qkv":
        bias = w["b" + part] if w["b" + part] is not None else dtype(0)
        projected[part] = _heads(x @ w["W" + part].T + bias, count[part])
        size[part] = _heads(abs(x) @ abs(w["W" + part]).T + abs(bias), count[part])

    dattended = dy if w["Wo"] is None else dy @ w["Wo"]
    a_dattended = abs(dy) if w["Wo"] is None else abs(dy) @ abs(w["Wo"])
    inside = textbook(*projected.values(), keep=keep, factors=factors, dout=_heads(dattended, heads), dtype=dtype)
    attended, group = _rows(inside["out"]), heads // kv_heads
    a_w = inside["A_weights"] if factors is None else inside["A_weights"] * factors
    many = {part: np.repeat(size[part], heads // count[part], axis=1) for part in "qkv"}
    a_attended = a_w @ many["v"]
    a_dout = _heads(a_dattended, heads)
    a_ds = (
        inside["A_weights"]
        * (
            (a_dout @ many["v"].swapaxes(-1, -2)) * (1 if factors is None else factors)
            + (a_dout * a_attended).sum(-1, keepdims=True)
        )
        * projected["q"].shape[-1] ** -0.5
    )

    def over_group(a: np.ndarray) -> np.ndarray:
        return a.reshape(a.shape[0], kv_heads, group, *a.shape[2:]).sum(2)

    a_inside = {
        "q": a_ds @ many["k"],
        "k": over_group(a_ds.swapaxes(-1, -2) @ many["q"]),
        "v": over_group(a_w.swapaxes(-1, -2) @ a_dout),
    }
    bias = dtype(0) if w["bo"] is None else w["bo"]
    results: Arrays = {"y": attended if w["Wo"] is None else attended @ w["Wo"].T + bias, "weights": inside["weights"]}
    a: Arrays = {
        "y": _rows(a_attended) if w["Wo"] is None else _rows(a_attended) @ abs(w["Wo"]).T + abs(bias),
        "weights": inside["A_weights"],
    }
    if w["Wo"] is not None:
        results |= {"dWo": np.einsum("bto,btw->ow", dy, attended), "dbo": dy.sum((0, 1))}
        a |= {"dWo": np.einsum("bto,btw->ow", abs(dy), _rows(a_attended)), "dbo": abs(dy).sum((0, 1))}
    results["dx"], a["dx"] = dtype(0), dtype(0)
    for part in "qkv":
        d, a_d = _rows(inside["d" + part]), _rows(a_inside[part])
        results |= {f"dW{part}": np.einsum("btp,bte->pe", d, x), f"db{part}": d.sum((0, 1))}
        a |= {f"dW{part}": np.einsum("btp,bte->pe", a_d, abs(x)), f"db{part}": a_d.sum((0, 1))}
        results["dx"] = results["dx"] + d @ w["W" + part]
        a["dx"] = a["dx"] + a_d @ abs(w["W" + part])
    return results, a
