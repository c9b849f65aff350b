"""What the tests share: the textbook in float64 (the oracle), the same in the type under test (the naive form), and bounds
computed from the two. Not: expected values typed by hand.

The bound is that of tests/support/checks/bounds.h and magnitude.h: error(fast) <= 2 * error(naive, same type) + 4 eps A, 3 for
gradients;
error(naive) is its largest in the tensor, errors are against the next wider type, A is the same expression with every term made
positive and room for the rounding of scores. 16-bit types: naive is the float32 form of the same inputs, and the unit roundoff
of the type is added for the result and each rounding on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import qkv

#: The type in which truth about a type is computed, and the type of its sums.
WIDER = {"float32": np.float64, "float64": np.longdouble, "bfloat16": np.float64, "float16": np.float64}
SUM = {"float32": np.float32, "float64": np.float64, "bfloat16": np.float32, "float16": np.float32}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8 / 2, "float16": 2.0**-11}


i, j = np.ogrid[:6, :6]
KEYS = [[n in row for n in range(6)] for row in ([5, 0], [1], [], [2, 4], [3, 0], [1, 2])]
#: Of 6 queries and 6 keys: a mask of every kind, and what it keeps.
MASKS: dict[str, tuple[qkv.Mask, Any]] = {
    "everything": (qkv.Mask(), j >= 0),
    "causal": (qkv.Mask.causal(), j <= i),
    "causal offsets": (qkv.Mask.causal(offsets=[2]), j <= i + 2),
    "window": (qkv.Mask.window(1, 2), (j >= i - 1) & (j <= i + 2)),
    "window offsets": (qkv.Mask.window(1, 0, offsets=np.array([1])), (j >= i) & (j <= i + 1)),
    "sliding": (qkv.Mask.sliding(2), (j >= i - 1) & (j <= i)),
    "dilated": (qkv.Mask.dilated(2), (j - i) % 2 == 0),
    "chunked": (qkv.Mask.chunked(4), i // 4 == j // 4),
    "chunked starts": (qkv.Mask.chunked(4, starts=[1]), (i - 1) // 4 == (j - 1) // 4),
    "key lengths": (qkv.Mask.key_lengths([4]), j < 4),
    "key starts": (qkv.Mask.key_starts([2]), j >= 2),
    "query lengths": (qkv.Mask.query_lengths([4]), i < 4),
    "prefix": (qkv.Mask.causal() | qkv.Mask.prefix([3]), (j <= i) | (j < 3)),
    "first": (qkv.Mask.first(2), j < 2),
    "global rows": (qkv.Mask.global_rows([1, 4]), (i == 1) | (i == 4)),
    "global columns": (qkv.Mask.global_columns([5]), j == 5),
    "documents": (qkv.Mask.documents([0, 2, 6]), (i < 2) == (j < 2)),
    "documents inside": (qkv.Mask.documents([0, 2, 6], inside=qkv.Mask.causal()), ((i < 2) == (j < 2)) & (j <= i)),
    "document ids": (qkv.Mask.document_ids(np.array([[0, 1, 0, 1, 0, 1]])), i % 2 == j % 2),
    "blocks": (qkv.Mask.blocks(qkv.BlockMap.from_mask(qkv.Mask.causal(), 6, 6, q_block=2, kv_block=2)), j // 2 <= i // 2),
    "keys": (qkv.Mask.keys([[[[5, 0], [1, -1], [-1, -1], [2, 4], [3, 0], [1, 2]]]]), np.array(KEYS, bool)),
    "mask_mod": (qkv.Mask.mask_mod(lambda b, h, i, j: (i * j) % 3 == 0), (i * j) % 3 == 0),
    "drop": (qkv.Mask.drop(np.eye(6, dtype=bool), "qk"), i != j),
    "of": (qkv.Mask.of(lambda b, h, i, j: (i + j) % 2 == 0, 6, 6), (i + j) % 2 == 0),
    "and, or": (qkv.Mask.causal() & qkv.Mask.window(2, 0) | qkv.Mask.first(1), ((j <= i) & (j >= i - 2)) | (j < 1)),
}


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers; the same seed and shape give the same ones in every type."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def problem(seed: int, batch: int, heads: int, q_len: int, kv_len: int, width: int, *, kv_heads: int = 0, v_width: int = 0, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:  # fmt: skip
    """q, k, v."""
    kv_heads, v_width = kv_heads or heads, v_width or width
    return (
        numbers(seed, batch, heads, q_len, width, dtype=dtype),
        numbers(seed + 1, batch, kv_heads, kv_len, width, dtype=dtype),
        numbers(seed + 2, batch, kv_heads, kv_len, v_width, dtype=dtype),
    )


def expand_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, Hkv, ...] -> [B, H, ...]: query head h reads h / (H / Hkv)."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def textbook(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    keep: np.ndarray | None = None,
    bias: np.ndarray | float = 0.0,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    factors: np.ndarray | None = None,
    dout: np.ndarray | None = None,
    dlse: np.ndarray | float = 0.0,
    dtype: Any = np.float64,
) -> dict[str, np.ndarray]:
    """out, lse, weights, and with dout the gradients dq, dk, dv, dbias (of a full bias), dsinks, each beside its A ("A_out", ...).

    Empty rows are zero. Arithmetic in `dtype`, as a person would write it.
    """
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    kk, vv = expand_heads(k, heads), expand_heads(v, heads)
    scale = dtype(q.shape[-1] ** -0.5 if scale is None else scale)
    raw = scale * (q @ kk.swapaxes(-1, -2))
    slope = np.ones_like(raw)
    if softcap:
        slope = 1 - np.tanh(raw / dtype(softcap)) ** 2
        raw = dtype(softcap) * np.tanh(raw / dtype(softcap))
    s = raw + np.asarray(bias, dtype)
    if keep is not None:
        s = np.where(keep, s, -np.inf)
    size = (1 + np.sqrt(q.shape[-1]) / 4) * abs(scale) * (abs(q) @ abs(kk).swapaxes(-1, -2)) + abs(np.asarray(bias, dtype))
    size = np.where(np.isfinite(size), size, 0)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(dtype)[None, :, None, None])
    finite = np.where(np.isneginf(top), 0, top)
    p = np.exp(s - finite)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(dtype)[None, :, None, None] - finite)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.where(total > 0, p / total, 0)
        lse = (finite + np.log(total))[..., 0]
    f = np.ones_like(w) if factors is None else factors.astype(dtype)
    out = (w * f) @ vv
    a_w = w * (1 + (size + (w * size).sum(-1, keepdims=True)) / 4)
    result = {"out": out, "lse": lse, "weights": w, "A_out": (a_w * f) @ abs(vv), "A_weights": a_w}
    result["A_lse"] = 1 + abs(np.where(np.isneginf(lse), 0, lse)) + (w * size).sum(-1)
    if dout is None:
        return result
    g = dout.astype(dtype)
    dp = (g @ vv.swapaxes(-1, -2)) * f
    arrived = np.broadcast_to(np.asarray(dlse, dtype), lse.shape)[..., None]
    delta = (g * out).sum(-1, keepdims=True) - arrived
    a_delta = (abs(g) * abs(out)).sum(-1, keepdims=True) + abs(arrived)
    ds = w * (dp - delta)
    a_ds = a_w * ((abs(g) @ abs(vv).swapaxes(-1, -2)) * f + a_delta)
    dx, a_dx = ds * slope, a_ds * abs(slope)

    def over_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], heads // group, group, *x.shape[2:]).sum(2)

    result |= {
        "dq": scale * (dx @ kk),
        "A_dq": abs(scale) * (a_dx @ abs(kk)),
        "dk": over_group(scale * (dx.swapaxes(-1, -2) @ q)),
        "A_dk": over_group(abs(scale) * (a_dx.swapaxes(-1, -2) @ abs(q))),
        "dv": over_group((w * f).swapaxes(-1, -2) @ g),
        "A_dv": over_group((a_w * f).swapaxes(-1, -2) @ abs(g)),
        "dbias": ds,
        "A_dbias": a_ds,
    }
    if sinks is not None:
        share = np.exp(sinks.astype(dtype)[:, None] - lse)[..., None]
        result |= {"dsinks": -(share * delta).sum((0, 2, 3)), "A_dsinks": (share * a_delta).sum((0, 2, 3))}
    return result


def expect_close(
    name: str, fast: Any, exact: np.ndarray, naive: np.ndarray, a: np.ndarray, dtype: str, *, inner: float = 0.0
) -> None:
    """`fast` of type `dtype` within the bound. Names that begin with "d" are gradients. inner: roundings to a 16-bit type on
    the way."""
    fast = np.asarray(fast)
    assert fast.shape == exact.shape, f"{name}: shape {fast.shape}, expected {exact.shape}"
    if fast.size == 0:
        return
    factor = 3 if name.startswith("d") else 2
    error = abs(fast.astype(exact.dtype) - exact).astype(np.float64)
    naive_error = float(abs(naive.astype(exact.dtype) - exact).max())
    epsilon = float(np.finfo(SUM[dtype]).eps)
    unit = UNIT[dtype] if dtype in ("bfloat16", "float16") else 0.0
    bound = factor * naive_error + ((4 * epsilon + unit * inner) * a + UNIT[dtype] * abs(exact)).astype(np.float64) + 1e-30
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), (
        f"{name}{list(map(int, worst))}: got {fast[worst]}, expected {exact[worst]}, error {error[worst]:.3g} > bound {bound[worst]:.3g}"
    )


def expect_results(fast: dict[str, Any], exact: dict[str, np.ndarray], naive: dict[str, np.ndarray], dtype: str) -> None:
    """Every entry of `fast` against the textbook's of that name."""
    for name, value in fast.items():
        inner = 2.0 if dtype == "bfloat16" else float(name.startswith("d"))
        expect_close(name, value, exact[name], naive[name], exact["A_" + name], dtype, inner=inner)
